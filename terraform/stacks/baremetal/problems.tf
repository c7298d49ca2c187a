# What can be wrong with the declared hosts, found here and refused in outputs.tf. Each list names the offenders with the
# value seen; empty means that all is well.

locals {
  gpu_nodes = [for node in var.nodes : node if node.role == "gpu"]
  ops_nodes = [for node in var.nodes : node if node.role == "ops"]

  # Ansible gives these names a meaning of its own.
  reserved_names   = ["all", "localhost", "ungrouped"]
  host_name        = "^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\\.)*[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
  private_networks = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"]
  # As the kernel names InfiniBand devices, as Azure's naming service does, or as rdma-core does by PCI place (ibp24s0f0).
  # A name that begins with roce is Ethernet.
  hca_name = "^(mlx5_(ib)?[0-9]{1,3}|ibP?[0-9]*p[0-9]+s[0-9]+(f[0-9]+)?)$"

  # Whoever writes 10.0.0.07 or 10.0.0.300 means an address and has misspelt it.
  is_ipv4 = { for address in local.addresses : address => try(cidrhost("${address}/32", 0) == address, false) }
  is_private = { for address in local.addresses : address => local.is_ipv4[address] && anytrue([
    # Cut to a network's prefix, an address inside has that network's own address.
    for network in local.private_networks : try(cidrhost("${address}/${split("/", network)[1]}", 0) == split("/", network)[0], false)
    # First and last address of a network are never a host's.
  ]) && !contains(flatten([for network in local.private_networks : [cidrhost(network, 0), cidrhost(network, -1)]]), address) }
  # Nobody's address, or that of many (224.0.0.0/4).
  no_host   = "^(0\\.0\\.0\\.0|(22[4-9]|23[0-9])\\..*)$"
  addresses = toset(concat(var.nodes[*].address, var.nodes[*].private_address))

  wrong_roles = [for node in var.nodes : "${node.name} has role \"${node.role}\"" if !contains(["gpu", "ops"], node.role)]

  wrong_names = [
    for node in var.nodes : "\"${node.name}\""
    if !can(regex("^[a-z]([a-z0-9-]{0,30}[a-z0-9])?$", node.name)) || contains(local.reserved_names, node.name)
  ]
  double_names = distinct([
    for node in var.nodes : node.name if length([for other in var.nodes : other if other.name == node.name]) > 1
  ])

  wrong_addresses = [
    for node in var.nodes : "${node.name} has address \"${node.address}\""
    if can(regex(local.no_host, node.address)) || length(node.address) > 253 || !local.is_ipv4[node.address] && (
      can(regex("^[0-9.]+$", node.address)) || !can(regex(local.host_name, node.address))
    )
  ]
  public_addresses = [
    for node in var.nodes : "${node.name} has private_address \"${node.private_address}\""
    if !local.is_private[node.private_address]
  ]
  # One node may use one address for both purposes; two nodes may share none.
  double_addresses = [
    for address in local.addresses : "${address} belongs to ${join(" and ", [
      for node in var.nodes : node.name if contains([node.address, node.private_address], address)
    ])}"
    if length([for node in var.nodes : node if contains([node.address, node.private_address], address)]) > 1
  ]

  wrong_gpu_counts = [
    for node in local.gpu_nodes : "${node.name} has ${node.gpus.count} GPUs" if node.gpus.count != var.gpus_per_node
  ]
  wrong_gpu_models = [
    for node in local.gpu_nodes : "${node.name} has gpus.model \"${node.gpus.model}\""
    if node.gpus.model == "none" || !can(regex("^[A-Za-z0-9][A-Za-z0-9 ._:/()+-]{0,99}$", node.gpus.model))
  ]
  gpu_models = distinct(local.gpu_nodes[*].gpus.model)
  accelerated_ops = [
    for node in local.ops_nodes : "${node.name} has ${node.gpus.count} GPUs and fabric ${node.fabric.kind}"
    if node.gpus.count != 0 || node.fabric.kind != "none"
  ]

  wrong_fabrics = [
    for node in var.nodes : "${node.name} has fabric.kind \"${node.fabric.kind}\""
    if !contains(["infiniband", "none"], node.fabric.kind)
  ]
  fabric_kinds = distinct(local.gpu_nodes[*].fabric.kind)
  wrong_hca_counts = [
    for node in local.gpu_nodes : "${node.name} has fabric ${node.fabric.kind} and ${length(node.fabric.devices)} HCAs"
    if length(node.fabric.devices) != (node.fabric.kind == "none" ? 0 : var.hcas_per_node)
  ]
  wrong_hca_names = flatten([
    for node in var.nodes : [
      for device in node.fabric.devices : "${node.name} has HCA \"${device.name}\"" if !can(regex(local.hca_name, device.name))
    ]
  ])
  double_hcas = [
    for node in var.nodes : "${node.name} lists ${join(" ", node.fabric.devices[*].name)}"
    if length(distinct(node.fabric.devices[*].name)) != length(node.fabric.devices)
  ]
  # Exactly 0 … n-1, so that the n-th device of every node is on the same switch.
  wrong_rails = [
    for node in var.nodes : "${node.name} has rails ${join(" ", node.fabric.devices[*].rail)}"
    if length(setsubtract(range(length(node.fabric.devices)), node.fabric.devices[*].rail)) > 0
  ]
}
