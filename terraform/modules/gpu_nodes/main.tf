# GPU nodes with every EFA device of their type, close together in a cluster placement group.

terraform {
  required_version = ">= 1.11"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 5.100"
    }
  }
}

# Asked first: an unknown or unavailable type shall fail with an explanation, not with the API's error.
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
      error_message = "${var.instance_type} is not offered in ${var.availability_zone}. Choose an availability_zone that has it (aws ec2 describe-instance-type-offerings --location-type availability-zone --filters Name=instance-type,Values=${var.instance_type}) or another gpu_instance_type."
    }
  }
}

data "aws_ec2_instance_type" "gpu" {
  instance_type = one(data.aws_ec2_instance_type_offerings.zone.instance_types)

  lifecycle {
    postcondition {
      condition     = length(self.gpus) > 0
      error_message = "${var.instance_type} has no GPU. Set gpu_instance_type to a GPU type such as p5.48xlarge."
    }
    postcondition {
      condition     = self.efa_supported
      error_message = "${var.instance_type} has no EFA, so the nodes could not exchange experts' data at speed. Set gpu_instance_type to a type with EFA such as p5.48xlarge."
    }
  }
}

locals {
  type  = data.aws_ec2_instance_type.gpu
  cards = local.type.maximum_network_cards
  # Where there are more cards than EFA devices (p6-b300: 17 and 16), it is the first cards that lack EFA.
  efa_cards = range(local.cards - local.type.efa_maximum_interfaces, local.cards)

  # Card 0, device 0 is the primary interface. EFA-only interfaces have no IP address: one address per node is enough.
  primary_kind = var.efa_layout == "efa_primary" ? "efa" : "interface"
  efa_only = [
    for card in local.efa_cards : {
      card = card
      # efa_primary puts them on device 1; with a plain primary interface, device 0 of the other cards is free.
      device = var.efa_layout == "efa_primary" || card == 0 ? 1 : 0
    }
    if !(var.efa_layout == "efa_primary" && card == 0)
  ]
}

resource "aws_placement_group" "cluster" {
  name     = "${var.name}-gpu"
  strategy = "cluster"
}

resource "aws_launch_template" "gpu" {
  name                   = "${var.name}-gpu"
  description            = "EFA interfaces (${var.efa_layout}), placement and metadata options of the GPU nodes"
  update_default_version = true
  ebs_optimized          = "true"

  network_interfaces {
    network_card_index          = 0
    device_index                = 0
    interface_type              = local.primary_kind
    subnet_id                   = var.subnet_id
    security_groups             = [aws_security_group.gpu.id]
    associate_public_ip_address = "false"
    delete_on_termination       = "true"
  }

  dynamic "network_interfaces" {
    for_each = local.efa_only
    content {
      network_card_index    = network_interfaces.value.card
      device_index          = network_interfaces.value.device
      interface_type        = "efa-only"
      subnet_id             = var.subnet_id
      security_groups       = [aws_security_group.gpu.id]
      delete_on_termination = "true"
    }
  }

  placement {
    group_name = aws_placement_group.cluster.name
  }

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  lifecycle {
    precondition {
      condition     = var.efa_layout != "efa_primary" || contains(local.efa_cards, 0)
      error_message = "Card 0 of ${var.instance_type} has no EFA, so its primary interface cannot be one. Set efa_layout = \"ena_plus_efa_only\"."
    }
  }
}

resource "aws_instance" "gpu" {
  for_each = var.node_names

  ami                     = var.ami_id
  instance_type           = local.type.instance_type
  key_name                = var.key_name
  disable_api_termination = var.termination_protection

  launch_template {
    id      = aws_launch_template.gpu.id
    version = aws_launch_template.gpu.latest_version
  }

  root_block_device {
    volume_type = "gp3"
    volume_size = var.root_volume_gib
    encrypted   = true
  }

  tags = {
    Name            = each.key
    "coderack:role" = "gpu"
  }

  lifecycle {
    # A newer image is for the next node. Whoever wants it on this one replaces the node on purpose (-replace=…).
    ignore_changes = [ami]
  }
}
