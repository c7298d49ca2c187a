# Every value that the stack refuses, one at a time. What the messages say is tested in tests/terraform/test_refusals.py.

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
      auto_recovery_supported  = true
    }
  }
  mock_data "aws_ami" {
    defaults = { architecture = "x86_64" }
  }
  mock_data "aws_partition" {
    defaults = { partition = "aws", dns_suffix = "amazonaws.com" }
  }
  mock_data "aws_caller_identity" {
    defaults = { account_id = "123456789012" }
  }
}

variables {
  env                = "test"
  owner              = "test@example.net"
  expiry             = "2099-12-31"
  region             = "us-west-2"
  availability_zone  = "us-west-2a"
  client_cidrs       = ["10.77.0.0/16"]
  gpu_ami_id         = "ami-0123456789abcdef0"
  ops_ami_id         = "ami-0123456789abcdef0"
  ssh_public_key     = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHUnM1Ky2q1k3WHt8mGeOb1hUzWJm9JZ1XJQy8k8wY3f test"
  alarm_emails       = ["test@example.net"]
  monthly_budget_usd = 1000
}

run "refuses_a_stack_name_that_is_no_prefix" {
  command = plan

  variables {
    stack_name = "Code Rack"
  }

  expect_failures = [var.stack_name]
}

run "refuses_a_project_that_is_no_tag" {
  command = plan

  variables {
    project = ""
  }

  expect_failures = [var.project]
}

run "refuses_an_env_with_spaces" {
  command = plan

  variables {
    env = "my test"
  }

  expect_failures = [var.env]
}

run "refuses_nobody_as_owner" {
  command = plan

  variables {
    owner = ""
  }

  expect_failures = [var.owner]
}

run "refuses_an_expiry_that_is_no_day" {
  command = plan

  variables {
    expiry = "2027-02-30"
  }

  expect_failures = [var.expiry]
}

run "refuses_an_expiry_in_the_past" {
  command = plan

  variables {
    expiry = "2020-01-01"
  }

  expect_failures = [terraform_data.preflight, check.expiry_lasts]
}

run "refuses_a_region_by_its_city" {
  command = plan

  variables {
    region = "Oregon"
  }

  expect_failures = [var.region]
}

run "refuses_a_zone_of_another_region" {
  command = plan

  variables {
    availability_zone = "us-east-1a"
  }

  expect_failures = [var.availability_zone]
}

run "refuses_a_vpc_range_off_its_network_address" {
  command = plan

  variables {
    vpc_cidr = "10.77.3.0/16"
  }

  expect_failures = [var.vpc_cidr]
}

run "refuses_a_vpc_larger_than_aws_makes" {
  command = plan

  variables {
    vpc_cidr = "10.0.0.0/8"
  }

  expect_failures = [var.vpc_cidr]
}

run "refuses_a_private_subnet_outside_the_vpc" {
  command = plan

  variables {
    private_subnet_cidr = "10.78.0.0/24"
  }

  expect_failures = [var.private_subnet_cidr]
}

run "refuses_a_private_subnet_larger_than_the_vpc" {
  command = plan

  variables {
    private_subnet_cidr = "10.0.0.0/8"
  }

  expect_failures = [var.private_subnet_cidr]
}

run "refuses_a_private_subnet_off_its_network_address" {
  command = plan

  variables {
    private_subnet_cidr = "10.77.0.5/24"
  }

  expect_failures = [var.private_subnet_cidr]
}

run "refuses_a_public_subnet_outside_the_vpc" {
  command = plan

  variables {
    public_subnet_cidr = "192.168.0.0/24"
  }

  expect_failures = [var.public_subnet_cidr]
}

run "refuses_subnets_that_are_the_same" {
  command = plan

  variables {
    public_subnet_cidr = "10.77.0.0/24"
  }

  expect_failures = [var.public_subnet_cidr]
}

run "refuses_a_public_subnet_inside_the_private_one" {
  command = plan

  variables {
    private_subnet_cidr = "10.77.0.0/20"
  }

  expect_failures = [var.public_subnet_cidr]
}

run "refuses_an_unknown_egress" {
  command = plan

  variables {
    egress = "proxy"
  }

  expect_failures = [var.egress]
}

run "refuses_an_unknown_administration" {
  command = plan

  variables {
    administration = "telnet"
  }

  expect_failures = [var.administration]
}

run "refuses_ssh_without_admin_cidrs" {
  command = plan

  variables {
    administration = "ssh"
  }

  expect_failures = [var.admin_cidrs]
}

run "refuses_ssh_from_the_whole_internet" {
  command = plan

  variables {
    admin_cidrs = ["0.0.0.0/0"]
  }

  expect_failures = [var.admin_cidrs]
}

