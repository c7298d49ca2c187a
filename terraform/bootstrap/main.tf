# The bucket in which the state of stacks/aws lies. Applied once per environment, before the first `make provision`.

terraform {
  required_version = ">= 1.11"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 5.100"
    }
  }

  # This root makes what a remote state needs, so its own is a file. Losing it loses nothing: the bucket stays, and can be
  # taken over again (README).
  backend "local" {}
}

provider "aws" {
  region      = var.region
  max_retries = var.max_retries

  default_tags {
    tags = { project = "coderack", "coderack:purpose" = "terraform-state" }
  }
}

data "aws_caller_identity" "current" {}

locals {
  # Bucket names are unique in the whole world; an account's number makes this one so.
  bucket = coalesce(var.bucket, "coderack-state-${data.aws_caller_identity.current.account_id}-${var.region}")
}

resource "aws_s3_bucket" "state" {
  # checkov:skip=CKV_AWS_18: one team reads it; a second bucket for logs is more to look after than it would tell
  # checkov:skip=CKV2_AWS_61: nothing expires here; old states are the way back from a mistake, and kilobytes each
  bucket = local.bucket

  lifecycle {
    # The state is the only record of what the machines are. A bucket with objects in it would not go anyway.
    prevent_destroy = true
  }
}

resource "aws_s3_bucket_versioning" "state" {
  bucket = aws_s3_bucket.state.id

  versioning_configuration {
    status = "Enabled"
  }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "state" {
  bucket = aws_s3_bucket.state.id

  rule {
    # One request to KMS per bucket and while, not per object.
    bucket_key_enabled = true

    apply_server_side_encryption_by_default {
      # With the account's own key for S3: one less thing whose loss would make the state unreadable.
      sse_algorithm = "aws:kms"
    }
  }
}

resource "aws_s3_bucket_public_access_block" "state" {
  bucket                  = aws_s3_bucket.state.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_ownership_controls" "state" {
  bucket = aws_s3_bucket.state.id

  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

resource "aws_s3_bucket_policy" "state" {
  bucket = aws_s3_bucket.state.id
  policy = data.aws_iam_policy_document.tls_only.json

  # Two changes of a bucket's access settings at once make S3 answer one of them with a conflict.
  depends_on = [aws_s3_bucket_public_access_block.state]
}

data "aws_iam_policy_document" "tls_only" {
  statement {
    sid       = "TlsOnly"
    effect    = "Deny"
    actions   = ["s3:*"]
    resources = [aws_s3_bucket.state.arn, "${aws_s3_bucket.state.arn}/*"]

    principals {
      type        = "*"
      identifiers = ["*"]
    }

    condition {
      test     = "Bool"
      variable = "aws:SecureTransport"
      values   = ["false"]
    }
  }
}
