# Reads in one go what the node has of DCGM and prints it as YAML. Changes nothing. Arguments: packages.
echo 'packages: {'
for package; do
  dpkg-query --show --showformat='${db:Status-Status} ${Package} ${Version}\n' "$package" 2>/dev/null |
    awk '$1 == "installed" {sub(/^[0-9]+:/, "", $3); sub(/-[^-]*$/, "", $3); printf "  \"%s\": \"%s\",\n", $2, $3}'
done
echo '}'
echo 'to_hold: ['
for package; do
  dpkg-query --show --showformat='${db:Status-Status} ${db:Status-Want} ${Package}\n' "$package" 2>/dev/null |
    awk '$1 == "installed" && $2 != "hold" {printf "  \"%s\",\n", $3}'
done
echo ']'
# Units that run and will run after the next boot.
echo 'units: ['
for unit in nvidia-dcgm.service nvidia-dcgm-exporter.service; do
  systemctl is-active --quiet "$unit" && systemctl is-enabled --quiet "$unit" && echo "  \"$unit\","
done
echo ']'
