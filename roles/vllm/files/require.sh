#!/bin/sh
# Written by Ansible (role vllm). Runs as root before every start of vllm.service: starts the units that vLLM requires, one
# after the other, and gives way to none that fails. What it prints is in the journal of vllm.service. The last line also
# becomes the status text, since systemctl shows no lines of the journal while the unit waits for its next start.
#   vllm-require coderack-gate.service coderack-weights.service
for unit; do
  begun=$(date +%s)
  systemctl start "$unit" && continue
  echo "vLLM is not started: $unit failed. What it says (all of it: journalctl -u $unit):"
  journalctl --sync 2>/dev/null
  # Not by its invocation: a process that ends at once is gone before the journal has looked up which one it was of.
  said=$(journalctl --quiet --no-pager --output=cat --lines=15 --since="@$begun" "_SYSTEMD_UNIT=$unit")
  echo "$said"
  systemd-notify --status="not started, $unit failed: $(echo "$said" | tail -n 1)" || true
  exit 1
done
