variable "name" {
  description = "Prefix of the names of all resources."
  type        = string
}

variable "node_names" {
  description = "Names of the nodes; each is one instance, whatever happens to the others."
  type        = set(string)
}

variable "instance_type" {
  description = "Instance type with GPUs and EFA."
  type        = string
}

variable "gpus_per_node" {
  description = "How many GPUs a node has to have."
  type        = number
}

variable "efa_layout" {
  description = <<-EOT
    efa_primary: the primary interface is EFA and IP at once. ena_plus_efa_only: a plain primary interface and EFA-only ones beside it.
    Interfaces cannot change on an existing instance, so changing this replaces the nodes.
  EOT
  type        = string
}

variable "capacity" {
  description = <<-EOT
    Where the machines come from. kind on_demand: what AWS has at the moment. odcr, capacity_block: the reservation of
    that id; ends_at says until when (RFC 3339), for a block always.
  EOT
  type = object({
    kind           = string
    reservation_id = optional(string)
    ends_at        = optional(string)
  })
}

variable "placement_group" {
  description = "Existing cluster placement group that an on-demand reservation was made in; null for none."
  type        = string
}

variable "ami_id" {
  description = "Image of new nodes, for the architecture of the type."
  type        = string
}

variable "root_volume_gib" {
  description = "Size of the root volume in GiB."
  type        = number
}

variable "user_data" {
  description = "cloud-init data of new nodes; null for none."
  type        = string
}

variable "key_name" {
  description = "EC2 key pair of the first login."
  type        = string
}

variable "instance_profile" {
  description = "Instance profile of the nodes."
  type        = string
}

variable "administration" {
  description = "ssm: the nodes' address is their instance id, for SSH over Session Manager. ssh: it is their private address."
  type        = string
}

variable "termination_protection" {
  description = "Whether the API refuses to terminate or stop the nodes."
  type        = bool
}

variable "vpc_id" {
  description = "VPC of the security group."
  type        = string
}

variable "subnet_id" {
  description = "Subnet of all interfaces."
  type        = string
}

variable "availability_zone" {
  description = "Zone of the subnet."
  type        = string
}

variable "ops_security_group_id" {
  description = "Security group that may reach vLLM and the node exporter."
  type        = string
}

variable "admin_cidrs" {
  description = "Address ranges that may open SSH connections; Session Manager needs none."
  type        = set(string)
}
