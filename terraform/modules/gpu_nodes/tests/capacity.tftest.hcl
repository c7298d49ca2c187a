# Where the machines come from, and what a type has to be.

mock_provider "aws" {
  mock_data "aws_ec2_instance_type_offerings" {
    defaults = { instance_types = ["p5.48xlarge"] }
  }
  mock_data "aws_ec2_instance_type" {
    defaults = {
      gpus                     = [{ count = 8, manufacturer = "NVIDIA", memory_size = 81920, name = "H100" }]
      efa_supported            = true
      efa_maximum_interfaces   = 32
      maximum_network_cards    = 32
      supported_architectures  = ["x86_64"]
      supported_usages_classes = ["capacity-block", "on-demand", "spot"]
    }
  }
  mock_data "aws_ami" {
    defaults = { architecture = "x86_64" }
  }
  mock_data "aws_default_tags" {
    defaults = { tags = { owner = "somebody", expiry = "2027-06-30" } }
  }
}

variables {
  name                   = "test"
  node_names             = ["gpu-a", "gpu-b"]
  instance_type          = "p5.48xlarge"
  gpus_per_node          = 8
  efa_layout             = "efa_primary"
  capacity               = { kind = "on_demand" }
  placement_group        = null
  ami_id                 = "ami-00000000000000000"
  user_data              = null
  root_volume_gib        = 100
  key_name               = "test"
  instance_profile       = "test"
  administration         = "ssm"
  termination_protection = true
  vpc_id                 = "vpc-00000000000000000"
  subnet_id              = "subnet-00000000000000000"
  availability_zone      = "us-west-2a"
  ops_security_group_id  = "sg-00000000000000000"
  admin_cidrs            = []
}

run "on_demand_has_a_cluster_placement_group_of_its_own" {
  command = plan

  assert {
    condition     = aws_placement_group.cluster[0].strategy == "cluster"
    error_message = "On-demand nodes need a cluster placement group."
  }
  assert {
    condition     = one(aws_launch_template.gpu.placement).group_name == aws_placement_group.cluster[0].name
    error_message = "The launch template has to place the nodes in the group."
  }
  assert {
    condition     = length(aws_launch_template.gpu.instance_market_options) == 0 && length(aws_launch_template.gpu.capacity_reservation_specification) == 0
    error_message = "On demand neither names a market nor a reservation."
  }
}

run "odcr_targets_the_reservation_and_joins_no_new_group" {
  command = plan

  variables {
    capacity = { kind = "odcr", reservation_id = "cr-00000000000000001" }
  }

  assert {
    condition     = one(one(aws_launch_template.gpu.capacity_reservation_specification).capacity_reservation_target).capacity_reservation_id == "cr-00000000000000001"
    error_message = "The reservation has to be the target."
  }
  assert {
    condition     = length(aws_launch_template.gpu.instance_market_options) == 0
    error_message = "An on-demand reservation is no market of its own."
  }
  assert {
    condition     = length(aws_placement_group.cluster) == 0 && length(aws_launch_template.gpu.placement) == 0
    error_message = "A new group would keep reserved machines out."
  }
}

run "odcr_that_was_made_in_a_group_is_used_through_it" {
  command = plan

  variables {
    capacity        = { kind = "odcr", reservation_id = "cr-00000000000000001" }
    placement_group = "reserved"
  }

  assert {
    condition     = one(aws_launch_template.gpu.placement).group_name == "reserved"
    error_message = "The nodes belong into the reservation's group."
  }
}

run "capacity_block_sets_market_and_target" {
  command = plan

  variables {
    capacity = { kind = "capacity_block", reservation_id = "cr-00000000000000002", ends_at = "2027-01-15T11:30:00Z" }
  }

  assert {
    condition     = one(aws_launch_template.gpu.instance_market_options).market_type == "capacity-block"
    error_message = "Without the market, EC2 takes the request for on demand."
  }
  assert {
    condition     = one(one(aws_launch_template.gpu.capacity_reservation_specification).capacity_reservation_target).capacity_reservation_id == "cr-00000000000000002"
    error_message = "The block has to be the target."
  }
  assert {
    condition     = length(aws_placement_group.cluster) == 0 && length(aws_launch_template.gpu.placement) == 0
    error_message = "A capacity block takes no placement group."
  }
}

