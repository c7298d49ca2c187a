# Every value that the stack refuses. A run is a plan of a second: values that do not hide each other share one, and each
# has to be refused. What the messages say is tested in tests/terraform/test_refusals.py.

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

run "refuses_values_that_are_no_such_thing" {
  command = plan

  variables {
    stack_name              = "Code Rack"
    project                 = ""
    env                     = "my test"
    owner                   = ""
    expiry                  = "2027-02-30"
    region                  = "Oregon"
    egress                  = "proxy"
    client_cidrs            = []
    private_zone_name       = "coderack.internal."
    flow_log_days           = 100
    gpu_node_names          = ["GPU_1", "gpu-b"]
    gpu_instance_type       = "p5"
    gpus_per_node           = 0.5
    efa_layout              = "both"
    gpu_ami_id              = "latest"
    gpu_root_volume_gib     = 8
    ops_instance_type       = "m7i"
    ops_ami_id              = "debian"
    ops_root_volume_gib     = 8
    user_data               = "apt-get install agent"
    ssh_public_key          = "-----BEGIN OPENSSH PRIVATE KEY-----"
    weights_noncurrent_days = 0
    secret_recovery_days    = 1
    alarm_emails            = ["oncall"]
  }

  expect_failures = [
    var.stack_name,
    var.project,
    var.env,
    var.owner,
    var.expiry,
    var.region,
    var.egress,
    var.client_cidrs,
    var.private_zone_name,
    var.flow_log_days,
    var.gpu_node_names,
    var.gpu_instance_type,
    var.gpus_per_node,
    var.efa_layout,
    var.gpu_ami_id,
    var.gpu_root_volume_gib,
    var.ops_instance_type,
    var.ops_ami_id,
    var.ops_root_volume_gib,
    var.user_data,
    var.ssh_public_key,
    var.weights_noncurrent_days,
    var.secret_recovery_days,
    var.alarm_emails,
  ]
}

run "refuses_ranges_outside_the_vpc_and_a_zone_of_another_region" {
  command = plan

  variables {
    availability_zone   = "us-east-1a"
    private_subnet_cidr = "10.78.0.0/24"
    admin_cidrs         = ["0.0.0.0/0"]
    gpu_node_names      = []
    administration      = "ssh"
    monthly_budget_usd  = 0
  }

  expect_failures = [
    var.availability_zone,
    var.private_subnet_cidr,
    var.admin_cidrs,
    var.gpu_node_names,
    var.monthly_budget_usd,
  ]
}

run "refuses_a_public_subnet_outside_the_vpc_and_ssh_without_anybody" {
  command = plan

  variables {
    public_subnet_cidr = "192.168.0.0/24"
    administration     = "ssh"
    gpu_node_names     = ["gpu-a", "gpu-a"]
    alarm_emails       = []
  }

  expect_failures = [
    var.public_subnet_cidr,
    var.admin_cidrs,
    var.gpu_node_names,
    var.monthly_budget_usd,
    check.somebody_hears,
  ]
}

run "refuses_a_vpc_off_its_network_address_and_odd_nodes" {
  command = plan

  variables {
    vpc_cidr       = "10.77.3.0/16"
    gpu_node_names = ["gpu-a", "gpu-b", "gpu-c"]
    admin_cidrs    = ["0.0.0.0/1", "128.0.0.0/1"]
    administration = "telnet"
  }

  expect_failures = [var.vpc_cidr, var.gpu_node_names, var.administration]
}

run "refuses_a_vpc_larger_than_aws_makes_and_half_the_internet" {
  command = plan

  variables {
    vpc_cidr      = "10.0.0.0/8"
    admin_cidrs   = ["0.0.0.0/1", "128.0.0.0/1"]
    ops_node_name = "gpu-a"
  }

  expect_failures = [var.vpc_cidr, var.admin_cidrs, var.ops_node_name]
}

run "refuses_a_private_subnet_larger_than_the_vpc_and_an_admin_range_that_is_none" {
  command = plan

  variables {
    private_subnet_cidr = "10.0.0.0/8"
    admin_cidrs         = ["vpn"]
  }

  expect_failures = [var.private_subnet_cidr, var.admin_cidrs]
}

run "refuses_a_private_subnet_off_its_network_address" {
  command = plan

  variables {
    private_subnet_cidr = "10.77.0.5/24"
  }

  expect_failures = [var.private_subnet_cidr]
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

run "refuses_an_expiry_in_the_past" {
  command = plan

  variables {
    expiry = "2020-01-01"
  }

  expect_failures = [terraform_data.preflight, check.expiry_lasts]
}
