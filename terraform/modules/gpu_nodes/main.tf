# GPU nodes with every EFA device of their type, close together.

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
      condition     = length(self.gpus) == 0 || sum(concat([0], self.gpus[*].count)) == var.gpus_per_node
      error_message = "${var.instance_type} has ${sum(concat([0], self.gpus[*].count))} GPUs, and gpus_per_node is ${var.gpus_per_node}, which the serving profiles count on. Set gpu_instance_type to a type with that many, such as p5.48xlarge (8), or gpus_per_node to what this type has."
    }
    postcondition {
      condition     = self.efa_supported
      error_message = "${var.instance_type} has no EFA, so the nodes could not exchange experts' data at speed. Set gpu_instance_type to a type with EFA such as p5.48xlarge."
    }
    postcondition {
      condition     = contains(self.supported_usages_classes, local.usage_class)
      error_message = "${var.instance_type} cannot be had as ${local.usage_class} (it can as ${join(", ", self.supported_usages_classes)}). Set capacity.kind to one that it supports, or choose another gpu_instance_type."
    }
  }
}

data "aws_ami" "gpu" {
  include_deprecated = true # nodes keep their image for longer than its publisher recommends it

  filter {
    name   = "image-id"
    values = [var.ami_id]
  }

  lifecycle {
    postcondition {
      condition     = contains(data.aws_ec2_instance_type.gpu.supported_architectures, self.architecture)
      error_message = "${var.ami_id} (${self.name}) is built for ${self.architecture}; ${var.instance_type} runs ${join(", ", data.aws_ec2_instance_type.gpu.supported_architectures)}. Set gpu_ami_id to an image of that architecture."
    }
  }
}

locals {
  reserved = var.capacity.kind != "on_demand"
  block    = var.capacity.kind == "capacity_block"
  # An on-demand reservation is on-demand capacity; a block is a market of its own.
  usage_class = local.block ? "capacity-block" : "on-demand"

  # Reserved machines stand where they stand: a new group would leave out those that do not fit (parallelcluster refuses
  # a group with a block; eksctl-io/eksctl#7949). Blocks are close together by themselves; a reservation made inside a
  # group is used through that group.
  placement_group = local.reserved ? var.placement_group : aws_placement_group.cluster[0].name

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
  count = local.reserved ? 0 : 1

  name     = "${var.name}-gpu"
  strategy = "cluster"
}

# For the provider any change of a template may be a new version, tags included: the nodes would be replaced because an
# expiry date was moved. So the template covers whatever default tags there are with values that never change.
data "aws_default_tags" "current" {}

# What aws_instance itself cannot say: network cards, EFA-only interfaces, the market of a block. User data and tags of
# instances are not here, since the provider would then see a change in every plan.
resource "aws_launch_template" "gpu" {
  name                   = "${var.name}-gpu"
  description            = "EFA interfaces (${var.efa_layout}), capacity, placement and metadata options of the GPU nodes"
  update_default_version = true
  # Said here too, so that another type replaces the nodes: changed on the instance alone, it would stop and empty them.
  instance_type = local.type.instance_type

  tags = { for key, value in data.aws_default_tags.current.tags : key => "as the nodes" }

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

  dynamic "placement" {
    for_each = local.placement_group[*]
    content {
      group_name = placement.value
    }
  }

  # A block is used only if both are said: the market, and which block.
  dynamic "instance_market_options" {
    for_each = local.block ? ["capacity-block"] : []
    content {
      market_type = instance_market_options.value
    }
  }

  dynamic "capacity_reservation_specification" {
    for_each = local.reserved ? [var.capacity.reservation_id] : []
    content {
      capacity_reservation_target {
        capacity_reservation_id = capacity_reservation_specification.value
      }
    }
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

  ami                  = data.aws_ami.gpu.id
  instance_type        = local.type.instance_type
  key_name             = var.key_name
  iam_instance_profile = var.instance_profile
  user_data_base64     = var.user_data == null ? null : base64encode(var.user_data)
  ebs_optimized        = true
  monitoring           = true # status checks every minute, not every five

  # Stopping is as bad as terminating: the instance store is gone, and on-demand capacity may be as well.
  disable_api_termination = var.termination_protection
  disable_api_stop        = var.termination_protection

  launch_template {
    id      = aws_launch_template.gpu.id
    version = aws_launch_template.gpu.latest_version
  }

  # Simplified recovery would move the node to other hardware with an empty instance store.
  maintenance_options {
    auto_recovery = "disabled"
  }

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
    Name            = each.key
    "coderack:role" = "gpu"
  }

  lifecycle {
    # A newer image is for the next node, and so is other user data, which would stop this one. Whoever wants them here
    # replaces the node on purpose (-replace=…).
    ignore_changes = [ami, user_data_base64]
  }
}
