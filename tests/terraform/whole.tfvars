# The stack with everything on, as in production. The capacity block comes by -var from the test, the key by environment.

env    = "test"
owner  = "ml-platform@example.net"
expiry = "2099-12-31"

region            = "us-west-2"
availability_zone = "us-west-2a"

gpu_ami_id = "ami-0c0ded1a4c0ffee03"
ops_ami_id = "ami-0c0de2404c0ffee02"
user_data  = "#cloud-config\npackages: [amazon-ssm-agent]\n"

client_cidrs = ["10.77.0.0/16"]

secret_recovery_days = 0 # a deleted secret would be found by "is anything left?"
alarm_emails         = ["oncall@example.net"]
monthly_budget_usd   = 50000
max_retries          = 2 # what the emulator refuses once it refuses always
