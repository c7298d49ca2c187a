# Reads in one go what the role must know about a GPU node and prints it as YAML. Changes nothing.
# Arguments: model folder, folder of the environments, wanted environment, link of its colour, Python to build with, folder
# with tuned tables or nothing, unit that restarts a group, address of this node, Debian packages that must be there.
model=$1 root=$2 environment=$3 link=$4 python=$5 tuned=$6 group=$7 address=$8
shift 8
unit=vllm.service

yes_no() { if "$@"; then echo true; else echo false; fi; }
show() { systemctl show --timestamp=unix --property="$1" --value "$unit"; }

missing=
for package; do
  dpkg-query --show --showformat='${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || missing="$missing $package"
done

version=
for metadata in "$environment"/lib/python3*/site-packages/vllm-*.dist-info; do
  [ -d "$metadata" ] || continue
  version=${metadata##*/vllm-}
  version=${version%.dist-info}
done

# A configuration file, or a link, younger than the running process means that an earlier run stopped before the restart.
# One second of slack: the start time is only known to the second.
started=$(show ExecMainStartTimestamp | tr -d '@')
outdated=
if [ -n "$started" ]; then
  outdated=$(find /etc/systemd/system/$unit /etc/coderack/vllm.env /etc/coderack/vllm-key.env /etc/coderack/nccl.env "$link" \
    -newermt "@$((started + 1))" 2>/dev/null)
fi

cat <<YAML
missing_packages: "${missing# }"
model: $(yes_no test -r "$model/config.json")
tuned: $(yes_no test -z "$tuned" -o -d "$tuned")
executable: $(yes_no test -x "$environment/bin/vllm")
version: "$version"
finished: $(yes_no test -e "$environment/.finished")
python: "$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)"
linked: $(yes_no test -x "$link/bin/vllm")
link_in_the_way: $(yes_no test -e "$link" -a ! -L "$link")
root_in_the_way: $(yes_no test -L "$root" -o -f "$root")
interface: "$(ip -o -4 address show to "$address/32" | awk 'NR == 1 {print $2}')"
unit: $(yes_no test -e /etc/systemd/system/$unit)
state: "$(show ActiveState)"
enabled: "$(systemctl is-enabled $unit 2>/dev/null)"
watched: $(yes_no systemctl is-active --quiet "$group")
outdated: $(yes_no test -n "$outdated")
YAML
