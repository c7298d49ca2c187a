# What the nodes may do at AWS: be administered through Systems Manager, and each role one thing beyond that.

terraform {
  required_version = ">= 1.11"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 5.100"
    }
  }
}

locals {
  statements = {
    # Nodes read weights; who uploads them has rights of their own.
    gpu = [
      {
        Sid      = "ListWeights"
        Effect   = "Allow"
        Action   = ["s3:GetBucketLocation", "s3:ListBucket"]
        Resource = var.weights_bucket_arn
      },
      {
        Sid      = "ReadWeights"
        Effect   = "Allow"
        Action   = ["s3:GetObject", "s3:GetObjectVersion"]
        Resource = "${var.weights_bucket_arn}/*"
      },
      {
        Sid       = "DecryptWeights"
        Effect    = "Allow"
        Action    = "kms:Decrypt"
        Resource  = var.kms_key_arn
        Condition = { StringEquals = { "kms:ViaService" = "s3.${var.region}.${var.dns_suffix}" } }
      },
    ]
    ops = [
      {
        Sid      = "ReadApiKeys"
        Effect   = "Allow"
        Action   = ["secretsmanager:DescribeSecret", "secretsmanager:GetSecretValue"]
        Resource = aws_secretsmanager_secret.api_keys.arn
      },
      {
        Sid       = "DecryptApiKeys"
        Effect    = "Allow"
        Action    = "kms:Decrypt"
        Resource  = var.kms_key_arn
        Condition = { StringEquals = { "kms:ViaService" = "secretsmanager.${var.region}.${var.dns_suffix}" } }
      },
    ]
  }
}

# Only the container: a value given here would stand in the state. `coderack keys` makes and rotates the keys.
resource "aws_secretsmanager_secret" "api_keys" {
  #checkov:skip=CKV2_AWS_57:Clients have to learn a new key before the old one goes; `coderack keys rotate` does that, a timer cannot

  # A prefix, since the name of a deleted secret stays taken during its recovery window.
  name_prefix             = "${var.name}-api-keys-"
  description             = "API keys of the gateway of ${var.name}; written by coderack keys"
  kms_key_id              = var.kms_key_arn
  recovery_window_in_days = var.secret_recovery_days
}

resource "aws_iam_role" "node" {
  for_each = local.statements

  name_prefix = "${var.name}-${each.key}-"
  description = "Nodes of role ${each.key} of ${var.name}"
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { Service = "ec2.amazonaws.com" }
    }]
  })
}

resource "aws_iam_role_policy" "node" {
  for_each = local.statements

  name   = each.key
  role   = aws_iam_role.node[each.key].id
  policy = jsonencode({ Version = "2012-10-17", Statement = each.value })
}

# Session Manager: shells and SSH without an open port. AWS keeps this policy up to date with its agent.
resource "aws_iam_role_policy_attachment" "ssm" {
  for_each = local.statements

  role       = aws_iam_role.node[each.key].name
  policy_arn = "arn:${var.partition}:iam::aws:policy/AmazonSSMManagedInstanceCore"
}

resource "aws_iam_instance_profile" "node" {
  for_each = local.statements

  name_prefix = "${var.name}-${each.key}-"
  role        = aws_iam_role.node[each.key].name
}
