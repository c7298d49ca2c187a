# Finds the exact version of every package and tries the change without making it. Prints YAML; changes nothing but apt's
# lists. Arguments: driver version, the preferences that will hold, packages that must be there, --, packages that are there in
# another version and follow where the wanted one exists.
set -u
version=$1 preferences=$2
shift 2
wanted='' installed=''
while [ "$1" != -- ]; do
  wanted="$wanted $1"
  shift
done
shift
installed="$*"

# Without lists the answer would be "no such version", which sends the operator the wrong way.
if ! said=$(apt-get -q -o APT::Update::Error-Mode=any update 2>&1); then
  printf 'refused: |\n  apt-get update failed, so what the repository offers is not known:\n'
  echo "$said" | sed -n '/^[EW]:/s/^/  /p'
  exit
fi

# shellcheck disable=SC2086  # lists of names
offered=$(apt-cache madison $wanted $installed 2>/dev/null | awk -F ' *[|] *' '{sub(/^ */, "", $1); print $1, $2}')
targets=$(echo "$offered" | awk -v version="$version" '{
  upstream = $2; sub(/^[0-9]+:/, "", upstream); sub(/-.*/, "", upstream)
  if (upstream == version && !seen[$1]++) print $1 "=" $2}')
missing=$(for package in $wanted; do
  echo "$targets" | grep -q "^$package=" ||
    echo "$package: $(echo "$offered" | awk -v name="$package" '$1 == name && !seen[$2]++ {printf "%s ", $2}')"
done)
if [ -n "$missing" ]; then
  echo 'refused: |'
  echo "$missing" | sed "s/^/  /; s/: \$/: none at all/; s/: / has no version $version; there is: /"
  exit
fi

chosen=$(mktemp)
trap 'rm -f "$chosen"' EXIT
printf '%s\n' "$preferences" > "$chosen"
# shellcheck disable=SC2086
if ! said=$(apt-get -q -y --simulate --no-install-recommends --allow-downgrades --allow-change-held-packages \
  -o Dir::Etc::Preferences="$chosen" install $targets 2>&1); then
  printf 'refused: |\n  apt cannot install that version:\n'
  echo "$said" | sed 's/^/  /'
  exit
fi
echo 'refused: ""'
echo 'targets:'
echo "$targets" | sed 's/.*/- "&"/'
