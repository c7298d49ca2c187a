# The declared hosts and what is refused of them. Nothing is asked of anybody: there is no provider.

variables {
  # Two GPU nodes as they are sold: eight GPUs, each with an HCA of its own. gpu-b's HCAs were found in another order.
  nodes = [
    {
      name   = "gpu-a", role = "gpu", address = "gpu-a.example.net", private_address = "10.20.0.11"
      gpus   = { model = "NVIDIA H100 80GB HBM3", count = 8 }
      fabric = { kind = "infiniband", devices = [for rail in range(8) : { name = "mlx5_${rail}", rail = rail }] }
    },
    {
      name   = "gpu-b", role = "gpu", address = "203.0.113.12", private_address = "10.20.0.12"
      gpus   = { model = "NVIDIA H100 80GB HBM3", count = 8 }
      fabric = { kind = "infiniband", devices = [for rail in range(8) : { name = "mlx5_${7 - rail}", rail = rail }] }
    },
    { name = "ops", role = "ops", address = "10.20.0.10", private_address = "10.20.0.10" },
  ]
}

run "the_output_is_the_contract" {
  command = plan

  assert {
    condition     = output.fleet.version == 1 && output.fleet.stack == "baremetal"
    error_message = "The contract's version is 1, the stack's name baremetal."
  }
  assert {
    condition = output.fleet.nodes[1] == {
      name            = "gpu-b"
      role            = "gpu"
      address         = "203.0.113.12"
      private_address = "10.20.0.12"
      gpus            = { model = "NVIDIA H100 80GB HBM3", count = 8 }
      fabric          = { kind = "infiniband", devices = ["mlx5_7", "mlx5_6", "mlx5_5", "mlx5_4", "mlx5_3", "mlx5_2", "mlx5_1", "mlx5_0"] }
    }
    error_message = "A node's devices are its HCAs in the order of their rails."
  }
  assert {
    condition     = output.fleet.nodes[2].gpus == { model = "none", count = 0 } && output.fleet.nodes[2].fabric.kind == "none"
    error_message = "The ops node has no GPUs and no fabric."
  }
}

run "half_as_many_hcas_are_fine_when_said" {
  command = plan

  variables {
    hcas_per_node = 4
    nodes = concat(
      [for node in slice(var.nodes, 0, 2) : merge(node, {
        fabric = { kind = "infiniband", devices = [for rail in range(4) : { name = "ibp${rail}s0f0", rail = rail }] }
      })],
      [var.nodes[2]],
    )
  }

  assert {
    condition     = output.fleet.nodes[0].fabric.devices == ["ibp0s0f0", "ibp1s0f0", "ibp2s0f0", "ibp3s0f0"]
    error_message = "Names by PCI place are InfiniBand devices too."
  }
}

run "nodes_without_infiniband_have_no_devices" {
  command = plan

  variables {
    nodes = concat([for node in slice(var.nodes, 0, 2) : merge(node, { fabric = { kind = "none" } })], [var.nodes[2]])
  }

  assert {
    condition     = alltrue([for node in output.fleet.nodes : node.fabric.kind == "none" && length(node.fabric.devices) == 0])
    error_message = "No InfiniBand, no devices."
  }
}

run "numbers_per_node_are_whole_and_possible" {
  command = plan

  variables {
    gpus_per_node = 0
    hcas_per_node = 8.5
  }

  expect_failures = [var.gpus_per_node, var.hcas_per_node]
}

# Refused, each for itself. The messages are tested in tests/terraform/test_baremetal.py.

run "refused_a_role_that_does_not_exist" {
  command = plan

  variables {
    nodes = concat(slice(var.nodes, 0, 2), [merge(var.nodes[2], { role = "head" })])
  }

  expect_failures = [output.fleet]
}

run "refused_no_ops_node" {
  command = plan

  variables {
    nodes = slice(var.nodes, 0, 2)
  }

  expect_failures = [output.fleet]
}

run "refused_two_ops_nodes" {
  command = plan

  variables {
    nodes = concat(var.nodes, [{ name = "ops-b", role = "ops", address = "10.20.0.9", private_address = "10.20.0.9" }])
  }

  expect_failures = [output.fleet]
}

run "refused_no_gpu_node" {
  command = plan

  variables {
    nodes = [var.nodes[2]]
  }

  expect_failures = [output.fleet]
}

run "refused_an_odd_number_of_gpu_nodes" {
  command = plan

  variables {
    nodes = [var.nodes[0], var.nodes[2]]
  }

  expect_failures = [output.fleet]
}

run "refused_a_name_that_is_no_host_name" {
  command = plan

  variables {
    nodes = concat([merge(var.nodes[0], { name = "GPU_A" })], slice(var.nodes, 1, 3))
  }

  expect_failures = [output.fleet]
}

run "refused_a_name_of_ansibles" {
  command = plan

  variables {
    nodes = concat([merge(var.nodes[0], { name = "all" })], slice(var.nodes, 1, 3))
  }

  expect_failures = [output.fleet]
}

run "refused_a_name_twice" {
  command = plan

  variables {
    nodes = concat([merge(var.nodes[0], { name = "gpu-b" })], slice(var.nodes, 1, 3))
  }

  expect_failures = [output.fleet]
}

