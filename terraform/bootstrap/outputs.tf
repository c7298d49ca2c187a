output "backend" {
  description = "What inventories/<env>/backend.hcl says: where `terraform init` of stacks/aws finds the state."
  value       = <<-EOT
    # Where Terraform's state of this environment lies. Written by `make bootstrap`; belongs into version control.
    bucket = "${aws_s3_bucket.state.bucket}"
    key    = "${var.env}/terraform.tfstate"
    region = "${var.region}"
  EOT
}
