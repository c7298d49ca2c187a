"""The embedded lab: an AWS emulator and systemd-nspawn nodes that stand in for the cloud and its machines.

Nothing outside this package knows that it exists. Terraform talks to an EC2 endpoint, Ansible to machines over SSH.
"""
