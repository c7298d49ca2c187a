# Reads in one go what the node has of the driver and prints it as YAML. Changes nothing.
# Arguments: patterns of packages to be held, --, units to look for.
version='s/^[^0-9]*\([0-9]\{3\}\(\.[0-9]\{1,\}\)\{1,2\}\)[^0-9.].*/\1/p'
first() { sed -n "$version" | head -n 1; }
# The version in the name of the file behind a library's link.
behind() { readlink -f "$(ldconfig -p | sed -n "s/.*$1.* => //p" | head -n 1)" 2>/dev/null | sed -n 's/.*\.so\.\([0-9]\{3\}\.[0-9.]*\)$/\1/p'; }

echo "system: $(. /etc/os-release && echo "$ID $VERSION_ID")"
echo "kernel: \"$(uname -r)\""
echo "headers: $(test -e "/lib/modules/$(uname -r)/build" && echo true || echo false)"
# Installed for this kernel, which a reboot would load; and loaded, which all programs talk to.
echo "module: \"$(modinfo -F version nvidia 2>/dev/null)\""
echo "loaded: \"$(sed -n 's/^NVRM version:.*  *\([0-9]\{3\}\.[0-9.]*\)  *.*/\1/p' /proc/driver/nvidia/version 2>/dev/null)\""
echo "fabric_manager: \"$(nv-fabricmanager --version 2>/dev/null | sed 's/$/ /' | first)\""
echo "persistenced: \"$(nvidia-persistenced --version 2>/dev/null | sed 's/$/ /' | first)\""
echo "nvml: \"$(behind 'libnvidia-ml[.]so[.]1 ')\""

patterns=
while [ "$1" != -- ]; do
  patterns="$patterns $1"
  shift
done
shift
installed=$(
  set -f
  # shellcheck disable=SC2086  # the patterns are for dpkg
  dpkg-query --show --showformat='${db:Status-Status} ${db:Status-Want} ${Package} ${Version}\n' $patterns 2>/dev/null |
    sed -n 's/^installed //p'
)
# Of the driver is what has a version like a driver's: three digits, a dot, … (with or without an epoch).
echo "packages: ["
echo "$installed" | awk '$3 ~ /^([0-9]+:)?[0-9][0-9][0-9][.][0-9]+([.][0-9]+)?-/ && $2 !~ /^linux-/ {
  upstream = $3; sub(/^[0-9]+:/, "", upstream); sub(/-.*/, "", upstream)
  printf "  {name: \"%s\", version: \"%s\", upstream: \"%s\"},\n", $2, $3, upstream}'
echo ']'
echo "nscq: \"$(echo "$installed" | awk '$2 ~ /^libnvidia-nscq/ {sub(/^[0-9]+:/, "", $3); sub(/-.*/, "", $3); print $3; exit}')\""
echo 'to_hold: ['
echo "$installed" | awk '$1 != "hold" && $2 {printf "  \"%s\",\n", $2}'
echo ']'
# Units that run and will run after the next boot.
echo 'units: ['
for unit; do
  systemctl is-active --quiet "$unit" 2>/dev/null && systemctl is-enabled --quiet "$unit" 2>/dev/null && echo "  \"$unit\","
done
echo ']'
