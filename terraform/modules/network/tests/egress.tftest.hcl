# The two ways out.

mock_provider "aws" {}

variables {
  name                = "test"
  region              = "us-west-2"
  availability_zone   = "us-west-2a"
  vpc_cidr            = "10.77.0.0/16"
  private_subnet_cidr = "10.77.0.0/24"
  public_subnet_cidr  = "10.77.1.0/24"
  egress              = "nat"
  flow_log_days       = null
  kms_key_arn         = "arn:aws:kms:us-west-2:123456789012:key/test"
}

run "nat_is_the_default_route_of_the_nodes" {
  command = plan

  assert {
    condition     = length(aws_nat_gateway.this) == 1 && aws_route.private_out[0].destination_cidr_block == "0.0.0.0/0"
    error_message = "The private subnet needs a route to the NAT gateway."
  }
  assert {
    condition     = length(aws_vpc_endpoint.service) == 0
    error_message = "With a NAT gateway, interface endpoints only cost money."
  }
}

run "endpoints_leave_no_way_to_the_internet" {
  command = plan

  variables {
    egress = "endpoints"
  }

  assert {
    condition     = length(aws_internet_gateway.this) + length(aws_nat_gateway.this) + length(aws_subnet.public) + length(aws_route.private_out) == 0
    error_message = "Nothing of the way to the internet may be left."
  }
  assert {
    condition     = keys(aws_vpc_endpoint.service) == ["ec2messages", "secretsmanager", "ssm", "ssmmessages"]
    error_message = "Session Manager needs three endpoints, the API keys one."
  }
  assert {
    condition     = aws_vpc_endpoint.s3.vpc_endpoint_type == "Gateway"
    error_message = "Weights come through the gateway endpoint in any case."
  }
}

run "a_flow_log_is_kept_as_long_as_asked" {
  command = plan

  variables {
    flow_log_days = 365
  }

  assert {
    condition     = aws_cloudwatch_log_group.flow_log[0].retention_in_days == 365 && aws_flow_log.vpc[0].traffic_type == "ALL"
    error_message = "The flow log covers all traffic and is kept for flow_log_days."
  }
}
