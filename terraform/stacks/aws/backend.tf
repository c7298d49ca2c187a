terraform {
  # In S3, so that the record of two expensive machines survives the laptop on which they were made, and locked, so that
  # two people do not change them at once. Which bucket is said at init by inventories/<env>/backend.hcl, which
  # `make bootstrap` writes. The lab uses the same code: its cloud has the bucket too.
  # No `encrypt` here: it would ask for S3's own key in place of the bucket's default, which is KMS.
  backend "s3" {
    use_lockfile = true
  }
}
