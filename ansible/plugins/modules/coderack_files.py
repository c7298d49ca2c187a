#!/usr/bin/python
"""Put several small files in place in one module execution."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: coderack_files
short_description: Put several small files in place in one go
description:
  - Creates directories and writes files, all in a single execution on the node. C(template) needs two executions for
    each file that is already right, so a role with ten files spends most of an unchanged run on them.
  - Every changed file is validated before the first one is replaced. When one is refused, none is touched.
  - Files are replaced by rename, so that a reader sees the old or the new content, never a part.
  - Render templates with the C(ansible.builtin.template) lookup.
  - The content of a file shows in diffs only, so C(diff=false) on the task is enough for files with secrets.
options:
  directories:
    description: Directories to create, parents first.
    type: list
    elements: dict
    default: []
    suboptions:
      path: {description: Absolute path., type: path, required: true}
      owner: {description: Owner., type: str, default: root}
      group: {description: Group., type: str, default: root}
      mode: {description: Octal mode as a string., type: str, default: "0755"}
  files:
    description: Files to write. A missing newline at the end is added.
    type: list
    elements: dict
    required: true
    suboptions:
      path: {description: Absolute path., type: path, required: true}
      content: {description: The whole content., type: str, required: true}
      owner: {description: Owner., type: str, default: root}
      group: {description: Group., type: str, default: root}
      mode: {description: Octal mode as a string., type: str, default: "0644"}
      validate:
        description:
          - Command that must accept the new content; C(%s) stands for a temporary file. No shell.
          - In check mode a validator that is not installed yet is skipped; its package would be installed first.
        type: str
attributes:
  check_mode: {support: full}
  diff_mode: {support: full}
author: [The Coderack authors]
"""

EXAMPLES = r"""
- name: Put Prometheus' files in place
  coderack_files:
    directories:
      - {path: /etc/prometheus/rules}
    files:
      - path: /etc/prometheus/prometheus.yml
        content: "{{ lookup('ansible.builtin.template', 'prometheus.yml.j2') }}"
        validate: /usr/bin/promtool check config %s
  register: prometheus_files
"""

RETURN = r"""
changed_paths:
  description: Paths of directories and files that were (in check mode - would be) changed.
  returned: always
  type: list
  elements: str
"""

Entry = dict[str, Any]
Diff = dict[str, Any]


class _Quiet(AnsibleModule):  # type: ignore[misc]  # Ansible has no types
    """Keeps whole files, secrets among them, out of the node's log; results and diffs stay visible.

    The constructor's no_log does not: Ansible sets it anew from the task's.
    """

    def _log_invocation(self) -> None:
        self.log(f"Invoked with {len(self.params['files'])} files")


def main() -> None:
    attributes = {
        "path": {"type": "path", "required": True},
        "owner": {"type": "str", "default": "root"},
        "group": {"type": "str", "default": "root"},
    }
    module = _Quiet(
        argument_spec={
            "directories": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {**attributes, "mode": {"type": "str", "default": "0755"}},
            },
            "files": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    **attributes,
                    "mode": {"type": "str", "default": "0644"},
                    "content": {"type": "str", "required": True},
                    "validate": {"type": "str"},
                },
            },
        },
        supports_check_mode=True,
    )
    directories, files = module.params["directories"], module.params["files"]
    module.params["files"] = [entry["path"] for entry in files]  # keeps whole files out of what -vvv shows

    refuse_wrong_paths(module, [*directories, *files])
    outdated = [entry for entry in files if read(entry["path"]) != wanted(entry)]
    for entry in outdated:
        validate(module, entry)

    changed_paths: list[str] = []
    diffs: list[Diff] = []
    for entry in directories:
        created = ensure_directory(module, entry)
        settle(module, entry, created, changed_paths, diffs)
    for entry in files:
        written = entry in outdated
        if written:
            diffs.append(content_diff(entry))
            write(module, entry)
        settle(module, entry, written, changed_paths, diffs)
    shown = {"diff": diffs} if module._diff else {}  # callbacks show it even where a task says `diff: false`
    module.exit_json(changed=bool(changed_paths), changed_paths=changed_paths, **shown)


