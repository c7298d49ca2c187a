output "fleet" {
  description = "The machines, for `coderack fleet write`."
  value = {
    version = 1
    stack   = "aws"
    region  = var.region
    # What does not apply to a node is left out, not null.
    nodes = [for node in local.nodes : { for key, value in node : key => value if value != null }]
  }
}

output "weights_bucket" {
  description = "Where the model's weights are uploaded to."
  value       = module.weights.bucket
}

output "api_keys_secret" {
  description = "Secret of the gateway's API keys, empty until `coderack keys rotate` writes it."
  value       = module.access.api_keys_secret
}

output "alarm_topic" {
  description = "SNS topic of the alarms."
  value       = module.alarms.topic_arn
}
