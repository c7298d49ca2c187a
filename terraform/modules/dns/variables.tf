variable "name" {
  description = "Name of the stack."
  type        = string
}

variable "zone_name" {
  description = "Name of the zone, such as coderack.internal."
  type        = string
}

variable "vpc_id" {
  description = "The one VPC that sees the zone."
  type        = string
}

variable "addresses" {
  description = "Host name to IPv4 address."
  type        = map(string)
}
