# Machines that stand in a rack already. Nothing is made here: the declared hosts are checked, and end in the same output
# `fleet` as those of the cloud, so that everything behind it is the same.

terraform {
  # Validation rules that look at other variables came with 1.9; 1.11 is what the other stacks need too.
  required_version = ">= 1.11"

  # Where the state lies is said at init (inventories/<env>/backend.hcl). It holds nothing but the checked output, and can
  # be made anew from the variables at any time; a file is enough.
  backend "local" {}
}
