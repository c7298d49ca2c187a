# What AWS itself sees of the nodes and of the bill, for when the nodes' own monitoring cannot speak any more.

terraform {
  required_version = ">= 1.11"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 5.100"
    }
  }
}

resource "aws_sns_topic" "alarms" {
  name              = "${var.name}-alarms"
  kms_master_key_id = var.kms_key_arn
}

# Each address has to confirm by the link that AWS sends it.
resource "aws_sns_topic_subscription" "email" {
  for_each = var.emails

  topic_arn = aws_sns_topic.alarms.arn
  protocol  = "email"
  endpoint  = each.key
}

resource "aws_cloudwatch_metric_alarm" "status" {
  for_each = var.instance_ids

  alarm_name        = "${var.name}-${each.key}-status"
  alarm_description = "${each.key} fails EC2's status checks, or EC2 knows nothing of it. Restart it; if that does not help, replace it."
  namespace         = "AWS/EC2"
  metric_name       = "StatusCheckFailed"
  dimensions        = { InstanceId = each.value }

  statistic           = "Maximum"
  comparison_operator = "GreaterThanOrEqualToThreshold"
  threshold           = 1
  period              = 60
  evaluation_periods  = 3
  # No metric is what a stopped or terminated node gives: unknown is never healthy.
  treat_missing_data = "breaching"

  alarm_actions = [aws_sns_topic.alarms.arn]
  ok_actions    = [aws_sns_topic.alarms.arn]
}

# Recovery moves an instance to other hardware. GPU types do not support it, and lose their instance store by a move.
resource "aws_cloudwatch_metric_alarm" "recover" {
  alarm_name        = "${var.name}-${var.recovered.name}-recover"
  alarm_description = "The hardware of ${var.recovered.name} fails: EC2 moves it to another host."
  namespace         = "AWS/EC2"
  metric_name       = "StatusCheckFailed_System"
  dimensions        = { InstanceId = var.recovered.instance_id }

  statistic           = "Maximum"
  comparison_operator = "GreaterThanOrEqualToThreshold"
  threshold           = 1
  period              = 60
  evaluation_periods  = 5
  # Without data nothing is known about the hardware; the other alarm tells of that.
  treat_missing_data = "missing"

  alarm_actions = ["arn:${var.partition}:automate:${var.region}:ec2:recover", aws_sns_topic.alarms.arn]
}

# The account's whole bill: a budget by tag shows nothing until somebody activates the tag in the billing console, and
# a guard that silently watches nothing is none.
resource "aws_budgets_budget" "month" {
  count = var.monthly_budget_usd == null ? 0 : 1

  name         = "${var.name}-month"
  budget_type  = "COST"
  time_unit    = "MONTHLY"
  limit_amount = tostring(var.monthly_budget_usd)
  limit_unit   = "USD"

  dynamic "notification" {
    for_each = {
      FORECASTED = 100 # warns days before it happens
      ACTUAL     = 80
    }
    content {
      notification_type          = notification.key
      threshold                  = notification.value
      threshold_type             = "PERCENTAGE"
      comparison_operator        = "GREATER_THAN"
      subscriber_email_addresses = var.emails
    }
  }
}
