resource "aws_security_group" "gpu" {
  name        = "${var.name}-gpu"
  description = "GPU nodes: EFA among themselves, serving and metrics for the ops node"
  vpc_id      = var.vpc_id

  tags = { Name = "${var.name}-gpu" }
}

# EFA needs both directions by group id; a CIDR rule does not count, and a missing one shows only as a hanging collective.
resource "aws_vpc_security_group_ingress_rule" "efa" {
  security_group_id            = aws_security_group.gpu.id
  description                  = "EFA: everything from the group itself"
  ip_protocol                  = "-1"
  referenced_security_group_id = aws_security_group.gpu.id
}

resource "aws_vpc_security_group_egress_rule" "efa" {
  security_group_id            = aws_security_group.gpu.id
  description                  = "EFA: everything to the group itself"
  ip_protocol                  = "-1"
  referenced_security_group_id = aws_security_group.gpu.id
}

resource "aws_vpc_security_group_egress_rule" "out" {
  security_group_id = aws_security_group.gpu.id
  description       = "Packages and weights"
  ip_protocol       = "-1"
  cidr_ipv4         = "0.0.0.0/0"
}

resource "aws_vpc_security_group_ingress_rule" "ops" {
  for_each = { vllm = 8000, node_exporter = 9100 }

  security_group_id            = aws_security_group.gpu.id
  description                  = "${each.key} for the ops node"
  ip_protocol                  = "tcp"
  from_port                    = each.value
  to_port                      = each.value
  referenced_security_group_id = var.ops_security_group_id
}

resource "aws_vpc_security_group_ingress_rule" "ssh" {
  for_each = var.admin_cidrs

  security_group_id = aws_security_group.gpu.id
  description       = "SSH for administrators"
  ip_protocol       = "tcp"
  from_port         = 22
  to_port           = 22
  cidr_ipv4         = each.key
}
