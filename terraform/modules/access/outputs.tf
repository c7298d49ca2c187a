output "instance_profiles" {
  description = "Name of the instance profile of each role, gpu and ops. Known only when the role has its rights."
  value       = { for role, profile in aws_iam_instance_profile.node : role => profile.name }

  depends_on = [aws_iam_role_policy.node, aws_iam_role_policy_attachment.ssm]
}

output "api_keys_secret" {
  description = "ARN of the secret of the API keys, without a value."
  value       = aws_secretsmanager_secret.api_keys.arn
}
