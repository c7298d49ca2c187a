# egress = "nat": the public subnet holds the NAT gateway and nothing else.

locals {
  nat = var.egress == "nat" ? 1 : 0
}

resource "aws_subnet" "public" {
  count = local.nat

  vpc_id            = aws_vpc.this.id
  availability_zone = var.availability_zone
  cidr_block        = var.public_subnet_cidr

  tags = { Name = "${var.name}-public" }
}

resource "aws_internet_gateway" "this" {
  count = local.nat

  vpc_id = aws_vpc.this.id

  tags = { Name = var.name }
}

resource "aws_eip" "nat" {
  count = local.nat

  domain = "vpc"

  tags = { Name = "${var.name}-nat" }
}

resource "aws_nat_gateway" "this" {
  count = local.nat

  subnet_id     = aws_subnet.public[0].id
  allocation_id = aws_eip.nat[0].id

  tags = { Name = var.name }

  depends_on = [aws_internet_gateway.this]
}

resource "aws_route_table" "public" {
  count = local.nat

  vpc_id = aws_vpc.this.id

  tags = { Name = "${var.name}-public" }
}

resource "aws_route" "private_out" {
  count = local.nat

  route_table_id         = aws_route_table.private.id
  destination_cidr_block = "0.0.0.0/0"
  nat_gateway_id         = aws_nat_gateway.this[0].id
}

resource "aws_route" "public_out" {
  count = local.nat

  route_table_id         = aws_route_table.public[0].id
  destination_cidr_block = "0.0.0.0/0"
  gateway_id             = aws_internet_gateway.this[0].id
}

resource "aws_route_table_association" "public" {
  count = local.nat

  subnet_id      = aws_subnet.public[0].id
  route_table_id = aws_route_table.public[0].id
}
