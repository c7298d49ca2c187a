# The lab's cloud: the AWS emulator (AWS_ENDPOINT_URL) with dummy keys. Nothing here is secret, nothing here exists.
# The SSH key comes by TF_VAR_ssh_public_key.

env    = "lab"
owner  = "lab@example.net"
expiry = "2099-12-31"

region            = "us-west-2"
availability_zone = "us-west-2a"

# The image with which the lab's nodes are built: Debian 12. The ids are those of the emulator's list.
gpu_ami_id = "ami-0c0de12b00c0ffee1"
ops_ami_id = "ami-0c0de12b00c0ffee1"

# The lab's nodes have real addresses, and no Systems Manager.
administration = "ssh"
admin_cidrs    = ["10.77.0.0/16"]
client_cidrs   = ["10.77.0.0/16"]

termination_protection = false # the lab is torn down every day
secret_recovery_days   = 0
alarm_emails           = ["lab@example.net"]
monthly_budget_usd     = null
max_retries            = 2 # what the emulator refuses once it refuses always

# These only cost time here: the provider waits for AWS to get ready, in all about two minutes.
private_zone_name       = null
flow_log_days           = null
weights_noncurrent_days = null
