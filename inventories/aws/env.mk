# What make needs to know of this environment. Credentials, profile and endpoints come from your own AWS configuration.
STACK := aws

# `make destroy` refuses while this says yes. Change it here, for everybody to see, not on the command line.
PROTECTED := yes
