# Where

variable "region" {
  description = "AWS region, e.g. us-west-2."
  type        = string

  validation {
    condition     = can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]$", var.region))
    error_message = "region is \"${var.region}\"; give a region's name such as us-west-2."
  }
}

variable "availability_zone" {
  description = "The one zone of all nodes: where the GPU capacity is, e.g. us-west-2a."
  type        = string

  validation {
    condition     = can(regex("^${var.region}[a-z]$", var.availability_zone))
    error_message = "availability_zone is \"${var.availability_zone}\"; give a zone of ${var.region}, such as ${var.region}a. Capacity decides which."
  }
}

variable "stack_name" {
  description = "Prefix of resource names and value of the tag coderack:stack. Two stacks in one account need two names."
  type        = string
  default     = "coderack"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,30}$", var.stack_name))
    error_message = "stack_name is \"${var.stack_name}\"; use 2 to 31 lower-case letters, digits and hyphens, a letter first."
  }
}

# Network

variable "vpc_cidr" {
  description = "Address range of the VPC."
  type        = string
  default     = "10.77.0.0/16"

  validation {
    condition     = can(cidrnetmask(var.vpc_cidr)) && try(cidrhost(var.vpc_cidr, 0) == split("/", var.vpc_cidr)[0], false)
    error_message = "vpc_cidr is \"${var.vpc_cidr}\"; give an IPv4 range that starts at its network address, such as 10.77.0.0/16."
  }
}

variable "private_subnet_cidr" {
  description = "Address range of the nodes, inside vpc_cidr."
  type        = string
  default     = "10.77.0.0/24"

  validation {
    # Cut to the VPC's prefix, a range inside it has the VPC's network address.
    condition = try(
      cidrhost(format("%s/%s", split("/", var.private_subnet_cidr)[0], split("/", var.vpc_cidr)[1]), 0) == cidrhost(var.vpc_cidr, 0),
      false,
    )
    error_message = "private_subnet_cidr is \"${var.private_subnet_cidr}\"; give an IPv4 range inside vpc_cidr (${var.vpc_cidr})."
  }
}

variable "public_subnet_cidr" {
  description = "Address range of the NAT gateway, inside vpc_cidr and apart from private_subnet_cidr."
  type        = string
  default     = "10.77.1.0/24"

  validation {
    condition = try(
      cidrhost(format("%s/%s", split("/", var.public_subnet_cidr)[0], split("/", var.vpc_cidr)[1]), 0) == cidrhost(var.vpc_cidr, 0),
      false,
    )
    error_message = "public_subnet_cidr is \"${var.public_subnet_cidr}\"; give an IPv4 range inside vpc_cidr (${var.vpc_cidr})."
  }
}

variable "admin_cidrs" {
  description = "Address ranges (VPN, bastion) from which administrators and Ansible open SSH connections to all nodes."
  type        = set(string)

  validation {
    condition     = length(var.admin_cidrs) > 0
    error_message = "admin_cidrs is empty, so nobody could configure the nodes. Name at least one range, e.g. [\"10.20.0.0/16\"] for your VPN."
  }
  validation {
    condition     = alltrue([for cidr in var.admin_cidrs : can(cidrnetmask(cidr)) && !endswith(cidr, "/0")])
    error_message = "admin_cidrs has ${join(", ", [for cidr in var.admin_cidrs : cidr if !can(cidrnetmask(cidr)) || endswith(cidr, "/0")])}; give IPv4 ranges in CIDR form, none of them the whole Internet."
  }
}

variable "client_cidrs" {
  description = "Address ranges of the gateway's clients (443 on the ops node)."
  type        = set(string)

  validation {
    condition     = length(var.client_cidrs) > 0 && alltrue([for cidr in var.client_cidrs : can(cidrnetmask(cidr))])
    error_message = "client_cidrs is [${join(", ", var.client_cidrs)}]; give at least one IPv4 range in CIDR form, such as the VPC's own."
  }
}

# Nodes

variable "gpu_node_names" {
  description = "Names of the GPU nodes. Each name is one machine; taking a name away destroys that machine."
  type        = list(string)
  default     = ["gpu-a", "gpu-b"]

  validation {
    condition     = length(var.gpu_node_names) > 0
    error_message = "gpu_node_names is empty; name at least one GPU node, e.g. [\"gpu-a\", \"gpu-b\"]."
  }
  validation {
    condition     = alltrue([for name in var.gpu_node_names : can(regex("^[a-z]([a-z0-9-]{0,30}[a-z0-9])?$", name))])
    error_message = "gpu_node_names has ${join(", ", [for name in var.gpu_node_names : "\"${name}\"" if !can(regex("^[a-z]([a-z0-9-]{0,30}[a-z0-9])?$", name))])}; names become host names: lower-case letters, digits and inner hyphens, a letter first, at most 32 characters."
  }
  validation {
    condition     = length(distinct(var.gpu_node_names)) == length(var.gpu_node_names)
    error_message = "gpu_node_names has a name twice: ${join(", ", var.gpu_node_names)}. Give every node its own."
  }
}

