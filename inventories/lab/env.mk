STACK := aws
# The lab is made and torn down many times a day, and by programs.
PROTECTED := no
YES := 1

# The lab's cloud answers on loopback and takes any credentials; real environments leave all of this to the operator's
# own AWS configuration.
LAB_AWS_PORT ?= 5601
export AWS_ENDPOINT_URL := http://127.0.0.1:$(LAB_AWS_PORT)
export AWS_ACCESS_KEY_ID := lab
export AWS_SECRET_ACCESS_KEY := lab
export AWS_EC2_METADATA_DISABLED := true
export TF_VAR_ssh_public_key = $(shell cat $(BUILD)/lab/ssh/id_ed25519.pub 2>/dev/null)
