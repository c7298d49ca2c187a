variable "name" {
  description = "Beginning of the bucket's name."
  type        = string
}

variable "kms_key_arn" {
  description = "Key that encrypts the objects."
  type        = string
}

variable "noncurrent_days" {
  description = "After how many days replaced and deleted objects are gone for good; null keeps them and sets no lifecycle rule."
  type        = number
}

variable "force_destroy" {
  description = "Whether a destroy deletes the weights with the bucket instead of refusing."
  type        = bool
}
