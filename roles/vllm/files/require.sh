#!/bin/sh
# Written by Ansible (role vllm). Runs as root before every start of vllm.service: starts the units that vLLM requires, one
# after the other, and gives way to none that fails. What it prints is in the journal of vllm.service. The last line also
# becomes the status text, since systemctl shows no lines of the journal while the unit waits for its next start.
#   vllm-require coderack-gate.service coderack-weights.service
for unit; do
  systemctl start "$unit" && continue
  echo "vLLM is not started: $unit failed. What it says (all of it: journalctl -u $unit):"
  invocation=$(systemctl show --property=InvocationID --value "$unit")
  if [ -n "$invocation" ]; then
    journalctl --sync 2>/dev/null
    said=$(journalctl --quiet --no-pager --output=cat --lines=15 "_SYSTEMD_INVOCATION_ID=$invocation")
    echo "$said"
  fi
  systemd-notify --status="not started, $unit failed: $(echo "$said" | tail -n 1)" || true
  exit 1
done
