variable "name" {
  description = "Prefix of the names of all resources."
  type        = string
}

variable "node_name" {
  description = "Name of the node."
  type        = string
}

variable "instance_type" {
  description = "Instance type; no GPU needed."
  type        = string
}

variable "ami_id" {
  description = "Image of a new node."
  type        = string
}

variable "root_volume_gib" {
  description = "Size of the root volume in GiB. It holds the metrics as well."
  type        = number
}

variable "key_name" {
  description = "EC2 key pair of the first login."
  type        = string
}

variable "termination_protection" {
  description = "Whether the API refuses to terminate the node."
  type        = bool
}

variable "vpc_id" {
  description = "VPC of the security group."
  type        = string
}

variable "subnet_id" {
  description = "Subnet of the node."
  type        = string
}

variable "availability_zone" {
  description = "Zone of the subnet."
  type        = string
}

variable "admin_cidrs" {
  description = "Address ranges that may open SSH connections."
  type        = set(string)
}

variable "client_cidrs" {
  description = "Address ranges that may use the gateway (443)."
  type        = set(string)
}
