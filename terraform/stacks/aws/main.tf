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
    tags = {
      "coderack:stack" = var.stack_name
      project          = var.project
      env              = var.env
      owner            = var.owner
      expiry           = var.expiry
    }
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
  egress              = var.egress
  flow_log_days       = var.flow_log_days
  kms_key_arn         = aws_kms_key.stack.arn
}

module "weights" {
  source = "../../modules/weights"

  name            = var.stack_name
  kms_key_arn     = aws_kms_key.stack.arn
  noncurrent_days = var.weights_noncurrent_days
  force_destroy   = var.weights_force_destroy
}

module "access" {
  source = "../../modules/access"

  name                 = var.stack_name
  region               = var.region
  partition            = data.aws_partition.current.partition
  dns_suffix           = data.aws_partition.current.dns_suffix
  kms_key_arn          = aws_kms_key.stack.arn
  weights_bucket_arn   = module.weights.bucket_arn
  secret_recovery_days = var.secret_recovery_days
}

module "ops_node" {
  source = "../../modules/ops_node"

  name                   = var.stack_name
  node_name              = var.ops_node_name
  instance_type          = var.ops_instance_type
  ami_id                 = var.ops_ami_id
  root_volume_gib        = var.ops_root_volume_gib
  user_data              = var.user_data
  key_name               = aws_key_pair.admin.key_name
  instance_profile       = module.access.instance_profiles["ops"]
  administration         = var.administration
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
  gpus_per_node          = var.gpus_per_node
  efa_layout             = var.efa_layout
  capacity               = var.capacity
  placement_group        = var.placement_group
  ami_id                 = var.gpu_ami_id
  root_volume_gib        = var.gpu_root_volume_gib
  user_data              = var.user_data
  key_name               = aws_key_pair.admin.key_name
  instance_profile       = module.access.instance_profiles["gpu"]
  administration         = var.administration
  termination_protection = var.termination_protection
  vpc_id                 = module.network.vpc_id
  subnet_id              = module.network.private_subnet_id
  availability_zone      = var.availability_zone
  ops_security_group_id  = module.ops_node.security_group_id
  admin_cidrs            = var.admin_cidrs
}

locals {
  nodes     = concat(module.gpu_nodes.nodes, [module.ops_node.node])
  addresses = { for node in local.nodes : node.name => node.private_address }
}

module "dns" {
  source = "../../modules/dns"
  count  = var.private_zone_name == null ? 0 : 1

  name      = var.stack_name
  zone_name = var.private_zone_name
  vpc_id    = module.network.vpc_id
  addresses = merge(local.addresses, { gateway = module.ops_node.node.private_address })
}

module "alarms" {
  source = "../../modules/alarms"

  name               = var.stack_name
  region             = var.region
  partition          = data.aws_partition.current.partition
  kms_key_arn        = aws_kms_key.stack.arn
  emails             = var.alarm_emails
  instance_ids       = { for node in local.nodes : node.name => node.instance_id }
  recovered          = { name = var.ops_node_name, instance_id = module.ops_node.node.instance_id }
  monthly_budget_usd = var.monthly_budget_usd
}
