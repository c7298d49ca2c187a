# What depends on the time of the plan, or is only worth a warning. Not in the variables' own validation, since that also
# runs before a destroy: whatever has expired must still be removable.

locals {
  now = plantimestamp()
  # A block's instances are taken away 30 minutes before its end.
  reservation_leaves = var.capacity.ends_at == null ? null : timeadd(var.capacity.ends_at, "-30m")
}

resource "terraform_data" "preflight" {
  lifecycle {
    precondition {
      condition     = timecmp(local.now, timeadd("${var.expiry}T00:00:00Z", "24h")) < 0
      error_message = "expiry was ${var.expiry}, so this stack should be gone. Remove it with a destroy, or set expiry to a later day if it is still needed."
    }
    precondition {
      condition     = var.capacity.starts_at == null || timecmp(coalesce(var.capacity.starts_at, local.now), local.now) <= 0
      error_message = "Reservation ${jsonencode(var.capacity.reservation_id)} starts at ${jsonencode(var.capacity.starts_at)}; nothing can be launched into it before. Apply again after that time."
    }
    precondition {
      condition     = local.reservation_leaves == null || timecmp(local.now, coalesce(local.reservation_leaves, local.now)) < 0
      error_message = "Reservation ${jsonencode(var.capacity.reservation_id)} ends at ${jsonencode(var.capacity.ends_at)}, and its nodes go 30 minutes earlier, which is now or past. Find a new one with `coderack fleet reserve`, or set capacity to another reservation."
    }
  }
}

check "reservation_lasts" {
  assert {
    condition     = local.reservation_leaves == null || timecmp(timeadd(local.now, "24h"), coalesce(local.reservation_leaves, local.now)) < 0
    error_message = "Reservation ${jsonencode(var.capacity.reservation_id)} ends at ${jsonencode(var.capacity.ends_at)}, in less than a day, and takes the nodes away 30 minutes earlier. Extend it in time, or drain the nodes before."
  }
}

check "expiry_lasts" {
  assert {
    condition     = timecmp(timeadd(local.now, "168h"), "${var.expiry}T00:00:00Z") < 0
    error_message = "expiry is ${var.expiry}, within a week; after that day nothing but a destroy will be planned. Set it to a later day if the stack is still needed."
  }
}

check "somebody_hears" {
  assert {
    condition     = length(var.alarm_emails) > 0
    error_message = "alarm_emails is empty: alarms reach a topic that nobody reads. Name at least one address, or subscribe to the output alarm_topic yourself."
  }
}

# This version of the provider lifts termination protection by itself and goes on (terraform-provider-aws#27529, changed
# in 6.x): without more, a destroy would go straight through. This stands on everything else, so it is the first to be
# destroyed, and when it refuses, nothing has been touched. Against the replacement of single nodes there is
# `coderack fleet guard`.
resource "terraform_data" "protection" {
  input = var.termination_protection

  provisioner "local-exec" {
    when    = destroy
    quiet   = true
    command = self.input ? "echo 'The nodes are protected (termination_protection = true), so nothing was destroyed. Apply once with -var termination_protection=false, then destroy again.' >&2; exit 1" : "true"
  }

  depends_on = [module.access, module.alarms, module.dns, module.gpu_nodes, module.network, module.ops_node, module.weights]
}
