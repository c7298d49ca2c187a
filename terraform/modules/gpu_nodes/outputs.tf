output "nodes" {
  description = "The nodes as the fleet contract describes them; what does not apply is null."
  value = [
    for name, instance in aws_instance.gpu : {
      name            = name
      role            = "gpu"
      address         = var.administration == "ssm" ? instance.id : instance.private_ip
      private_address = instance.private_ip
      instance_id     = instance.id
      instance_type   = instance.instance_type
      image_id        = instance.ami
      placement_group = local.placement_group
      zone            = instance.availability_zone
      gpus = {
        model = "${one(local.type.gpus).manufacturer} ${one(local.type.gpus).name}"
        count = one(local.type.gpus).count
      }
      fabric      = { kind = "efa", devices = [] }
      reservation = local.reserved ? { for key, value in { id = var.capacity.reservation_id, ends_at = var.capacity.ends_at } : key => value if value != null } : null
    }
  ]
}
