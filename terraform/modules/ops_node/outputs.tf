output "node" {
  description = "The node as the fleet contract describes it."
  value = {
    name            = var.node_name
    role            = "ops"
    address         = var.administration == "ssm" ? aws_instance.ops.id : aws_instance.ops.private_ip
    private_address = aws_instance.ops.private_ip
    instance_id     = aws_instance.ops.id
    instance_type   = aws_instance.ops.instance_type
    image_id        = aws_instance.ops.ami
    zone            = aws_instance.ops.availability_zone
    gpus            = { model = "none", count = 0 }
    fabric          = { kind = "none", devices = [] }
  }
}

output "security_group_id" {
  description = "The node's security group, for the rules that let it reach the GPU nodes."
  value       = aws_security_group.ops.id
}
