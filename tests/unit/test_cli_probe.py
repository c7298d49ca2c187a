"""`coderack probe` as a user meets it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .data import REPOSITORY
from .liveness_server import HANG, MODEL, Group, serving
from .program import run

FULL = (503, '{"error":{"message":"Server overloaded","code":503}}')


def once(url: str, *options: str) -> tuple[int, str, str]:
    return run("probe", "once", "--url", url, "--model", MODEL, "--ranks", "2", *options)


def test_a_token_from_each_rank_is_0() -> None:
    with serving(Group()) as url:
        code, out, err = once(url)
        assert out.splitlines()[-1] == f"{url}: up"
    assert (code, err) == (0, "")


@pytest.mark.parametrize(
    ("group", "code", "state", "outcome"),
    [
        (Group({1: HANG}), 1, "down", "no answer"),
        (Group({1: (500, "EngineDeadError")}), 1, "down", "refused"),
        (Group({1: (404, "The model `m` does not exist.")}), 1, "down", "wrong model"),
        (Group({1: HANG}, steps={1: 1}), 3, "unknown", "busy"),
        (Group({1: FULL}, steps={1: 1}), 3, "unknown", "busy"),
        (Group({1: (401, "Unauthorized")}), 3, "unknown", "refused"),
    ],
)
def test_json_says_what_became_of_each_rank(group: Group, code: int, state: str, outcome: str) -> None:
    with serving(group) as url:
        seen, out, _ = once(url, "--json", "--timeout", "0.3")
    report = json.loads(out)
    assert (seen, report["schema"], report["state"]) == (code, "coderack.token-probe-once/1", state)
    assert [rank["outcome"] for rank in report["ranks"]] == ["ok", outcome]


def test_a_shut_port_is_3() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    code, out, _ = once(url)
    assert code == 3
    assert "unreachable" in out


# --- the key


def key_file(folder: Path, text: str = "key-1\n", mode: int = 0o600) -> str:
    path = folder / "key"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize("text", ["key-1\n", "# Written by Ansible\nVLLM_API_KEY=key-1\n", 'VLLM_API_KEY="key-1"'])
@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640])
def test_the_key_comes_from_a_file(tmp_path: Path, text: str, mode: int) -> None:
    with serving(Group(api_key="key-1")) as url:
        assert once(url, "--api-key-file", key_file(tmp_path, text, mode))[0] == 0


def test_an_environment_file_without_a_key_is_no_key(tmp_path: Path) -> None:
    with serving(Group()) as url:
        assert once(url, "--api-key-file", key_file(tmp_path, "# Written by Ansible\n"))[0] == 0


@pytest.mark.parametrize(
    "text", ["", "\n", "two keys\n", "two\nkeys\n", "VLLM_API_KEY=\n", "k\x00\n", "k" * 5000, "ключ"]
)
def test_a_file_without_one_key_is_refused_and_not_repeated(tmp_path: Path, text: str) -> None:
    code, _, err = once("http://127.0.0.1:1", "--api-key-file", key_file(tmp_path, text))
    assert code == 2
    assert "two" not in err
    assert "kkk" not in err


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o660])
def test_a_key_that_others_can_reach_is_refused(tmp_path: Path, mode: int) -> None:
    code, _, err = once("http://127.0.0.1:1", "--api-key-file", key_file(tmp_path, mode=mode))
    assert code == 2
    assert f"has mode {mode:04o}, wanted 0600 or 0640" in err


def test_a_pipe_or_folder_is_no_key_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "nothing"):
        code, _, err = once("http://127.0.0.1:1", "--api-key-file", str(path))
        assert code == 2
        assert str(path) in err


# --- bad input


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("once", "--url", "gpu-a:8000", "--model", "m", "--ranks", "1"), "wanted one such as"),
        (("once", "--url", "http://u:p@x", "--model", "m", "--ranks", "1"), "holds a user or password"),
        (("once", "--url", "http://x", "--model", " ", "--ranks", "1"), "--model is empty"),
        (("once", "--url", "http://x", "--model", "\udcff", "--ranks", "1"), "wanted UTF-8 text"),
        (("once", "--url", "http://x", "--model", "m", "--ranks", "0"), "than or equal to"),
        (("once", "--url", "http://x", "--model", "m", "--ranks", "99999999999999"), "than or equal to"),
        (("watch", "--url", "http://x", "--model", "m", "--ranks", "1", "--interval", "nan"), "than or equal to"),
        (
            ("watch", "--url", "http://x", "--model", "m", "--ranks", "1", "--start-limit", "nan"),
            "than or equal to",
        ),
        (("watch", "--url", "http://x", "--model", "m", "--ranks", "1", "--listen", ":80"), "wanted a numeric address"),
        (("watch", "--url", "http://x", "--model", "m", "--ranks", "1", "--listen", "127.0.0.1:0"), "such as 10.77"),
        (("watch", "--url", "http://x", "--model", "m", "--ranks", "1", "--listen", "::1:x"), "such as 10.77"),
        (
            ("watch", "--url", "http://x", "--model", "m", "--ranks", "1", "--out", "/"),
            "--out is /, which is no regular file",
        ),
        (("watch", "--url", "http://x", "--model", "m", "--ranks", "1", "--textfile", "/dev/null"), "no regular file"),
        (
            ("watch", "--url", "http://x", "--model", "m", "--ranks", "1", "--unit", "--now"),
            "wanted the name of a unit",
        ),
    ],
)
def test_bad_input_is_2_and_says_what_is_wanted(words: tuple[str, ...], message: str) -> None:
    code, _, err = run("probe", *words)
    assert code == 2
    assert message in " ".join(err.replace("│", " ").split())


# --- the service as a process


def test_sigterm_ends_the_service_with_0_and_the_state_stopped(tmp_path: Path) -> None:
    out = tmp_path / "probe.json"
    with serving(Group()) as url:
        words = ("probe", "watch", "--url", url, "--model", MODEL, "--ranks", "2", "--out", str(out))
        process = subprocess.Popen(
            [sys.executable, "-m", "coderack.cli.main", *words],
            env={"PYTHONPATH": str(REPOSITORY / "tools"), "PATH": ""},
            stderr=subprocess.PIPE,
            text=True,
        )
        deadline = time.monotonic() + 20
        while not out.exists() or json.loads(out.read_text())["state"] != "up":
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=10)
    assert process.returncode == 0
    assert json.loads(out.read_text())["state"] == "stopped"
    assert [line.split(":")[1].strip() for line in err.splitlines()] == ["up", "stopped"]
