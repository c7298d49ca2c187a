# Two GPU nodes and one ops node in a private subnet. Ends in the output `fleet`, from which the inventory is written.

terraform {
  required_version = ">= 1.11"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 5.100"
    }
  }
}

provider "aws" {
  region      = var.region
  max_retries = var.max_retries

  default_tags {
    tags = { "coderack:stack" = var.stack_name }
  }
}

resource "aws_key_pair" "admin" {
  key_name   = var.stack_name
  public_key = var.ssh_public_key
}

module "network" {
  source = "../../modules/network"

  name                = var.stack_name
  region              = var.region
  availability_zone   = var.availability_zone
  vpc_cidr            = var.vpc_cidr
  private_subnet_cidr = var.private_subnet_cidr
  public_subnet_cidr  = var.public_subnet_cidr
}

module "ops_node" {
  source = "../../modules/ops_node"

  name                   = var.stack_name
  node_name              = var.ops_node_name
  instance_type          = var.ops_instance_type
  ami_id                 = var.ops_ami_id
  root_volume_gib        = var.ops_root_volume_gib
  key_name               = aws_key_pair.admin.key_name
  termination_protection = var.termination_protection
  vpc_id                 = module.network.vpc_id
  subnet_id              = module.network.private_subnet_id
  availability_zone      = var.availability_zone
  admin_cidrs            = var.admin_cidrs
  client_cidrs           = var.client_cidrs
}

module "gpu_nodes" {
  source = "../../modules/gpu_nodes"

  name                   = var.stack_name
  node_names             = toset(var.gpu_node_names)
  instance_type          = var.gpu_instance_type
  efa_layout             = var.efa_layout
  ami_id                 = var.gpu_ami_id
  root_volume_gib        = var.gpu_root_volume_gib
  key_name               = aws_key_pair.admin.key_name
  termination_protection = var.termination_protection
  vpc_id                 = module.network.vpc_id
  subnet_id              = module.network.private_subnet_id
  availability_zone      = var.availability_zone
  ops_security_group_id  = module.ops_node.security_group_id
  admin_cidrs            = var.admin_cidrs
}