variable "gpu_instance_type" {
  description = "Instance type of the GPU nodes; it needs GPUs and EFA and must be offered in availability_zone."
  type        = string
  default     = "p5.48xlarge"

  validation {
    condition     = can(regex("^[a-z0-9-]+\\.[a-z0-9-]+$", var.gpu_instance_type))
    error_message = "gpu_instance_type is \"${var.gpu_instance_type}\"; give an EC2 instance type such as p5.48xlarge."
  }
}

variable "efa_layout" {
  description = "efa_primary: the primary interface carries EFA and IP. ena_plus_efa_only: a plain primary interface and EFA-only ones beside it. A change replaces the GPU nodes."
  type        = string
  default     = "efa_primary"

  validation {
    condition     = contains(["efa_primary", "ena_plus_efa_only"], var.efa_layout)
    error_message = "efa_layout is \"${var.efa_layout}\"; choose efa_primary or ena_plus_efa_only."
  }
}

variable "gpu_ami_id" {
  description = "Image of new GPU nodes. Existing nodes keep theirs."
  type        = string

  validation {
    condition     = can(regex("^ami-[0-9a-f]{8,17}$", var.gpu_ami_id))
    error_message = "gpu_ami_id is \"${var.gpu_ami_id}\"; give an image id such as ami-0123456789abcdef0, pinned on purpose."
  }
}

variable "gpu_root_volume_gib" {
  description = "Root volume of a GPU node in GiB. Weights lie on the instance store, not here."
  type        = number
  default     = 200

  validation {
    condition     = var.gpu_root_volume_gib >= 50 && var.gpu_root_volume_gib <= 16384
    error_message = "gpu_root_volume_gib is ${var.gpu_root_volume_gib}; driver, CUDA and vLLM need at least 50 GiB, and gp3 ends at 16384."
  }
}

variable "ops_node_name" {
  description = "Name of the ops node."
  type        = string
  default     = "ops"

  validation {
    condition     = can(regex("^[a-z]([a-z0-9-]{0,30}[a-z0-9])?$", var.ops_node_name)) && !contains(var.gpu_node_names, var.ops_node_name)
    error_message = "ops_node_name is \"${var.ops_node_name}\"; it becomes a host name (lower-case letters, digits and inner hyphens, a letter first) and must differ from gpu_node_names."
  }
}

variable "ops_instance_type" {
  description = "Instance type of the ops node."
  type        = string
  default     = "m7i.2xlarge"

  validation {
    condition     = can(regex("^[a-z0-9-]+\\.[a-z0-9-]+$", var.ops_instance_type))
    error_message = "ops_instance_type is \"${var.ops_instance_type}\"; give an EC2 instance type such as m7i.2xlarge."
  }
}

variable "ops_ami_id" {
  description = "Image of a new ops node. An existing node keeps its own."
  type        = string

  validation {
    condition     = can(regex("^ami-[0-9a-f]{8,17}$", var.ops_ami_id))
    error_message = "ops_ami_id is \"${var.ops_ami_id}\"; give an image id such as ami-0123456789abcdef0, pinned on purpose."
  }
}

variable "ops_root_volume_gib" {
  description = "Root volume of the ops node in GiB, with room for the metrics."
  type        = number
  default     = 100

  validation {
    condition     = var.ops_root_volume_gib >= 20 && var.ops_root_volume_gib <= 16384
    error_message = "ops_root_volume_gib is ${var.ops_root_volume_gib}; give 20 to 16384."
  }
}

variable "termination_protection" {
  description = "Whether EC2 refuses to terminate the nodes. Set it to false and apply before a destroy."
  type        = bool
  default     = true
}

variable "ssh_public_key" {
  description = "Public key of the first login, one line in OpenSSH's format. Only the public half ever comes here."
  type        = string

  validation {
    condition     = can(regex("^(ssh-ed25519|ssh-rsa) AAAA[0-9A-Za-z+/=]+( .*)?\\s*$", var.ssh_public_key))
    error_message = "ssh_public_key is not an OpenSSH public key. Give the whole line of a .pub file that starts with ssh-ed25519 or ssh-rsa, e.g. export TF_VAR_ssh_public_key=\"$(cat ~/.ssh/id_ed25519.pub)\"."
  }
}

# Provider

variable "max_retries" {
  description = "How often the AWS provider repeats a failing call."
  type        = number
  default     = 25
}
