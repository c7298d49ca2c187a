# egress = "endpoints": what the nodes call of AWS is reached inside the VPC. Packages then come from a mirror that the
# private subnet can reach (peering, transit gateway, or a bucket in S3).

locals {
  # The agent of Systems Manager needs the first three; the ops node reads API keys from the last.
  interface_endpoints = var.egress == "endpoints" ? toset(["ssm", "ssmmessages", "ec2messages", "secretsmanager"]) : toset([])
}

resource "aws_security_group" "endpoints" {
  count = var.egress == "endpoints" ? 1 : 0

  name        = "${var.name}-endpoints"
  description = "Interface endpoints: HTTPS from the nodes' subnet"
  vpc_id      = aws_vpc.this.id

  tags = { Name = "${var.name}-endpoints" }
}

resource "aws_vpc_security_group_ingress_rule" "endpoints" {
  count = var.egress == "endpoints" ? 1 : 0

  security_group_id = aws_security_group.endpoints[0].id
  description       = "HTTPS from the nodes"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
  cidr_ipv4         = var.private_subnet_cidr
}

resource "aws_vpc_endpoint" "service" {
  for_each = local.interface_endpoints

  vpc_id              = aws_vpc.this.id
  service_name        = "com.amazonaws.${var.region}.${each.key}"
  vpc_endpoint_type   = "Interface"
  private_dns_enabled = true
  subnet_ids          = [aws_subnet.private.id]
  security_group_ids  = [aws_security_group.endpoints[0].id]

  tags = { Name = "${var.name}-${each.key}" }
}
