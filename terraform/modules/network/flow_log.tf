# Who talked to whom. Traffic of EFA bypasses the operating system and does not show here.

locals {
  flow_log = var.flow_log_days == null ? 0 : 1
}

resource "aws_flow_log" "vpc" {
  count = local.flow_log

  vpc_id          = aws_vpc.this.id
  traffic_type    = "ALL"
  iam_role_arn    = aws_iam_role.flow_log[0].arn
  log_destination = aws_cloudwatch_log_group.flow_log[0].arn

  tags = { Name = var.name }
}

resource "aws_cloudwatch_log_group" "flow_log" {
  count = local.flow_log

  name              = "/${var.name}/flow-log"
  retention_in_days = var.flow_log_days
  kms_key_id        = var.kms_key_arn
}

resource "aws_iam_role" "flow_log" {
  count = local.flow_log

  name_prefix = "${var.name}-flow-"
  description = "Lets the flow log of ${var.name} write to its log group"
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { Service = "vpc-flow-logs.amazonaws.com" }
    }]
  })
}

resource "aws_iam_role_policy" "flow_log" {
  count = local.flow_log

  name = "write"
  role = aws_iam_role.flow_log[0].id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect   = "Allow"
      Action   = ["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"]
      Resource = "${aws_cloudwatch_log_group.flow_log[0].arn}:*"
    }]
  })
}
