# The lab's cloud: the AWS emulator (AWS_ENDPOINT_URL) with dummy keys. Nothing here is secret, nothing here exists.
# The SSH key comes by TF_VAR_ssh_public_key.

region            = "us-west-2"
availability_zone = "us-west-2a"

# The image with which the lab's nodes are built: Debian 12. The ids are those of the emulator's list.
gpu_ami_id = "ami-0c0de12b00c0ffee1"
ops_ami_id = "ami-0c0de12b00c0ffee1"

admin_cidrs  = ["10.77.0.0/16"]
client_cidrs = ["10.77.0.0/16"]

termination_protection = false # the lab is torn down every day
max_retries            = 2     # what the emulator refuses once it refuses always
