output "nodes" {
  description = "The nodes as the fleet contract describes them."
  value = [
    for name, instance in aws_instance.gpu : {
      name            = name
      role            = "gpu"
      address         = instance.private_ip
      private_address = instance.private_ip
      instance_id     = instance.id
      instance_type   = instance.instance_type
      zone            = instance.availability_zone
      gpus = {
        model = "${one(local.type.gpus).manufacturer} ${one(local.type.gpus).name}"
        count = one(local.type.gpus).count
      }
      fabric = { kind = "efa", devices = [] }
    }
  ]
}
