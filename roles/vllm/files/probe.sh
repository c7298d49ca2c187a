# Reads in one go what the role must know about a GPU node and prints it as YAML. Changes nothing.
# Arguments: model folder, folder of the vLLM environment, address of this node, Debian packages that must be there.
model=$1 install=$2 address=$3
shift 3
unit=vllm.service

yes_no() { if "$@"; then echo true; else echo false; fi; }
show() { systemctl show --timestamp=unix --property="$1" --value "$unit"; }

missing=
for package; do
  dpkg-query --show --showformat='${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || missing="$missing $package"
done

version=
for metadata in "$install"/lib/python3*/site-packages/vllm-*.dist-info; do
  [ -d "$metadata" ] || continue
  version=${metadata##*/vllm-}
  version=${version%.dist-info}
done

# A configuration file younger than the running process means that an earlier run stopped before the restart.
# One second of slack: the start time is only known to the second.
started=$(show ExecMainStartTimestamp | tr -d '@')
outdated=
if [ -n "$started" ]; then
  outdated=$(find /etc/systemd/system/$unit /etc/coderack/vllm.env /etc/coderack/nccl.env -newermt "@$((started + 1))" 2>/dev/null)
fi

cat <<YAML
missing_packages: "${missing# }"
model: $(yes_no test -r "$model/config.json")
executable: $(yes_no test -x "$install/bin/vllm")
version: "$version"
environment: "$(cat "$install/.requirements" 2>/dev/null)"
plain_folder: $(yes_no test -d "$install" -a ! -L "$install")
interface: "$(ip -o -4 address show to "$address/32" | awk 'NR == 1 {print $2}')"
unit: $(yes_no test -e /etc/systemd/system/$unit)
state: "$(show ActiveState)"
enabled: "$(systemctl is-enabled $unit 2>/dev/null)"
outdated: $(yes_no test -n "$outdated")
YAML
