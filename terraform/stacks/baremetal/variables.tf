variable "nodes" {
  description = <<-EOT
    All machines: an even number with role gpu and exactly one with role ops.

    name             becomes the host name
    role             gpu or ops
    address          where SSH reaches it from your controller: an IPv4 address or a host name
    private_address  where the other nodes reach it: an IPv4 address of a private network
    gpus             GPU nodes only: model as nvidia-smi prints it, and count
    fabric           GPU nodes only: kind infiniband or none (TCP: fit for replicas, too slow for one group over two nodes),
                     and the HCAs as ibv_devices prints them, each with its rail: the number of its leaf switch, from 0
  EOT
  type = list(object({
    name            = string
    role            = string
    address         = string
    private_address = string
    gpus            = optional(object({ model = string, count = number }), { model = "none", count = 0 })
    fabric = optional(object({
      kind    = string
      devices = optional(list(object({ name = string, rail = number })), [])
    }), { kind = "none" })
  }))
  nullable = false

  # Here and not among the preconditions, since nothing can be said of a null, not even that it is wrong.
  validation {
    condition     = alltrue([for node in var.nodes : !can(regex("(^|[:\\[,])null([,}\\]]|$)", jsonencode(node)))])
    error_message = "nodes has null in ${join(" and ", [for node in var.nodes : jsonencode(node) if can(regex("(^|[:\\[,])null([,}\\]]|$)", jsonencode(node)))])}; give every value, or leave gpus and fabric out on the ops node."
  }
}

variable "gpus_per_node" {
  description = "How many GPUs every GPU node has. Serving profiles count on it; a node that differs is refused."
  type        = number
  default     = 8
  nullable    = false

  validation {
    condition     = contains(range(1, 17), var.gpus_per_node)
    error_message = "gpus_per_node is ${var.gpus_per_node}; give a whole number from 1 to 16: 8 for an HGX H100 board."
  }
}

variable "hcas_per_node" {
  description = "How many InfiniBand HCAs of every GPU node carry the traffic between GPUs: one for each GPU on most 8-GPU machines, 4 on some. HCAs for storage do not count and are not listed."
  type        = number
  default     = 8
  nullable    = false

  validation {
    condition     = contains(range(1, 17), var.hcas_per_node)
    error_message = "hcas_per_node is ${var.hcas_per_node}; give a whole number from 1 to 16: 8 where every GPU has an HCA of its own."
  }
}
