output "vpc_id" {
  description = "Id of the VPC."
  value       = aws_vpc.this.id
}

output "private_subnet_id" {
  description = "Id of the subnet of all nodes. Known only when its ways out exist, so that nodes boot with network."
  value       = aws_subnet.private.id

  depends_on = [
    aws_route.private_out,
    aws_route_table_association.private,
    aws_vpc_endpoint.s3,
    aws_vpc_endpoint.service,
    aws_vpc_security_group_ingress_rule.endpoints,
  ]
}
