# The bucket of the model's weights. It is a source, not a cache: the nodes copy from it to their instance store.

terraform {
  required_version = ">= 1.11"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 5.100"
    }
  }
}

resource "aws_s3_bucket" "weights" {
  #checkov:skip=CKV_AWS_18:An access log would tell what is known: the nodes' roles read it. Whoever needs one has CloudTrail data events

  # A prefix, since bucket names are one name space for the whole world. It may have 37 characters.
  bucket_prefix = "${substr(var.name, 0, 28)}-weights-"
  force_destroy = var.force_destroy
}

resource "aws_s3_bucket_public_access_block" "weights" {
  bucket = aws_s3_bucket.weights.id

  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_ownership_controls" "weights" {
  bucket = aws_s3_bucket.weights.id

  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

resource "aws_s3_bucket_versioning" "weights" {
  bucket = aws_s3_bucket.weights.id

  versioning_configuration {
    status = "Enabled"
  }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "weights" {
  bucket = aws_s3_bucket.weights.id

  rule {
    # One data key per bucket and hour rather than one call to KMS per object: hundreds of shards are read at once.
    bucket_key_enabled = true

    apply_server_side_encryption_by_default {
      sse_algorithm     = "aws:kms"
      kms_master_key_id = var.kms_key_arn
    }
  }
}

resource "aws_s3_bucket_policy" "weights" {
  bucket = aws_s3_bucket.weights.id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "OnlyOverTls"
      Effect    = "Deny"
      Principal = "*"
      Action    = "s3:*"
      Resource  = [aws_s3_bucket.weights.arn, "${aws_s3_bucket.weights.arn}/*"]
      Condition = { Bool = { "aws:SecureTransport" = "false" } }
    }]
  })

  # Two changes of a bucket's access at once are refused by S3 (409, conflicting operation).
  depends_on = [aws_s3_bucket_public_access_block.weights]
}

resource "aws_s3_bucket_lifecycle_configuration" "weights" {
  count = var.noncurrent_days == null ? 0 : 1

  bucket = aws_s3_bucket.weights.id

  rule {
    id     = "clean-up"
    status = "Enabled"

    filter {}

    # An upload of half a terabyte that broke off is invisible in listings, and is paid for.
    abort_incomplete_multipart_upload {
      days_after_initiation = 7
    }

    noncurrent_version_expiration {
      noncurrent_days = var.noncurrent_days
    }
  }

  # A rule on old versions makes sense once there are versions.
  depends_on = [aws_s3_bucket_versioning.weights]
}