run "refused_an_address_with_a_user" {
  command = plan

  variables {
    nodes = concat([merge(var.nodes[0], { address = "root@gpu-a" })], slice(var.nodes, 1, 3))
  }

  expect_failures = [output.fleet]
}

run "refused_an_address_out_of_range" {
  command = plan

  variables {
    nodes = concat([merge(var.nodes[0], { address = "10.20.0.300" })], slice(var.nodes, 1, 3))
  }

  expect_failures = [output.fleet]
}

run "refused_a_public_cluster_address" {
  command = plan

  variables {
    nodes = concat([merge(var.nodes[0], { private_address = "198.51.100.11" })], slice(var.nodes, 1, 3))
  }

  expect_failures = [output.fleet]
}

run "refused_a_cluster_address_just_outside_a_private_network" {
  command = plan

  variables {
    nodes = concat([merge(var.nodes[0], { private_address = "172.32.0.1" })], slice(var.nodes, 1, 3))
  }

  expect_failures = [output.fleet]
}

run "refused_a_cluster_address_with_leading_zeros" {
  command = plan

  variables {
    nodes = concat([merge(var.nodes[0], { private_address = "10.20.0.011" })], slice(var.nodes, 1, 3))
  }

  expect_failures = [output.fleet]
}

run "refused_an_address_of_two_nodes" {
  command = plan

  variables {
    nodes = concat([merge(var.nodes[0], { address = "10.20.0.12" })], slice(var.nodes, 1, 3))
  }

  expect_failures = [output.fleet]
}

run "refused_a_node_with_a_gpu_missing" {
  command = plan

  variables {
    nodes = concat([merge(var.nodes[0], { gpus = { model = "NVIDIA H100 80GB HBM3", count = 7 } })], slice(var.nodes, 1, 3))
  }

  expect_failures = [output.fleet]
}

run "refused_a_gpu_node_without_gpus" {
  command = plan

  variables {
    nodes = concat([merge(var.nodes[0], { gpus = { model = "none", count = 0 } })], slice(var.nodes, 1, 3))
  }

  expect_failures = [output.fleet]
}

run "refused_a_gpu_model_that_ansible_would_template" {
  command = plan

  variables {
    nodes = concat([merge(var.nodes[0], { gpus = { model = "{{ x }}", count = 8 } })], slice(var.nodes, 1, 3))
  }

  expect_failures = [output.fleet]
}

run "refused_two_gpu_models" {
  command = plan

  variables {
    nodes = concat([merge(var.nodes[0], { gpus = { model = "NVIDIA H200", count = 8 } })], slice(var.nodes, 1, 3))
  }

  expect_failures = [output.fleet]
}

run "refused_an_ops_node_with_gpus" {
  command = plan

  variables {
    nodes = concat(slice(var.nodes, 0, 2), [merge(var.nodes[2], { gpus = { model = "NVIDIA L4", count = 1 } })])
  }

  expect_failures = [output.fleet]
}

run "refused_efa" {
  command = plan

  variables {
    nodes = concat([for node in slice(var.nodes, 0, 2) : merge(node, { fabric = { kind = "efa" } })], [var.nodes[2]])
  }

  expect_failures = [output.fleet]
}

run "refused_two_fabrics" {
  command = plan

  variables {
    nodes = concat([merge(var.nodes[0], { fabric = { kind = "none" } })], slice(var.nodes, 1, 3))
  }

  expect_failures = [output.fleet]
}

run "refused_too_few_hcas" {
  command = plan

  variables {
    nodes = concat([merge(var.nodes[0], { fabric = { kind = "infiniband", devices = slice(var.nodes[0].fabric.devices, 0, 4) } })], slice(var.nodes, 1, 3))
  }

  expect_failures = [output.fleet]
}

run "refused_hcas_without_infiniband" {
  command = plan

  variables {
    nodes = concat([for node in slice(var.nodes, 0, 2) : merge(node, { fabric = merge(node.fabric, { kind = "none" }) })], [var.nodes[2]])
  }

  expect_failures = [output.fleet]
}

run "refused_an_hca_with_a_port" {
  command = plan

  variables {
    nodes = concat([merge(var.nodes[0], { fabric = { kind = "infiniband", devices = [for device in var.nodes[0].fabric.devices : merge(device, { name = "${device.name}:1" })] } })], slice(var.nodes, 1, 3))
  }

  expect_failures = [output.fleet]
}

run "refused_an_hca_that_is_roce" {
  command = plan

  variables {
    nodes = concat([merge(var.nodes[0], { fabric = { kind = "infiniband", devices = [for device in var.nodes[0].fabric.devices : merge(device, { name = "rocep${device.rail}s0" })] } })], slice(var.nodes, 1, 3))
  }

  expect_failures = [output.fleet]
}

run "refused_an_hca_twice" {
  command = plan

  variables {
    nodes = concat([merge(var.nodes[0], { fabric = { kind = "infiniband", devices = [for device in var.nodes[0].fabric.devices : merge(device, { name = "mlx5_0" })] } })], slice(var.nodes, 1, 3))
  }

  expect_failures = [output.fleet]
}

run "refused_two_hcas_on_one_rail" {
  command = plan

  variables {
    nodes = concat([merge(var.nodes[0], { fabric = { kind = "infiniband", devices = [for device in var.nodes[0].fabric.devices : merge(device, { rail = min(device.rail, 6) })] } })], slice(var.nodes, 1, 3))
  }

  expect_failures = [output.fleet]
}