run "refuses_ssh_from_half_the_internet" {
  command = plan

  variables {
    admin_cidrs = ["0.0.0.0/1", "128.0.0.0/1"]
  }

  expect_failures = [var.admin_cidrs]
}

run "refuses_an_admin_range_that_is_none" {
  command = plan

  variables {
    admin_cidrs = ["vpn"]
  }

  expect_failures = [var.admin_cidrs]
}

run "refuses_no_clients" {
  command = plan

  variables {
    client_cidrs = []
  }

  expect_failures = [var.client_cidrs]
}

run "refuses_a_zone_name_with_a_dot_at_the_end" {
  command = plan

  variables {
    private_zone_name = "coderack.internal."
  }

  expect_failures = [var.private_zone_name]
}

run "refuses_a_retention_that_cloudwatch_lacks" {
  command = plan

  variables {
    flow_log_days = 100
  }

  expect_failures = [var.flow_log_days]
}

run "refuses_no_gpu_nodes" {
  command = plan

  variables {
    gpu_node_names = []
  }

  expect_failures = [var.gpu_node_names]
}

run "refuses_an_odd_number_of_gpu_nodes" {
  command = plan

  variables {
    gpu_node_names = ["gpu-a", "gpu-b", "gpu-c"]
  }

  expect_failures = [var.gpu_node_names]
}

run "refuses_a_node_name_that_is_no_host_name" {
  command = plan

  variables {
    gpu_node_names = ["GPU_1", "gpu-b"]
  }

  expect_failures = [var.gpu_node_names]
}

run "refuses_a_node_name_twice" {
  command = plan

  variables {
    gpu_node_names = ["gpu-a", "gpu-a"]
  }

  expect_failures = [var.gpu_node_names]
}

run "refuses_an_instance_type_without_size" {
  command = plan

  variables {
    gpu_instance_type = "p5"
  }

  expect_failures = [var.gpu_instance_type]
}

run "refuses_half_a_gpu" {
  command = plan

  variables {
    gpus_per_node = 0.5
  }

  expect_failures = [var.gpus_per_node]
}

run "refuses_an_unknown_efa_layout" {
  command = plan

  variables {
    efa_layout = "both"
  }

  expect_failures = [var.efa_layout]
}

run "refuses_an_image_by_name" {
  command = plan

  variables {
    gpu_ami_id = "latest"
  }

  expect_failures = [var.gpu_ami_id]
}

run "refuses_a_small_gpu_disk" {
  command = plan

  variables {
    gpu_root_volume_gib = 8
  }

  expect_failures = [var.gpu_root_volume_gib]
}

run "refuses_an_ops_node_named_like_a_gpu_node" {
  command = plan

  variables {
    ops_node_name = "gpu-a"
  }

  expect_failures = [var.ops_node_name]
}

run "refuses_an_ops_type_without_size" {
  command = plan

  variables {
    ops_instance_type = "m7i"
  }

  expect_failures = [var.ops_instance_type]
}

run "refuses_an_ops_image_by_name" {
  command = plan

  variables {
    ops_ami_id = "debian"
  }

  expect_failures = [var.ops_ami_id]
}

run "refuses_a_small_ops_disk" {
  command = plan

  variables {
    ops_root_volume_gib = 8
  }

  expect_failures = [var.ops_root_volume_gib]
}

run "refuses_user_data_that_cloud_init_ignores" {
  command = plan

  variables {
    user_data = "apt-get install agent"
  }

  expect_failures = [var.user_data]
}

run "refuses_a_private_key" {
  command = plan

  variables {
    ssh_public_key = "-----BEGIN OPENSSH PRIVATE KEY-----"
  }

  expect_failures = [var.ssh_public_key]
}

run "refuses_weights_kept_for_no_day" {
  command = plan

  variables {
    weights_noncurrent_days = 0
  }

  expect_failures = [var.weights_noncurrent_days]
}

run "refuses_a_secret_kept_for_a_day" {
  command = plan

  variables {
    secret_recovery_days = 1
  }

  expect_failures = [var.secret_recovery_days]
}

run "refuses_an_alarm_address_that_is_none" {
  command = plan

  variables {
    alarm_emails = ["oncall"]
  }

  expect_failures = [var.alarm_emails]
}

run "refuses_a_budget_of_nothing" {
  command = plan

  variables {
    monthly_budget_usd = 0
  }

  expect_failures = [var.monthly_budget_usd]
}

run "refuses_a_budget_that_nobody_hears_of" {
  command = plan

  variables {
    alarm_emails = []
  }

  expect_failures = [var.monthly_budget_usd, check.somebody_hears]
}
