# Reads in one go what the role must know about a GPU node and prints it as YAML. Changes nothing.
# Arguments: the program, the model's folder, the store's folder, Debian packages that must be there.
program=$1 model=$2 store=$3
shift 3

yes_no() { if "$@"; then echo true; else echo false; fi; }

missing=
for package; do
  dpkg-query --show --showformat='${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || missing="$missing $package"
done

cat <<YAML
program: $(yes_no test -x "$program")
model: $(yes_no test -r "$model/config.json")
plain: $(yes_no test -e "$model" -a ! -L "$model")
store: $(yes_no test -d "$store")
mounted: $(yes_no mountpoint --quiet "$store")
missing_packages: "${missing# }"
weights: "$(systemctl show --property=ActiveState --value coderack-weights.service 2>/dev/null)"
YAML
