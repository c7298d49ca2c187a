# shellcheck shell=bash
# Shared by the runbooks: reach the nodes of an inventory. Sourced, never run. $root is set by the runbook.
root=${root:?set by the runbook}

unknown() {
  printf '%s: cannot tell: %s\n' "$(basename "$0")" "$1" >&2
  exit 3
}

# use_inventory ENV: check that the inventory is there and that Ansible can be called.
use_inventory() {
  inventory=$root/inventories/$1
  if [[ ! -f $inventory/hosts.yml ]]; then
    printf '%s: no inventory %s; it is written by "make provision ENV=%s"\n' "$(basename "$0")" "$inventory/hosts.yml" "$1" >&2
    exit 2
  fi
  PATH=$root/.build/venv/bin:$PATH
  export ANSIBLE_CONFIG=$root/ansible/ansible.cfg
  local tool
  for tool in ansible ansible-inventory jq; do
    command -v "$tool" >/dev/null || unknown "$tool is not installed on this machine"
  done
}

# on HOST COMMAND: run a read-only shell command there as root and print its output; the reason, when that fails.
on() {
  local out complaints
  complaints=$(mktemp)
  # Results begin with a line of Ansible's own ("gpu-a | CHANGED | rc=0 >>"); warnings go elsewhere.
  if out=$(ANSIBLE_NOCOLOR=1 ansible -i "$inventory" "$1" -b -m ansible.builtin.raw \
    -a "export SYSTEMD_COLORS=0 SYSTEMD_PAGER=; $2" 2>"$complaints"); then
    rm -f "$complaints"
    tail -n +2 <<<"$out" | tr -d '\r'
  else
    printf '%s\n' "${out:-$(<"$complaints")}"
    rm -f "$complaints"
    return 1
  fi
}

# indent PREFIX TEXT: print TEXT with PREFIX before each line.
indent() {
  printf '%s\n' "$1${2//$'\n'/$'\n'$1}"
}

# hosts_of GROUP: names of the group's hosts, one a line.
hosts_of() {
  ansible-inventory -i "$inventory" --list 2>/dev/null | jq -er --arg group "$1" '.[$group].hosts[]'
}

# hint HOST COMMAND: the command line by which a person does the same, for pasting at the repository's root.
hint() {
  local ansible=.build/venv/bin/ansible
  [[ -x $root/$ansible ]] || ansible=ansible
  printf "ANSIBLE_CONFIG=ansible/ansible.cfg %s -i inventories/%s %s -b -m ansible.builtin.raw -a '%s'" \
    "$ansible" "$(basename "$inventory")" "$1" "$2"
}
