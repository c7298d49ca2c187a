# One key for what the stack keeps: weights, API keys, alarms, flow log. Root volumes have the account's EBS key.

data "aws_caller_identity" "current" {}

data "aws_partition" "current" {}

resource "aws_kms_key" "stack" {
  description             = "Weights, API keys, alarms and flow log of ${var.stack_name}"
  enable_key_rotation     = true
  deletion_window_in_days = 7

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid       = "IamDecides"
        Effect    = "Allow"
        Principal = { AWS = "arn:${data.aws_partition.current.partition}:iam::${data.aws_caller_identity.current.account_id}:root" }
        Action    = "kms:*"
        Resource  = "*" # in a key's policy: this key
      },
      {
        # Without this, alarms to an encrypted topic are dropped in silence.
        Sid       = "AlarmsReachTheTopic"
        Effect    = "Allow"
        Principal = { Service = "cloudwatch.amazonaws.com" }
        Action    = ["kms:Decrypt", "kms:GenerateDataKey*"]
        Resource  = "*"
        Condition = { StringEquals = { "aws:SourceAccount" = data.aws_caller_identity.current.account_id } }
      },
      {
        Sid       = "FlowLogIsWritten"
        Effect    = "Allow"
        Principal = { Service = "logs.${var.region}.${data.aws_partition.current.dns_suffix}" }
        Action    = ["kms:Decrypt", "kms:DescribeKey", "kms:Encrypt", "kms:GenerateDataKey*", "kms:ReEncrypt*"]
        Resource  = "*"
        Condition = {
          ArnLike = {
            "kms:EncryptionContext:aws:logs:arn" = "arn:${data.aws_partition.current.partition}:logs:${var.region}:${data.aws_caller_identity.current.account_id}:log-group:/${var.stack_name}/*"
          }
        }
      },
    ]
  })
}
