# Where Terraform's state lies: a file of this folder, seen from terraform/stacks/baremetal. It holds nothing that
# terraform.tfvars does not say too, so it needs no backup.
path = "../../../inventories/baremetal/terraform.tfstate"
