# The node of the gateway and of monitoring.

terraform {
  required_version = ">= 1.11"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 5.100"
    }
  }
}

data "aws_ec2_instance_type_offerings" "zone" {
  location_type = "availability-zone"

  filter {
    name   = "instance-type"
    values = [var.instance_type]
  }

  filter {
    name   = "location"
    values = [var.availability_zone]
  }

  lifecycle {
    postcondition {
      condition     = length(self.instance_types) > 0
      error_message = "${var.instance_type} is not offered in ${var.availability_zone}. Set ops_instance_type to a type that is, such as m7i.2xlarge or m6i.2xlarge."
    }
  }
}

data "aws_ec2_instance_type" "ops" {
  instance_type = one(data.aws_ec2_instance_type_offerings.zone.instance_types)

  lifecycle {
    postcondition {
      condition     = self.auto_recovery_supported
      error_message = "${var.instance_type} cannot be recovered by EC2 when its hardware fails. Set ops_instance_type to a type that can, such as m7i.2xlarge."
    }
  }
}

data "aws_ami" "ops" {
  include_deprecated = true # the node keeps its image for longer than its publisher recommends it

  filter {
    name   = "image-id"
    values = [var.ami_id]
  }

  lifecycle {
    postcondition {
      condition     = contains(data.aws_ec2_instance_type.ops.supported_architectures, self.architecture)
      error_message = "${var.ami_id} (${self.name}) is built for ${self.architecture}; ${var.instance_type} runs ${join(", ", data.aws_ec2_instance_type.ops.supported_architectures)}. Set ops_ami_id to an image of that architecture."
    }
  }
}

resource "aws_security_group" "ops" {
  name        = "${var.name}-ops"
  description = "Ops node: the gateway for clients, SSH for administrators"
  vpc_id      = var.vpc_id

  tags = { Name = "${var.name}-ops" }
}

resource "aws_vpc_security_group_ingress_rule" "gateway" {
  for_each = var.client_cidrs

  security_group_id = aws_security_group.ops.id
  description       = "Gateway for clients"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
  cidr_ipv4         = each.key
}

resource "aws_vpc_security_group_ingress_rule" "ssh" {
  for_each = var.admin_cidrs

  security_group_id = aws_security_group.ops.id
  description       = "SSH for administrators"
  ip_protocol       = "tcp"
  from_port         = 22
  to_port           = 22
  cidr_ipv4         = each.key
}

resource "aws_vpc_security_group_egress_rule" "out" {
  security_group_id = aws_security_group.ops.id
  description       = "Packages, GPU nodes, alert receivers"
  ip_protocol       = "-1"
  cidr_ipv4         = "0.0.0.0/0"
}

resource "aws_instance" "ops" {
  ami                         = data.aws_ami.ops.id
  instance_type               = data.aws_ec2_instance_type.ops.instance_type
  key_name                    = var.key_name
  iam_instance_profile        = var.instance_profile
  user_data_base64            = var.user_data == null ? null : base64encode(var.user_data)
  subnet_id                   = var.subnet_id
  vpc_security_group_ids      = [aws_security_group.ops.id]
  associate_public_ip_address = false
  ebs_optimized               = true
  monitoring                  = true # status checks every minute, not every five
  disable_api_termination     = var.termination_protection

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  root_block_device {
    volume_type = "gp3"
    volume_size = var.root_volume_gib
    encrypted   = true
  }

  tags = {
    Name            = var.node_name
    "coderack:role" = "ops"
  }

  lifecycle {
    # A newer image is for the next node, and so is other user data, which would stop this one. Whoever wants them here
    # replaces the node on purpose (-replace=…).
    ignore_changes = [ami, user_data_base64]
  }
}
