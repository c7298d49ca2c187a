"""The module behind the roles' files: all or nothing, nothing twice, honest in check mode."""

from __future__ import annotations

import grp
import importlib.util
import json
import os
import pwd
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.testing import patch_module_args

SOURCE = Path(__file__).parents[2] / "ansible/plugins/modules/coderack_files.py"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the module with these arguments and return what it tells Ansible."""
    spec = importlib.util.spec_from_file_location("coderack_files", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    me = {"owner": pwd.getpwuid(os.getuid()).pw_name, "group": grp.getgrgid(os.getgid()).gr_name}

    def call(*, check: bool = False, diff: bool = False, **arguments: list[dict[str, Any]]) -> dict[str, Any]:
        owned = {key: [{**me, **entry} for entry in entries] for key, entries in arguments.items()}
        # Ansible hands the task's no_log to every module, and false is what it hands to most.
        modes = {"_ansible_check_mode": check, "_ansible_diff": diff, "_ansible_no_log": False}
        with patch_module_args({**owned, **modes}), pytest.raises(SystemExit):
            module.main()
        return dict(json.loads(capsys.readouterr().out))

    return call


def entry(path: Path, content: str = "new\n", **more: str) -> dict[str, Any]:
    return {"path": str(path), "content": content, **more}


def test_a_second_run_changes_nothing(run: Any, tmp_path: Path) -> None:
    arguments = {"directories": [{"path": str(tmp_path / "d")}], "files": [entry(tmp_path / "d/f", mode="0640")]}
    assert run(**arguments)["changed_paths"] == [str(tmp_path / "d"), str(tmp_path / "d/f")]
    assert (tmp_path / "d/f").stat().st_mode & 0o777 == 0o640
    assert run(**arguments)["changed"] is False


def test_the_nodes_log_has_no_content_of_files(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[str] = []
    monkeypatch.setattr(AnsibleModule, "log", lambda self, msg, log_args=None: logged.append(f"{msg} {log_args}"))
    assert run(files=[entry(tmp_path / "f", "key: 0123456789abcdef")])["changed"] is True
    assert logged
    assert "0123456789abcdef" not in "".join(logged)


def test_one_refused_file_leaves_all_others_as_they_were(run: Any, tmp_path: Path) -> None:
    (tmp_path / "first").write_text("old\n")
    result = run(files=[entry(tmp_path / "first"), entry(tmp_path / "second", validate="/bin/false %s")])
    assert result["failed"] is True
    assert "second: the new content was refused by `/bin/false` (exit 1), no file was changed" in result["msg"]
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("first", "old\n")]


def test_a_validator_sees_the_new_content(run: Any, tmp_path: Path) -> None:
    assert run(files=[entry(tmp_path / "f", "wanted", validate="grep -qx wanted %s")])["changed"] is True


def test_check_mode_tells_and_touches_nothing(run: Any, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("old\n")
    result = run(check=True, diff=True, directories=[{"path": str(tmp_path / "d")}], files=[entry(tmp_path / "f")])
    assert result["changed_paths"] == [str(tmp_path / "d"), str(tmp_path / "f")]
    assert (result["diff"][0]["before"], result["diff"][0]["after"]) == ("old\n", "new\n")
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
    assert (tmp_path / "f").read_text() == "old\n"


def test_without_diff_no_result_tells_what_is_in_a_file(run: Any, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("old-secret\n")
    refused = run(files=[entry(tmp_path / "f", "new-secret", validate="/bin/false %s")])
    written = run(files=[entry(tmp_path / "f", "new-secret")])
    assert (refused["failed"], written["changed"]) == (True, True)
    assert "secret" not in json.dumps([refused, written])


@pytest.mark.parametrize("check", [True, False])
def test_a_validator_that_is_missing_counts_only_outside_check_mode(run: Any, tmp_path: Path, check: bool) -> None:
    result = run(check=check, files=[entry(tmp_path / "f", validate="/nonexistent/validator %s")])
    assert result.get("failed", False) is not check


def test_a_mode_that_drifted_is_put_right(run: Any, tmp_path: Path) -> None:
    run(files=[entry(tmp_path / "f")])
    (tmp_path / "f").chmod(0o666)
    assert run(files=[entry(tmp_path / "f")])["changed_paths"] == [str(tmp_path / "f")]
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    ("paths", "message"),
    [(["relative"], "is relative"), (["/tmp/same", "/tmp/same"], "is given twice"), (["/tmp"], "is a directory")],
)
def test_wrong_paths_are_refused(run: Any, paths: list[str], message: str) -> None:
    result = run(files=[{"path": path, "content": "x"} for path in paths])
    assert message in result["msg"]
