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

variable "efa_layout" {
  description = <<-EOT
    efa_primary: the primary interface is EFA and IP at once. ena_plus_efa_only: a plain primary interface and EFA-only ones beside it.
    Interfaces cannot change on an existing instance, so changing this replaces the nodes.
  EOT
  type        = string
}

variable "ami_id" {
  description = "Image of new nodes."
  type        = string
}

variable "root_volume_gib" {
  description = "Size of the root volume in GiB."
  type        = number
}

variable "key_name" {
  description = "EC2 key pair of the first login."
  type        = string
}

variable "termination_protection" {
  description = "Whether the API refuses to terminate the nodes."
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
  description = "Address ranges that may open SSH connections."
  type        = set(string)
}
