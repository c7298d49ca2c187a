variable "name" {
  description = "Prefix of the names of all resources."
  type        = string
}

variable "region" {
  description = "Region, as in the names of AWS services."
  type        = string
}

variable "availability_zone" {
  description = "The one zone of both subnets."
  type        = string
}

variable "vpc_cidr" {
  description = "Address range of the VPC."
  type        = string
}

variable "private_subnet_cidr" {
  description = "Address range of the subnet of all nodes."
  type        = string
}

variable "public_subnet_cidr" {
  description = "Address range of the subnet of the NAT gateway; unused without one."
  type        = string
}

variable "egress" {
  description = "nat: a NAT gateway to the internet. endpoints: no way to the internet, interface endpoints for the AWS services that nodes call."
  type        = string
}

variable "flow_log_days" {
  description = "For how many days the VPC's flow log is kept; null for no flow log."
  type        = number
}

variable "kms_key_arn" {
  description = "Key that encrypts the flow log."
  type        = string
}
