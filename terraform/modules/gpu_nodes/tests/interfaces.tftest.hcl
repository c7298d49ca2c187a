# The interface lists for the types that differ. The figures are those of DescribeInstanceTypes.

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
}

variables {
  name                   = "test"
  node_names             = ["gpu-a", "gpu-b"]
  instance_type          = "p5.48xlarge"
  gpus_per_node          = 8
  efa_layout             = "efa_primary"
  capacity               = { kind = "on_demand" }
  placement_group        = null
  user_data              = null
  instance_profile       = "test"
  administration         = "ssm"
  ami_id                 = "ami-00000000000000000"
  root_volume_gib        = 100
  key_name               = "test"
  termination_protection = false
  vpc_id                 = "vpc-00000000000000000"
  subnet_id              = "subnet-00000000000000000"
  availability_zone      = "us-west-2a"
  ops_security_group_id  = "sg-00000000000000000"
  admin_cidrs            = ["10.0.0.0/8"]
}

run "efa_primary_has_one_efa_and_31_efa_only" {
  command = plan

  assert {
    condition = [
      for i in aws_launch_template.gpu.network_interfaces : [i.network_card_index, i.device_index, i.interface_type]
    ] == concat([[0, 0, "efa"]], [for card in range(1, 32) : [card, 1, "efa-only"]])
    error_message = "p5.48xlarge needs EFA on card 0 and EFA-only on device 1 of cards 1 to 31."
  }
}

run "ena_plus_efa_only_has_32_efa_only_beside_the_primary" {
  command = plan

  variables {
    efa_layout = "ena_plus_efa_only"
  }

  assert {
    condition = [
      for i in aws_launch_template.gpu.network_interfaces : [i.network_card_index, i.device_index, i.interface_type]
    ] == concat([[0, 0, "interface"], [0, 1, "efa-only"]], [for card in range(1, 32) : [card, 0, "efa-only"]])
    error_message = "The primary is plain, its card's EFA is device 1, the other cards' EFA is device 0."
  }
}

run "p5e_has_as_many_cards_as_p5" {
  command = plan

  variables {
    instance_type = "p5e.48xlarge"
  }

  override_data {
    target = data.aws_ec2_instance_type_offerings.zone
    values = { instance_types = ["p5e.48xlarge"] }
  }
  override_data {
    target = data.aws_ec2_instance_type.gpu
    values = {
      gpus                     = [{ count = 8, manufacturer = "NVIDIA", memory_size = 144384, name = "H200" }]
      efa_supported            = true
      efa_maximum_interfaces   = 32
      maximum_network_cards    = 32
      supported_architectures  = ["x86_64"]
      supported_usages_classes = ["capacity-block", "on-demand", "spot"]
    }
  }

  assert {
    condition     = length(aws_launch_template.gpu.network_interfaces) == 32
    error_message = "p5e.48xlarge has 32 cards with one EFA each."
  }
}

run "p5en_has_half_as_many_cards" {
  command = plan

  variables {
    instance_type = "p5en.48xlarge"
    efa_layout    = "ena_plus_efa_only"
  }

  override_data {
    target = data.aws_ec2_instance_type_offerings.zone
    values = { instance_types = ["p5en.48xlarge"] }
  }
  override_data {
    target = data.aws_ec2_instance_type.gpu
    values = {
      gpus                     = [{ count = 8, manufacturer = "NVIDIA", memory_size = 144384, name = "H200" }]
      efa_supported            = true
      efa_maximum_interfaces   = 16
      maximum_network_cards    = 16
      supported_architectures  = ["x86_64"]
      supported_usages_classes = ["capacity-block", "on-demand", "spot"]
    }
  }

  assert {
    condition = [
      for i in aws_launch_template.gpu.network_interfaces : [i.network_card_index, i.device_index, i.interface_type]
    ] == concat([[0, 0, "interface"], [0, 1, "efa-only"]], [for card in range(1, 16) : [card, 0, "efa-only"]])
    error_message = "p5en.48xlarge has EFA on 16 cards, beside the plain primary interface."
  }
}

run "a_type_with_more_cards_than_efa_devices_leaves_card_0_plain" {
  command = plan

  variables {
    efa_layout = "ena_plus_efa_only"
  }

  override_data {
    target = data.aws_ec2_instance_type.gpu
    values = {
      gpus                     = [{ count = 8, manufacturer = "NVIDIA", memory_size = 275040, name = "B300" }]
      efa_supported            = true
      efa_maximum_interfaces   = 16
      maximum_network_cards    = 17
      supported_architectures  = ["x86_64"]
      supported_usages_classes = ["capacity-block", "on-demand", "spot"]
    }
  }

  assert {
    condition = [
      for i in aws_launch_template.gpu.network_interfaces : [i.network_card_index, i.device_index, i.interface_type]
    ] == concat([[0, 0, "interface"]], [for card in range(1, 17) : [card, 0, "efa-only"]])
    error_message = "p6-b300 has EFA on cards 1 to 16 only."
  }
}

run "efa_primary_is_refused_where_card_0_has_no_efa" {
  command = plan

  override_data {
    target = data.aws_ec2_instance_type.gpu
    values = {
      gpus                     = [{ count = 8, manufacturer = "NVIDIA", memory_size = 275040, name = "B300" }]
      efa_supported            = true
      efa_maximum_interfaces   = 16
      maximum_network_cards    = 17
      supported_architectures  = ["x86_64"]
      supported_usages_classes = ["capacity-block", "on-demand", "spot"]
    }
  }

  expect_failures = [aws_launch_template.gpu]
}
