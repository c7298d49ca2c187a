# Reads in one go what the role must know about a node and prints it as YAML. Changes nothing.
# Arguments: the coderack command, the file with the API key (or nothing).
command=$1 key=$2
unit=coderack-token-probe.service

yes_no() { if "$@"; then echo true; else echo false; fi; }
show() { systemctl show --timestamp=unix --property="$1" --value "$unit"; }

# A file that is younger than the running process has not been read by it. One second of slack: the start is only known to the
# second.
started=$(show ExecMainStartTimestamp | tr -d '@')
outdated=
if [ -n "$started" ]; then
  outdated=$(find "/etc/systemd/system/$unit" ${key:+"$key"} -newermt "@$((started + 1))" 2>/dev/null)
fi

cat <<YAML
executable: $(yes_no test -x "$command")
version: "$(readlink -f "$command")"
key: $(yes_no test -r "${key:-/}")
unit: $(yes_no test -e "/etc/systemd/system/$unit")
running: $(yes_no systemctl is-active --quiet "$unit")
enabled: $(yes_no systemctl is-enabled --quiet "$unit")
outdated: $(yes_no test -n "$outdated")
YAML
