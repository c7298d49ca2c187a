# What the bucket is, and what is refused. Offline, with a mocked provider.

mock_provider "aws" {
  mock_data "aws_caller_identity" {
    defaults = { account_id = "123456789012" }
  }
  mock_data "aws_iam_policy_document" {
    defaults = { json = "{}" }
  }
}

variables {
  env    = "aws"
  region = "us-west-2"
}

run "the_bucket_is_versioned_encrypted_and_closed" {
  command = plan

  assert {
    condition     = aws_s3_bucket_versioning.state.versioning_configuration[0].status == "Enabled"
    error_message = "An overwritten state must be recoverable."
  }
  assert {
    condition     = one(aws_s3_bucket_server_side_encryption_configuration.state.rule).apply_server_side_encryption_by_default[0].sse_algorithm == "aws:kms"
    error_message = "The state is encrypted by KMS."
  }
  assert {
    condition = alltrue([
      aws_s3_bucket_public_access_block.state.block_public_acls,
      aws_s3_bucket_public_access_block.state.block_public_policy,
      aws_s3_bucket_public_access_block.state.ignore_public_acls,
      aws_s3_bucket_public_access_block.state.restrict_public_buckets,
    ])
    error_message = "Nothing of the bucket is ever public."
  }
}

run "its_name_is_unique_by_account_and_region" {
  command = plan

  assert {
    condition     = aws_s3_bucket.state.bucket == "coderack-state-123456789012-us-west-2"
    error_message = "Bucket names are unique in the world; account and region make this one so."
  }
}

run "a_name_of_ones_own_is_taken" {
  command = plan

  variables {
    bucket = "my-states"
  }

  assert {
    condition     = output.backend == "# Where Terraform's state of this environment lies. Written by `make bootstrap`; belongs into version control.\nbucket = \"my-states\"\nkey    = \"aws/terraform.tfstate\"\nregion = \"us-west-2\"\n"
    error_message = "The output is the text of backend.hcl."
  }
}

run "refused_values" {
  command = plan

  variables {
    env    = "../aws"
    region = "Oregon"
    bucket = "My_States"
  }

  expect_failures = [var.env, var.region, var.bucket]
}