def refuse_wrong_paths(module: AnsibleModule, entries: list[Entry]) -> None:
    paths = [entry["path"] for entry in entries]
    for path in paths:
        if not Path(path).is_absolute():
            module.fail_json(msg=f"path {path!r} is relative; give an absolute path")
        if paths.count(path) > 1:
            module.fail_json(msg=f"path {path!r} is given twice; keep one")
    for entry in entries:
        is_file = "content" in entry
        if os.path.lexists(entry["path"]) and is_file == Path(entry["path"]).is_dir():
            seen, need = ("a directory", "a file") if is_file else ("not a directory", "a directory")
            module.fail_json(msg=f"{entry['path']} is {seen}, wanted {need}; move it away and run again")


def wanted(entry: Entry) -> bytes:
    content: str = entry["content"]
    return (content if content.endswith("\n") else content + "\n").encode()


def read(path: str) -> bytes | None:
    """Return the file's content, or None when there is no such file."""
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        return None


def validate(module: AnsibleModule, entry: Entry) -> None:
    """Let the entry's validator judge the new content; end the module when it refuses."""
    if not entry["validate"]:
        return
    if "%s" not in entry["validate"]:
        module.fail_json(msg=f"validate of {entry['path']} lacks %s, the place of the file to be checked")
    command = shlex.split(entry["validate"])
    if module.check_mode and shutil.which(command[0]) is None:
        return
    candidate = temporary_copy(module, entry, module.tmpdir)
    code, out, err = module.run_command([word.replace("%s", candidate) for word in command])
    Path(candidate).unlink()
    if code != 0:
        reason = f"{out}\n{err}".replace(candidate, entry["path"]).strip()
        module.fail_json(
            msg=f"{entry['path']}: the new content was refused by `{command[0]}` (exit {code}), no file was changed. "
            f"Correct the variables behind it. {reason}"
        )


def temporary_copy(module: AnsibleModule, entry: Entry, directory: str) -> str:
    # Validators such as systemd-analyze go by the ending of the name.
    handle, path = tempfile.mkstemp(dir=directory, prefix=".coderack-", suffix=Path(entry["path"]).suffix)
    module.add_cleanup_file(path)
    with os.fdopen(handle, "wb") as file:
        file.write(wanted(entry))
    return path


def ensure_directory(module: AnsibleModule, entry: Entry) -> bool:
    """Create the directory where it is missing; return whether it was."""
    if Path(entry["path"]).is_dir():
        return False
    if not module.check_mode:
        Path(entry["path"]).mkdir(parents=True)
    return True


def content_diff(entry: Entry) -> Diff:
    return {
        "before_header": entry["path"],
        "after_header": entry["path"],
        "before": (read(entry["path"]) or b"").decode(errors="replace"),
        "after": wanted(entry).decode(),
    }


def write(module: AnsibleModule, entry: Entry) -> None:
    if module.check_mode:
        return
    parent = Path(entry["path"]).parent
    if not parent.is_dir():
        module.fail_json(msg=f"{entry['path']}: there is no directory {parent}; add it to `directories`")
    # The copy is made beside its target, so that the rename can't cross file systems, and gets its owner and mode
    # before anybody can find it under the final name.
    candidate = temporary_copy(module, entry, str(parent))
    set_attributes(module, entry, candidate, None)
    Path(candidate).replace(entry["path"])


def settle(module: AnsibleModule, entry: Entry, written: bool, changed_paths: list[str], diffs: list[Diff]) -> None:
    """Bring owner, group and mode in line and record whether anything about the entry changed."""
    path, attributes_changed = entry["path"], False
    if os.path.lexists(path):
        diff: Diff = {"before_header": path, "after_header": path}
        attributes_changed = set_attributes(module, entry, path, diff)
        if attributes_changed and not written:
            diffs.append(diff)
    if written or attributes_changed:
        changed_paths.append(path)


def set_attributes(module: AnsibleModule, entry: Entry, path: str, diff: Diff | None) -> bool:
    arguments = module.load_file_common_arguments(entry, path=path)
    return bool(module.set_fs_attributes_if_different(arguments, False, diff=diff))


if __name__ == "__main__":
    main()