run "nodes_are_protected_and_never_recovered_to_other_hardware" {
  command = plan

  assert {
    condition = alltrue([
      for node in aws_instance.gpu : node.disable_api_termination && node.disable_api_stop && one(node.maintenance_options).auto_recovery == "disabled"
    ])
    error_message = "Stopping, terminating and recovering all empty the instance store."
  }
}

run "the_template_has_no_tag_that_can_change" {
  command = plan

  assert {
    condition     = aws_launch_template.gpu.tags == tomap({ owner = "as the nodes", expiry = "as the nodes" })
    error_message = "A changed tag of the template would replace the nodes."
  }
}

run "the_security_group_lets_itself_through_and_no_ssh_without_admin_cidrs" {
  command = plan

  assert {
    condition     = aws_vpc_security_group_ingress_rule.efa.ip_protocol == "-1" && aws_vpc_security_group_egress_rule.efa.ip_protocol == "-1"
    error_message = "EFA needs everything in both directions."
  }
  assert {
    condition     = length(aws_vpc_security_group_ingress_rule.ssh) == 0
    error_message = "Session Manager needs no open port."
  }
}

run "a_type_that_the_zone_lacks_is_refused" {
  command = plan

  override_data {
    target = data.aws_ec2_instance_type_offerings.zone
    values = { instance_types = [] }
  }

  expect_failures = [data.aws_ec2_instance_type_offerings.zone]
}

run "a_type_without_gpu_is_refused" {
  command = plan

  override_data {
    target = data.aws_ec2_instance_type.gpu
    values = {
      gpus                     = []
      efa_supported            = true
      efa_maximum_interfaces   = 1
      maximum_network_cards    = 1
      supported_architectures  = ["x86_64"]
      supported_usages_classes = ["on-demand"]
    }
  }

  expect_failures = [data.aws_ec2_instance_type.gpu]
}

run "a_type_without_efa_is_refused" {
  command = plan

  override_data {
    target = data.aws_ec2_instance_type.gpu
    values = {
      gpus                     = [{ count = 8, manufacturer = "NVIDIA", memory_size = 81920, name = "H100" }]
      efa_supported            = false
      efa_maximum_interfaces   = 0
      maximum_network_cards    = 1
      supported_architectures  = ["x86_64"]
      supported_usages_classes = ["on-demand"]
    }
  }

  expect_failures = [data.aws_ec2_instance_type.gpu]
}

run "a_type_with_another_number_of_gpus_is_refused" {
  command = plan

  override_data {
    target = data.aws_ec2_instance_type.gpu
    values = {
      gpus                     = [{ count = 1, manufacturer = "NVIDIA", memory_size = 81920, name = "H100" }]
      efa_supported            = true
      efa_maximum_interfaces   = 1
      maximum_network_cards    = 1
      supported_architectures  = ["x86_64"]
      supported_usages_classes = ["capacity-block", "on-demand"]
    }
  }

  expect_failures = [data.aws_ec2_instance_type.gpu]
}

run "a_type_that_has_no_capacity_blocks_is_refused_as_one" {
  command = plan

  variables {
    capacity = { kind = "capacity_block", reservation_id = "cr-00000000000000002", ends_at = "2027-01-15T11:30:00Z" }
  }

  override_data {
    target = data.aws_ec2_instance_type.gpu
    values = {
      gpus                     = [{ count = 8, manufacturer = "NVIDIA", memory_size = 81920, name = "H100" }]
      efa_supported            = true
      efa_maximum_interfaces   = 32
      maximum_network_cards    = 32
      supported_architectures  = ["x86_64"]
      supported_usages_classes = ["on-demand", "spot"]
    }
  }

  expect_failures = [data.aws_ec2_instance_type.gpu]
}

run "an_image_of_another_architecture_is_refused" {
  command = plan

  override_data {
    target = data.aws_ami.gpu
    values = { architecture = "arm64" }
  }

  expect_failures = [data.aws_ami.gpu]
}
