# Reads in one go what the node has, and prints it as YAML. Changes nothing.
# Arguments: the install folder, the wanted interpreter or an empty word.
python=${2:-/usr/bin/python3}
version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }
found=$(version "$python")
# Ubuntu 22.04 has a newer one beside its own.
if [ -z "$2" ] && [ "$found" = 3.10 ]; then
  python=/usr/bin/python3.11
  found=$(version "$python")
fi
echo "python: \"$python\""
echo "version: \"$found\""
echo "machine: \"$(uname -m)\""
echo "system: \"$(. /etc/os-release && echo "$ID $VERSION_ID")\""
current=$(readlink "$1/current" 2>/dev/null)
# Only a version that was unpacked to the end has the mark.
if [ -n "$current" ] && [ -e "$1/${current##*/}/complete" ]; then echo "current: \"${current##*/}\""; else echo 'current: ""'; fi
