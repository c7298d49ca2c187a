# The kinds of capacity, and every reservation that cannot be used as asked.

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

run "on_demand_is_the_default" {
  command = plan

  assert {
    condition     = output.fleet.region == "us-west-2"
    error_message = "The fleet says its region."
  }
}

run "takes_an_on_demand_reservation_without_end" {
  command = plan

  variables {
    capacity = { kind = "odcr", reservation_id = "cr-0123456789abcdef0", zone = "us-west-2a" }
  }
}

run "takes_a_capacity_block" {
  command = plan

  variables {
    capacity = { kind = "capacity_block", reservation_id = "cr-0123456789abcdef0", zone = "us-west-2a", instance_type = "p5.48xlarge", count = 2, starts_at = "2026-01-01T11:30:00Z", ends_at = "2099-01-15T11:30:00Z" }
  }
}

run "takes_a_block_that_ends_in_an_hour_and_warns" {
  command = plan

  variables {
    capacity = { kind = "capacity_block", reservation_id = "cr-0123456789abcdef0", zone = "us-west-2a", instance_type = "p5.48xlarge", count = 2, starts_at = "2026-01-01T11:30:00Z", ends_at = timeadd(timestamp(), "1h") }
  }

  expect_failures = [check.reservation_lasts]
}

run "warns_of_an_expiry_within_a_week" {
  command = plan

  variables {
    expiry = formatdate("YYYY-MM-DD", timeadd(timestamp(), "72h"))
  }

  expect_failures = [check.expiry_lasts]
}

run "refuses_an_unknown_kind" {
  command = plan

  variables {
    capacity = { kind = "spot" }
  }

  expect_failures = [var.capacity]
}

run "refuses_a_reservation_that_would_not_be_used" {
  command = plan

  variables {
    capacity = { kind = "on_demand", reservation_id = "cr-0123456789abcdef0" }
  }

  expect_failures = [var.capacity]
}

run "refuses_odcr_without_reservation" {
  command = plan

  variables {
    capacity = { kind = "odcr", zone = "us-west-2a" }
  }

  expect_failures = [var.capacity]
}

run "refuses_a_block_without_reservation" {
  command = plan

  variables {
    capacity = { kind = "capacity_block", zone = "us-west-2a", instance_type = "p5.48xlarge", count = 2, starts_at = "2026-01-01T11:30:00Z", ends_at = "2099-01-15T11:30:00Z" }
  }

  expect_failures = [var.capacity]
}

run "refuses_a_reservation_id_that_is_none" {
  command = plan

  variables {
    capacity = { kind = "capacity_block", reservation_id = "my-block", zone = "us-west-2a", instance_type = "p5.48xlarge", count = 2, starts_at = "2026-01-01T11:30:00Z", ends_at = "2099-01-15T11:30:00Z" }
  }

  expect_failures = [var.capacity]
}

run "refuses_a_reservation_of_another_zone" {
  command = plan

  variables {
    capacity = { kind = "capacity_block", reservation_id = "cr-0123456789abcdef0", zone = "us-west-2b", instance_type = "p5.48xlarge", count = 2, starts_at = "2026-01-01T11:30:00Z", ends_at = "2099-01-15T11:30:00Z" }
  }

  expect_failures = [var.capacity]
}

run "refuses_a_reservation_of_unknown_zone" {
  command = plan

  variables {
    capacity = { kind = "capacity_block", reservation_id = "cr-0123456789abcdef0", instance_type = "p5.48xlarge", count = 2, starts_at = "2026-01-01T11:30:00Z", ends_at = "2099-01-15T11:30:00Z" }
  }

  expect_failures = [var.capacity]
}

run "refuses_a_reservation_of_another_type" {
  command = plan

  variables {
    capacity = { kind = "capacity_block", reservation_id = "cr-0123456789abcdef0", zone = "us-west-2a", instance_type = "p5en.48xlarge", count = 2, starts_at = "2026-01-01T11:30:00Z", ends_at = "2099-01-15T11:30:00Z" }
  }

  expect_failures = [var.capacity]
}

run "refuses_a_reservation_with_too_little_room" {
  command = plan

  variables {
    capacity = { kind = "capacity_block", reservation_id = "cr-0123456789abcdef0", zone = "us-west-2a", instance_type = "p5.48xlarge", count = 1, starts_at = "2026-01-01T11:30:00Z", ends_at = "2099-01-15T11:30:00Z" }
  }

  expect_failures = [var.capacity]
}

run "refuses_a_block_without_end" {
  command = plan

  variables {
    capacity = { kind = "capacity_block", reservation_id = "cr-0123456789abcdef0", zone = "us-west-2a", instance_type = "p5.48xlarge", count = 2, starts_at = "2026-01-01T11:30:00Z" }
  }

  expect_failures = [var.capacity]
}

run "refuses_a_time_that_is_none" {
  command = plan

  variables {
    capacity = { kind = "odcr", reservation_id = "cr-0123456789abcdef0", zone = "us-west-2a", ends_at = "tomorrow" }
  }

  expect_failures = [var.capacity]
}

run "refuses_a_reservation_that_has_ended" {
  command = plan

  variables {
    capacity = { kind = "capacity_block", reservation_id = "cr-0123456789abcdef0", zone = "us-west-2a", instance_type = "p5.48xlarge", count = 2, starts_at = "2026-01-01T11:30:00Z", ends_at = "2026-01-02T11:30:00Z" }
  }

  expect_failures = [terraform_data.preflight, check.reservation_lasts]
}

run "refuses_a_reservation_that_ends_within_30_minutes" {
  command = plan

  variables {
    capacity = { kind = "capacity_block", reservation_id = "cr-0123456789abcdef0", zone = "us-west-2a", instance_type = "p5.48xlarge", count = 2, starts_at = "2026-01-01T11:30:00Z", ends_at = timeadd(timestamp(), "29m") }
  }

  expect_failures = [terraform_data.preflight, check.reservation_lasts]
}

run "refuses_a_reservation_that_has_not_started" {
  command = plan

  variables {
    capacity = { kind = "capacity_block", reservation_id = "cr-0123456789abcdef0", zone = "us-west-2a", instance_type = "p5.48xlarge", count = 2, starts_at = "2098-01-01T11:30:00Z", ends_at = "2099-01-15T11:30:00Z" }
  }

  expect_failures = [terraform_data.preflight]
}

run "refuses_a_placement_group_for_a_block" {
  command = plan

  variables {
    capacity        = { kind = "capacity_block", reservation_id = "cr-0123456789abcdef0", zone = "us-west-2a", instance_type = "p5.48xlarge", count = 2, starts_at = "2026-01-01T11:30:00Z", ends_at = "2099-01-15T11:30:00Z" }
    placement_group = "mine"
  }

  expect_failures = [var.placement_group]
}

run "refuses_a_placement_group_for_on_demand" {
  command = plan

  variables {
    placement_group = "mine"
  }

  expect_failures = [var.placement_group]
}
