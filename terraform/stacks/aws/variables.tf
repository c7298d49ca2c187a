# Whose

variable "stack_name" {
  description = "Prefix of resource names and value of the tag coderack:stack. Two stacks in one account need two names."
  type        = string
  default     = "coderack"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,30}$", var.stack_name))
    error_message = "stack_name is \"${var.stack_name}\"; use 2 to 31 lower-case letters, digits and hyphens, a letter first."
  }
}

variable "project" {
  description = "Tag project on everything: what the costs are booked on."
  type        = string
  default     = "coderack"

  validation {
    condition     = can(regex("^[A-Za-z0-9][A-Za-z0-9 ._:/=+@-]{0,99}$", var.project))
    error_message = "project is \"${var.project}\"; give a tag value: letters, digits, spaces and . _ : / = + @ -, a letter or digit first, at most 100."
  }
}

variable "env" {
  description = "Tag env on everything, such as prod or staging."
  type        = string

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9-]{0,30}$", var.env))
    error_message = "env is \"${var.env}\"; give a short name such as prod: lower-case letters, digits and hyphens."
  }
}

variable "owner" {
  description = "Tag owner on everything: the team or person that answers for the costs, such as ml-platform@example.net."
  type        = string

  validation {
    condition     = can(regex("^[A-Za-z0-9][A-Za-z0-9 ._:/=+@-]{0,99}$", var.owner))
    error_message = "owner is \"${var.owner}\"; name who answers for the costs, e.g. ml-platform@example.net."
  }
}

variable "expiry" {
  description = "Tag expiry on everything: the last day (UTC) on which it may run, such as 2027-06-30. Later plans are refused, a destroy never is."
  type        = string

  validation {
    condition     = can(regex("^[0-9]{4}-[0-9]{2}-[0-9]{2}$", var.expiry)) && can(timeadd("${var.expiry}T00:00:00Z", "0s"))
    error_message = "expiry is \"${var.expiry}\"; give a day that exists as year-month-day, such as 2027-06-30."
  }
}

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

# Network

variable "vpc_cidr" {
  description = "Address range of the VPC."
  type        = string
  default     = "10.77.0.0/16"

  validation {
    condition     = can(cidrnetmask(var.vpc_cidr)) && try(cidrhost(var.vpc_cidr, 0) == split("/", var.vpc_cidr)[0], false)
    error_message = "vpc_cidr is \"${var.vpc_cidr}\"; give an IPv4 range that starts at its network address, such as 10.77.0.0/16."
  }
  validation {
    condition     = try(tonumber(split("/", var.vpc_cidr)[1]) >= 16 && tonumber(split("/", var.vpc_cidr)[1]) <= 28, false)
    error_message = "vpc_cidr is \"${var.vpc_cidr}\"; a VPC has /16 to /28."
  }
}

variable "private_subnet_cidr" {
  description = "Address range of the nodes, inside vpc_cidr."
  type        = string
  default     = "10.77.0.0/24"

  validation {
    # Cut to the VPC's prefix, a range inside it has the VPC's network address.
    condition = try(
      cidrhost(var.private_subnet_cidr, 0) == split("/", var.private_subnet_cidr)[0]
      && tonumber(split("/", var.private_subnet_cidr)[1]) >= tonumber(split("/", var.vpc_cidr)[1])
      && tonumber(split("/", var.private_subnet_cidr)[1]) <= 28
      && cidrhost(format("%s/%s", split("/", var.private_subnet_cidr)[0], split("/", var.vpc_cidr)[1]), 0) == cidrhost(var.vpc_cidr, 0),
      false,
    )
    error_message = "private_subnet_cidr is \"${var.private_subnet_cidr}\"; give an IPv4 range inside vpc_cidr (${var.vpc_cidr}) that starts at its network address and is not smaller than /28."
  }
}

