output "bucket" {
  description = "Name of the bucket. Known only when it is closed and encrypted, so that nothing is uploaded before."
  value       = aws_s3_bucket.weights.id

  depends_on = [
    aws_s3_bucket_policy.weights,
    aws_s3_bucket_public_access_block.weights,
    aws_s3_bucket_server_side_encryption_configuration.weights,
    aws_s3_bucket_versioning.weights,
  ]
}

output "bucket_arn" {
  description = "ARN of the bucket, for policies."
  value       = aws_s3_bucket.weights.arn
}
