output "topic_arn" {
  description = "SNS topic of the alarms, for further subscribers."
  value       = aws_sns_topic.alarms.arn
}
