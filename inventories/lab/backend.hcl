# Where Terraform's state of the lab lies: in the lab's cloud, whose account begins with this bucket and ends with the lab.
bucket = "coderack-lab-state"
key    = "lab/terraform.tfstate"
region = "us-west-2"
