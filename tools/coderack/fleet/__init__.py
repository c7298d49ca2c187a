"""From the Terraform `fleet` output to the Ansible inventory, and back."""
