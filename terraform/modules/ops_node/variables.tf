variable "name" {
  description = "Prefix of the names of all resources."
  type        = string
}

variable "node_name" {
  description = "Name of the node."
  type        = string
}

variable "instance_type" {
  description = "Instance type that EC2 can recover; no GPU needed."
  type        = string
}

variable "ami_id" {
  description = "Image of a new node, for the architecture of the type."
  type        = string
}

variable "root_volume_gib" {
  description = "Size of the root volume in GiB. It holds the metrics as well."
  type        = number
}

variable "user_data" {
  description = "cloud-init data of a new node; null for none."
  type        = string
}

variable "key_name" {
  description = "EC2 key pair of the first login."
  type        = string
}

variable "instance_profile" {
  description = "Instance profile of the node."
  type        = string
}

variable "administration" {
  description = "ssm: the node's address is its instance id, for SSH over Session Manager. ssh: it is its private address."
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
  description = "Address ranges that may open SSH connections; Session Manager needs none."
  type        = set(string)
}

variable "client_cidrs" {
  description = "Address ranges that may use the gateway (443)."
  type        = set(string)
}
