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
  description = "Address range of the subnet of the NAT gateway."
  type        = string
}
