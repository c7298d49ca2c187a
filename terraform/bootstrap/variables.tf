variable "env" {
  description = "Name of the environment, the folder of inventories/. Each has a state of its own in the bucket."
  type        = string

  validation {
    condition     = can(regex("^[a-z0-9-]+$", var.env))
    error_message = "env is \"${var.env}\"; give the name of a folder of inventories/, such as aws."
  }
}

variable "region" {
  description = "Region of the bucket, best that of the machines: who can change these can then read their state."
  type        = string

  validation {
    condition     = can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]$", var.region))
    error_message = "region is \"${var.region}\"; give a region's name such as us-west-2 (make bootstrap ENV=… REGION=us-west-2)."
  }
}

variable "bucket" {
  description = "Name of the bucket; without one it is made of the account's number and the region."
  type        = string
  default     = null

  validation {
    condition     = var.bucket == null || can(regex("^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$", var.bucket))
    error_message = "bucket is \"${coalesce(var.bucket, "-")}\"; use 3 to 63 lower-case letters, digits and inner hyphens. Or leave it out: the name is then made of account and region."
  }
}

variable "max_retries" {
  description = "How often the AWS provider repeats a failing call."
  type        = number
  default     = 25
}