variable "public_subnet_cidr" {
  description = "Address range of the NAT gateway, inside vpc_cidr and apart from private_subnet_cidr."
  type        = string
  default     = "10.77.1.0/24"

  validation {
    condition = try(
      cidrhost(var.public_subnet_cidr, 0) == split("/", var.public_subnet_cidr)[0]
      && tonumber(split("/", var.public_subnet_cidr)[1]) >= tonumber(split("/", var.vpc_cidr)[1])
      && tonumber(split("/", var.public_subnet_cidr)[1]) <= 28
      && cidrhost(format("%s/%s", split("/", var.public_subnet_cidr)[0], split("/", var.vpc_cidr)[1]), 0) == cidrhost(var.vpc_cidr, 0),
      false,
    )
    error_message = "public_subnet_cidr is \"${var.public_subnet_cidr}\"; give an IPv4 range inside vpc_cidr (${var.vpc_cidr}) that starts at its network address and is not smaller than /28."
  }
  validation {
    # Cut to the shorter of both prefixes, ranges that overlap have the same network address.
    condition = try(length(distinct([
      for cidr in [var.private_subnet_cidr, var.public_subnet_cidr] : cidrhost(format("%s/%s", split("/", cidr)[0],
        min([for one in [var.private_subnet_cidr, var.public_subnet_cidr] : tonumber(split("/", one)[1])]...)
      ), 0)
    ])) == 2, false)
    error_message = "public_subnet_cidr (${var.public_subnet_cidr}) overlaps private_subnet_cidr (${var.private_subnet_cidr}). Give each its own range inside vpc_cidr (${var.vpc_cidr})."
  }
}

variable "egress" {
  description = "The nodes' way out. nat: a NAT gateway to the internet. endpoints: none but AWS services inside the VPC; packages then come from a mirror that the subnet can reach."
  type        = string
  default     = "nat"

  validation {
    condition     = contains(["nat", "endpoints"], var.egress)
    error_message = "egress is \"${var.egress}\"; choose nat or endpoints."
  }
}

variable "administration" {
  description = "How Ansible and administrators get in. ssm: SSH through Session Manager, no open port; the image must carry the SSM agent. ssh: SSH to the private addresses from admin_cidrs."
  type        = string
  default     = "ssm"

  validation {
    condition     = contains(["ssm", "ssh"], var.administration)
    error_message = "administration is \"${var.administration}\"; choose ssm or ssh."
  }
}

