variable "name" {
  description = "Prefix of the names of all resources."
  type        = string
}

variable "region" {
  description = "Region of the instances."
  type        = string
}

variable "partition" {
  description = "Partition of ARNs: aws, aws-us-gov or aws-cn."
  type        = string
}

variable "kms_key_arn" {
  description = "Key of the topic. Its policy has to let CloudWatch use it, or alarms are dropped in silence."
  type        = string
}

variable "emails" {
  description = "Who hears of alarms and of the budget."
  type        = set(string)
}

variable "instance_ids" {
  description = "Node name to instance id, of all nodes."
  type        = map(string)
}

variable "recovered" {
  description = "The node that EC2 may move to other hardware by itself."
  type        = object({ name = string, instance_id = string })
}

variable "monthly_budget_usd" {
  description = "Budget of the account in USD per month; null for none."
  type        = number
}
