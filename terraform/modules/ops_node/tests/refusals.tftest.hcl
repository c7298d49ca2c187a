# What the ops node's type and image have to be.

mock_provider "aws" {
  mock_data "aws_ec2_instance_type_offerings" {
    defaults = { instance_types = ["m7i.2xlarge"] }
  }
  mock_data "aws_ec2_instance_type" {
    defaults = {
      auto_recovery_supported = true
      supported_architectures = ["x86_64"]
    }
  }
  mock_data "aws_ami" {
    defaults = { architecture = "x86_64" }
  }
}

variables {
  name                   = "test"
  node_name              = "ops"
  instance_type          = "m7i.2xlarge"
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
  admin_cidrs            = []
  client_cidrs           = ["10.77.0.0/16"]
}

run "clients_reach_the_gateway_and_nobody_ssh" {
  command = plan

  assert {
    condition     = [for rule in aws_vpc_security_group_ingress_rule.gateway : [rule.from_port, rule.to_port, rule.cidr_ipv4]] == [[443, 443, "10.77.0.0/16"]]
    error_message = "One rule per client range, for 443."
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

run "a_type_that_cannot_be_recovered_is_refused" {
  command = plan

  override_data {
    target = data.aws_ec2_instance_type.ops
    values = { auto_recovery_supported = false, supported_architectures = ["x86_64"] }
  }

  expect_failures = [data.aws_ec2_instance_type.ops]
}

run "an_image_of_another_architecture_is_refused" {
  command = plan

  override_data {
    target = data.aws_ami.ops
    values = { architecture = "arm64" }
  }

  expect_failures = [data.aws_ami.ops]
}
