output "fleet" {
  description = "The machines, for `coderack fleet write`."
  value = {
    version = 1
    stack   = "baremetal"
    nodes = [
      for node in var.nodes : {
        name            = node.name
        role            = node.role
        address         = node.address
        private_address = node.private_address
        gpus            = node.gpus
        fabric = {
          kind = node.fabric.kind
          # In the order of their rails: the n-th device of every node is on the same leaf switch.
          devices = [
            for rail in range(length(node.fabric.devices)) : one([for device in node.fabric.devices : device.name if device.rail == rail])
          ]
        }
      }
    ]
  }

  # Roles and numbers

  precondition {
    condition     = length(local.wrong_roles) == 0
    error_message = "nodes: ${join(", ", local.wrong_roles)}; give gpu (serves the model) or ops (gateway and monitoring)."
  }
  precondition {
    condition     = length(local.ops_nodes) == 1
    error_message = "nodes has ${length(local.ops_nodes)} of role ops [${join(", ", local.ops_nodes[*].name)}]; declare exactly one: gateway and monitoring run there."
  }
  precondition {
    condition     = length(local.gpu_nodes) > 0 && length(local.gpu_nodes) % 2 == 0
    error_message = "nodes has ${length(local.gpu_nodes)} of role gpu [${join(", ", local.gpu_nodes[*].name)}]; declare an even number, at least two: groups are made of pairs. Add the missing node or leave one out."
  }

  # Names and addresses

  precondition {
    condition     = length(local.wrong_names) == 0
    error_message = "nodes has the names ${join(", ", local.wrong_names)}; names become host names: lower-case letters, digits and inner hyphens, a letter first, at most 32 characters, and none of Ansible's own (${join(", ", local.reserved_names)})."
  }
  precondition {
    condition     = length(local.double_names) == 0
    error_message = "nodes has a name twice: ${join(", ", local.double_names)}. Give every node its own."
  }
  precondition {
    condition     = length(local.wrong_addresses) == 0
    error_message = "nodes: ${join(", ", local.wrong_addresses)}; give the IPv4 address or the lower-case host name at which SSH reaches the node, without user or port."
  }
  precondition {
    condition     = length(local.public_addresses) == 0
    error_message = "nodes: ${join(", ", local.public_addresses)}; give the IPv4 address of a host in ${join(", ", local.private_networks)}: what the nodes say to each other is not encrypted. A public address for SSH belongs in address."
  }
  precondition {
    condition     = length(local.double_addresses) == 0
    error_message = "nodes: ${join(", ", local.double_addresses)}; give every node addresses of its own."
  }

  # GPUs

  precondition {
    condition     = length(local.wrong_gpu_counts) == 0
    error_message = "nodes: ${join(", ", local.wrong_gpu_counts)}; wanted ${var.gpus_per_node} on every GPU node. Correct gpus.count, leave a pair with a missing GPU out until it is repaired, or set gpus_per_node if your machines have another number."
  }
  precondition {
    condition     = length(local.wrong_gpu_models) == 0
    error_message = "nodes: ${join(", ", local.wrong_gpu_models)}; give the name that `nvidia-smi -L` prints, such as \"NVIDIA H100 80GB HBM3\"."
  }
  precondition {
    condition     = length(local.gpu_models) <= 1
    error_message = "nodes has GPUs of ${length(local.gpu_models)} models: ${join(", ", local.gpu_models)}; give one on all GPU nodes: a group is as fast as its slowest GPU, and a profile is computed for one model."
  }
  precondition {
    condition     = length(local.accelerated_ops) == 0
    error_message = "nodes: ${join(", ", local.accelerated_ops)}; leave gpus and fabric out on the ops node, or give it role gpu."
  }

  # Fabric

  precondition {
    condition     = length(local.wrong_fabrics) == 0
    error_message = "nodes: ${join(", ", local.wrong_fabrics)}; give infiniband, or none where there is only Ethernet. EFA exists on AWS only: use the stack aws there."
  }
  precondition {
    condition     = length(local.fabric_kinds) <= 1
    error_message = "nodes mixes fabrics: ${join(", ", [for node in local.gpu_nodes : "${node.name} has ${node.fabric.kind}"])}; give the same on all GPU nodes: one group cannot mix them."
  }
  precondition {
    condition     = length(local.wrong_hca_counts) == 0
    error_message = "nodes: ${join(", ", local.wrong_hca_counts)}; wanted ${var.hcas_per_node} in fabric.devices with infiniband and none without. List those that `ibv_devices` shows for the GPU network, or set hcas_per_node if your machines have another number."
  }
  precondition {
    condition     = length(local.wrong_hca_names) == 0
    error_message = "nodes: ${join(", ", local.wrong_hca_names)}; give the device as `ibv_devices` prints it, such as mlx5_0: no port, no network interface, no RoCE device."
  }
  precondition {
    condition     = length(local.double_hcas) == 0
    error_message = "nodes: ${join(", ", local.double_hcas)}; list every HCA once."
  }
  precondition {
    condition     = length(local.wrong_rails) == 0
    error_message = "nodes: ${join(", ", local.wrong_rails)}; wanted every rail from 0 to ${var.hcas_per_node - 1} exactly once on a node: each HCA on its own leaf switch, numbered the same on all nodes. `ibnetdiscover` shows which switch a device is on."
  }
}