variable "admin_cidrs" {
  description = "Address ranges (VPN, bastion) from which administrators and Ansible open SSH connections to all nodes. Not needed with administration = \"ssm\"."
  type        = set(string)
  default     = []

  validation {
    condition     = var.administration == "ssm" || length(var.admin_cidrs) > 0
    error_message = "admin_cidrs is empty, so nobody could configure the nodes. Name at least one range, e.g. [\"10.20.0.0/16\"] for your VPN, or set administration = \"ssm\"."
  }
  validation {
    condition     = alltrue([for cidr in var.admin_cidrs : can(cidrnetmask(cidr)) && try(tonumber(split("/", cidr)[1]) >= 8, false)])
    error_message = "admin_cidrs has ${join(", ", [for cidr in var.admin_cidrs : cidr if !can(cidrnetmask(cidr)) || try(tonumber(split("/", cidr)[1]) < 8, true)])}; give IPv4 ranges in CIDR form, /8 or smaller: SSH is never open to the whole Internet."
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

variable "private_zone_name" {
  description = "Private DNS zone with the nodes' names and gateway.<zone>; null for none."
  type        = string
  default     = "coderack.internal"

  validation {
    condition     = var.private_zone_name == null || can(regex("^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\\.)+[a-z]{2,63}$", var.private_zone_name))
    error_message = "private_zone_name is ${jsonencode(var.private_zone_name)}; give a domain such as coderack.internal (lower case, no dot at the end), or null for no zone."
  }
}

variable "flow_log_days" {
  description = "For how many days the VPC's flow log is kept; null for no flow log."
  type        = number
  default     = 365

  validation {
    condition     = var.flow_log_days == null || contains([1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731], coalesce(var.flow_log_days, 1))
    error_message = "flow_log_days is ${jsonencode(var.flow_log_days)}; CloudWatch takes 1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545 or 731. null for no flow log."
  }
}

# Nodes

variable "gpu_node_names" {
  description = "Names of the GPU nodes, an even number. Each name is one machine; taking a name away destroys that machine."
  type        = list(string)
  default     = ["gpu-a", "gpu-b"]

  validation {
    condition     = length(var.gpu_node_names) > 0
    error_message = "gpu_node_names is empty; name at least one pair of GPU nodes, e.g. [\"gpu-a\", \"gpu-b\"]."
  }
  validation {
    condition     = length(var.gpu_node_names) % 2 == 0
    error_message = "gpu_node_names has ${length(var.gpu_node_names)} names: ${join(", ", var.gpu_node_names)}. Groups are of two nodes, and replicas come in pairs: add a name or take one away."
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
  description = "Instance type of the GPU nodes (p5.48xlarge, p5e.48xlarge, p5en.48xlarge); it needs GPUs and EFA and must be offered in availability_zone."
  type        = string
  default     = "p5.48xlarge"

  validation {
    condition     = can(regex("^[a-z0-9-]+\\.[a-z0-9-]+$", var.gpu_instance_type))
    error_message = "gpu_instance_type is \"${var.gpu_instance_type}\"; give an EC2 instance type such as p5.48xlarge."
  }
}

variable "gpus_per_node" {
  description = "How many GPUs the instance type has to have. The serving profiles count on 8."
  type        = number
  default     = 8

  validation {
    condition     = var.gpus_per_node >= 1 && var.gpus_per_node <= 16 && floor(var.gpus_per_node) == var.gpus_per_node
    error_message = "gpus_per_node is ${var.gpus_per_node}; give a whole number from 1 to 16, for p5.48xlarge 8."
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

variable "capacity" {
  description = <<-EOT
    Where the GPU nodes come from. kind on_demand: what AWS has at the moment. odcr: an on-demand capacity reservation.
    capacity_block: a capacity block. Both by reservation_id. `coderack fleet reserve` buys a block and writes this variable.
    What the reservation is (instance_type, zone, count, starts_at, ends_at; times in RFC 3339) is compared with what is
    asked for here. Terraform never buys anything.
  EOT
  type = object({
    kind           = string
    reservation_id = optional(string)
    instance_type  = optional(string)
    zone           = optional(string)
    count          = optional(number)
    starts_at      = optional(string)
    ends_at        = optional(string)
  })
  default  = { kind = "on_demand" }
  nullable = false

  validation {
    condition     = contains(["on_demand", "odcr", "capacity_block"], var.capacity.kind)
    error_message = "capacity.kind is \"${var.capacity.kind}\"; choose on_demand, odcr or capacity_block."
  }
  validation {
    condition     = var.capacity.kind != "on_demand" || alltrue([for key, value in var.capacity : key == "kind" || value == null])
    error_message = "capacity.kind is on_demand, and capacity also has ${join(", ", [for key, value in var.capacity : key if key != "kind" && value != null])}, which would not be used. Set capacity.kind to odcr or capacity_block, or leave these out."
  }
  validation {
    condition     = var.capacity.kind == "on_demand" || can(regex("^cr-[0-9a-f]{8,17}$", var.capacity.reservation_id))
    error_message = "capacity.reservation_id is ${jsonencode(var.capacity.reservation_id)}; kind ${var.capacity.kind} needs the id of a reservation, such as cr-0123456789abcdef0. `coderack fleet reservations` lists yours."
  }
  validation {
    condition     = var.capacity.kind == "on_demand" || var.capacity.zone == var.availability_zone
    error_message = "capacity.zone is ${jsonencode(var.capacity.zone)} and availability_zone is \"${var.availability_zone}\"; a reservation can be used in its own zone only. Set availability_zone to the zone of the reservation before anything is made; an existing subnet cannot move."
  }
  validation {
    condition     = var.capacity.instance_type == null || var.capacity.instance_type == var.gpu_instance_type
    error_message = "capacity.instance_type is ${jsonencode(var.capacity.instance_type)} and gpu_instance_type is \"${var.gpu_instance_type}\"; set gpu_instance_type to the type of the reservation, or use another reservation."
  }
  validation {
    condition     = var.capacity.count == null || coalesce(var.capacity.count, 0) >= length(var.gpu_node_names)
    error_message = "capacity.count is ${jsonencode(var.capacity.count)} and gpu_node_names has ${length(var.gpu_node_names)} names; use a reservation with room for all of them, or fewer nodes."
  }
  validation {
    condition     = alltrue([for time in [var.capacity.starts_at, var.capacity.ends_at] : time == null || can(timeadd(time, "0s"))])
    error_message = "capacity.starts_at is ${jsonencode(var.capacity.starts_at)} and capacity.ends_at ${jsonencode(var.capacity.ends_at)}; give times in RFC 3339, such as 2027-01-15T11:30:00Z."
  }
  validation {
    condition     = var.capacity.kind != "capacity_block" || var.capacity.ends_at != null
    error_message = "capacity.ends_at is not given; a capacity block ends, and takes the nodes away when it does. Give its end, such as 2027-01-15T11:30:00Z; `coderack fleet reservations` shows it."
  }
}

variable "placement_group" {
  description = "Existing cluster placement group that an on-demand capacity reservation was made in; null for none. On demand, the stack makes a group of its own; capacity blocks stand close together without one."
  type        = string
  default     = null

  validation {
    condition     = var.placement_group == null || var.capacity.kind == "odcr"
    error_message = "placement_group is ${jsonencode(var.placement_group)} and capacity.kind ${var.capacity.kind}; only a reservation (odcr) that was made in a group is used through it. Leave placement_group out."
  }
}

variable "gpu_ami_id" {
  description = "Image of new GPU nodes, of the type's architecture. Existing nodes keep theirs."
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
  description = "Image of a new ops node, of the type's architecture. An existing node keeps its own."
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

variable "user_data" {
  description = "cloud-init data of new nodes, GPU and ops: what has to be there before Ansible can log in, such as the SSM agent on images without it. Readable in the state and on the node: no secrets. null for none."
  type        = string
  default     = null

  validation {
    condition     = var.user_data == null || can(regex("^#", var.user_data)) && length(coalesce(var.user_data, "-")) <= 16384
    error_message = "user_data has ${length(coalesce(var.user_data, "-"))} characters and starts with ${jsonencode(substr(coalesce(var.user_data, "-"), 0, 12))}; cloud-init takes at most 16384, beginning with #cloud-config or #!."
  }
}

variable "termination_protection" {
  description = "Whether EC2 refuses to terminate or stop the nodes, and Terraform to destroy the stack. Set it to false and apply before a destroy."
  type        = bool
  default     = true
}

variable "ssh_public_key" {
  description = "Public key of the first login, one line in OpenSSH's format. Only the public half ever comes here. Must be given."
  type        = string
  default     = "" # refused below: Terraform's own complaint about a missing value does not say where one comes from

  validation {
    condition     = can(regex("^(ssh-ed25519|ssh-rsa) AAAA[0-9A-Za-z+/=]+( .*)?\\s*$", var.ssh_public_key))
    error_message = "ssh_public_key is ${var.ssh_public_key == "" ? "not set" : "not an OpenSSH public key"}. Give the whole line of a .pub file that starts with ssh-ed25519 or ssh-rsa, e.g. export TF_VAR_ssh_public_key=\"$(cat ~/.ssh/id_ed25519.pub)\"."
  }
}

# Weights and keys

variable "weights_noncurrent_days" {
  description = "After how many days replaced and deleted weights are gone for good; null keeps them for ever and sets no lifecycle rule."
  type        = number
  default     = 30

  validation {
    condition     = var.weights_noncurrent_days == null || coalesce(var.weights_noncurrent_days, 1) >= 1
    error_message = "weights_noncurrent_days is ${jsonencode(var.weights_noncurrent_days)}; give at least 1, or null to keep old versions."
  }
}

variable "weights_force_destroy" {
  description = "Whether a destroy deletes the weights with the bucket. Otherwise a destroy is refused until the bucket is empty."
  type        = bool
  default     = false
}

variable "secret_recovery_days" {
  description = "For how many days the API keys can be brought back after a destroy: 7 to 30, or 0 for not at all."
  type        = number
  default     = 7

  validation {
    condition     = var.secret_recovery_days == 0 || var.secret_recovery_days >= 7 && var.secret_recovery_days <= 30
    error_message = "secret_recovery_days is ${var.secret_recovery_days}; Secrets Manager takes 7 to 30, or 0 to delete at once."
  }
}

# Alarms

variable "alarm_emails" {
  description = "Who hears of alarms and of the budget. AWS asks each address to confirm once."
  type        = set(string)
  default     = []

  validation {
    condition     = alltrue([for address in var.alarm_emails : can(regex("^[^@\\s]+@[^@\\s]+\\.[^@\\s]+$", address))])
    error_message = "alarm_emails has ${join(", ", [for address in var.alarm_emails : "\"${address}\"" if !can(regex("^[^@\\s]+@[^@\\s]+\\.[^@\\s]+$", address))])}; give e-mail addresses, e.g. [\"oncall@example.net\"]."
  }
}

variable "monthly_budget_usd" {
  description = "Budget of the account in USD per month: e-mail at 80 % spent and 100 % forecast. null for none; it has to be said."
  type        = number

  validation {
    condition     = var.monthly_budget_usd == null || coalesce(var.monthly_budget_usd, 0) > 0
    error_message = "monthly_budget_usd is ${jsonencode(var.monthly_budget_usd)}; give a sum above 0, or null for no budget."
  }
  validation {
    condition     = var.monthly_budget_usd == null || length(var.alarm_emails) > 0
    error_message = "monthly_budget_usd is ${jsonencode(var.monthly_budget_usd)} and alarm_emails is empty, so nobody would hear of it. Name at least one address in alarm_emails."
  }
}

# Provider

variable "max_retries" {
  description = "How often the AWS provider repeats a failing call."
  type        = number
  default     = 25
}
