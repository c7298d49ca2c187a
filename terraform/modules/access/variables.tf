variable "name" {
  description = "Prefix of the names of all resources."
  type        = string
}

variable "region" {
  description = "Region, as in the names of AWS services."
  type        = string
}

variable "partition" {
  description = "Partition of ARNs: aws, aws-us-gov or aws-cn."
  type        = string
}

variable "dns_suffix" {
  description = "Domain of the partition's services, such as amazonaws.com."
  type        = string
}

variable "kms_key_arn" {
  description = "Key of the weights and of the secret."
  type        = string
}

variable "weights_bucket_arn" {
  description = "Bucket that GPU nodes read."
  type        = string
}

variable "secret_recovery_days" {
  description = "For how many days a deleted secret can be brought back: 7 to 30, or 0 for not at all."
  type        = number
}
