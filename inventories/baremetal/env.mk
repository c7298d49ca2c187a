# What make needs to know of this environment.
STACK := baremetal

# `make destroy` would only forget the declared hosts, but refuses while this says yes.
PROTECTED := yes
