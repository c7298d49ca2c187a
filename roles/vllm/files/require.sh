#!/bin/sh
# Written by Ansible (role vllm). Runs as root before every start of vllm.service: starts the units that vLLM requires, one
# after the other, and gives way to none that fails. What it prints is in the journal and the status of vllm.service.
#   vllm-require coderack-gate.service coderack-weights.service
for unit; do
  systemctl start "$unit" && continue
  echo "vLLM is not started: $unit failed. What it says (all of it: journalctl -u $unit):"
  invocation=$(systemctl show --property=InvocationID --value "$unit")
  if [ -n "$invocation" ]; then
    journalctl --quiet --no-pager --output=cat --lines=15 "_SYSTEMD_INVOCATION_ID=$invocation"
  fi
  exit 1
done
