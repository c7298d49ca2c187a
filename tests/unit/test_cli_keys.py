"""`coderack keys` against Secrets Manager, which the lab's emulator plays."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from coderack.clients.aws import AwsError
from coderack.fleet import api_keys, files

from .cloud import REGION, client
from .program import run

SECRET = "coderack-api-keys"


@pytest.fixture
def manager(aws: str) -> Any:
    """Secrets Manager with the empty secret that Terraform makes."""
    made = client("secretsmanager")
    made.create_secret(Name=SECRET)
    return made


def keys(*words: str, secret: str | None = SECRET) -> tuple[int, str, str]:
    options = ("--secret", secret, "--region", REGION) if secret else ()
    return run("keys", *words, "--env", "aws", *options)


def stored(manager: Any) -> dict[str, str]:
    value: dict[str, str] = json.loads(
        manager.get_secret_value(SecretId=SECRET, VersionStage="AWSCURRENT")["SecretString"]
    )
    return value


def local(inventories: Path) -> dict[str, str]:
    directory = inventories / "aws" / "secrets" / "api-keys"
    return {path.name: path.read_text() for path in directory.iterdir() if not path.name.startswith(".")}


def test_makes_the_first_key_in_the_secret_and_in_a_file_for_its_owner_only(inventories: Path, manager: Any) -> None:
    code, out, err = keys("rotate", "table-qa")
    assert (code, err) == (0, "")
    (key,) = stored(manager).values()
    assert len(key) == 40
    assert local(inventories) == {"table-qa": f"{key}\n"}
    path = inventories / "aws" / "secrets" / "api-keys" / "table-qa"
    assert [stat.S_IMODE(one.stat().st_mode) for one in (path, path.parent, path.parent.parent)] == [
        0o600,
        0o700,
        0o700,
    ]
    assert out == (
        "inventories/aws/secrets/api-keys/table-qa written and stored in the secret; "
        "`make configure` brings it to the gateway\n"
    )


def test_rotates_one_key_and_leaves_the_others(inventories: Path, manager: Any) -> None:
    keys("rotate", "table-qa")
    keys("rotate", "smoke")
    before = stored(manager)
    code, out, err = keys("rotate", "table-qa", "--json")
    after = stored(manager)
    assert code == 0
    assert after["smoke"] == before["smoke"]
    assert after["table-qa"] != before["table-qa"]
    assert local(inventories) == {name: f"{key}\n" for name, key in after.items()}
    shown = json.loads(out)
    assert (shown["schema"], shown["name"], shown["in_secret"]) == ("coderack.keys-rotate/1", "table-qa", True)
    assert not any(key in out + err for key in (*before.values(), *after.values()))


def test_pull_fetches_all_keys_and_says_which_changed(inventories: Path, manager: Any) -> None:
    values = {"smoke": "s" * 24, "table-qa": "t" * 40}
    manager.put_secret_value(SecretId=SECRET, SecretString=json.dumps(values))
    code, out, _ = keys("pull")
    assert (code, out) == (0, "inventories/aws/secrets/api-keys: smoke, table-qa; changed: smoke, table-qa\n")
    assert local(inventories) == {name: f"{key}\n" for name, key in values.items()}
    path = inventories / "aws" / "secrets" / "api-keys" / "smoke"
    path.chmod(0o644)
    code, out, _ = keys("pull", "--json")
    assert (code, json.loads(out)["changed"]) == (0, [])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_rotation_on_top_of_an_older_version_is_refused(manager: Any) -> None:
    store = api_keys.SecretStore(manager, SECRET)
    store.put({"a": "a" * 40}, None)
    seen, version = store.read()
    store.put({**seen, "b": "b" * 40}, version)
    with pytest.raises(AwsError, match="repeat, if another rotation was faster"):
        store.put({**seen, "c": "c" * 40}, version)
    assert stored(manager) == {"a": "a" * 40, "b": "b" * 40}
    stages = manager.describe_secret(SecretId=SECRET)["VersionIdsToStages"]
    assert sorted(stage for names in stages.values() for stage in names) == ["AWSCURRENT", "AWSPREVIOUS"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("not json", "its value is no JSON object of name -> key"),
        ("[1]", "its value is no JSON object of name -> key"),
        ('{"../../evil": "kkkkkkkkkkkkkkkkkkkkkkkkkkkkk"}', "wanted small letters, digits and -"),
        ('{"table-qa": "short"}', "the key of table-qa is not usable"),
        ('{"table-qa": "with a space and more than 24"}', "the key of table-qa is not usable"),
        ('{"table-qa": 7}', "the key of table-qa is not usable"),
    ],
)
@pytest.mark.parametrize("verb", [("pull",), ("rotate", "smoke")])
def test_a_secret_that_holds_something_else_is_2_and_not_shown(
    inventories: Path, manager: Any, verb: tuple[str, ...], value: str, message: str
) -> None:
    manager.put_secret_value(SecretId=SECRET, SecretString=value)
    code, out, err = keys(*verb)
    assert (code, out) == (2, "")
    assert message in err
    assert not any(part in err for part in ("not json", "kkkk", "short", "with a space"))
    assert manager.get_secret_value(SecretId=SECRET)["SecretString"] == value


def test_an_empty_secret_has_nothing_to_pull(inventories: Path, manager: Any) -> None:
    code, _, err = keys("pull")
    assert code == 2
    assert "it has no keys yet; make the first with `coderack keys rotate NAME`" in err


@pytest.mark.parametrize("verb", [("pull",), ("rotate", "smoke")])
def test_a_secret_that_is_not_there_is_3(inventories: Path, manager: Any, verb: tuple[str, ...]) -> None:
    code, _, err = keys(*verb, secret="other")
    assert code == 3
    assert "DescribeSecret of other: AWS answers ResourceNotFoundException" in err


@pytest.mark.parametrize("name", ["", "Table", "a/b", "../x", ".lock", "a b", "x" * 64])
def test_a_name_that_is_no_file_name_is_2(inventories: Path, manager: Any, name: str) -> None:
    code, _, err = keys("rotate", "--", name) if name.startswith("-") else keys("rotate", name)
    assert code == 2
    assert "wanted small letters, digits and -" in err


def test_which_secret_must_be_known(inventories: Path, manager: Any) -> None:
    code, _, err = keys("rotate", "smoke", secret=None)
    assert code == 2
    assert "which secret is not known; give --from DIR (Terraform's output), --secret NAME, or --local" in err
    code, _, err = run("keys", "rotate", "smoke", "--env", "aws", "--local", "--from", "stack")
    assert code == 2


def test_an_arn_names_the_region_too(inventories: Path, manager: Any) -> None:
    arn = manager.describe_secret(SecretId=SECRET)["ARN"]
    code, _, err = run("keys", "rotate", "smoke", "--env", "aws", "--secret", arn)
    assert (code, err) == (0, "")


def test_bare_metal_has_files_only(inventories: Path) -> None:
    code, out, _ = run("keys", "rotate", "table-qa", "--env", "lab", "--local")
    assert (code, out) == (
        0,
        "inventories/lab/secrets/api-keys/table-qa written; `make configure` brings it to the gateway\n",
    )
    key = (inventories / "lab" / "secrets" / "api-keys" / "table-qa").read_text()
    assert len(key.strip()) == 40


def test_two_rotations_at_once_do_not_mix(inventories: Path, manager: Any) -> None:
    keys("rotate", "smoke")
    with files.lock(inventories / "aws" / "secrets" / "api-keys" / ".lock"):
        code, _, err = keys("rotate", "table-qa")
    assert code == 3
    assert "is held by another run of this command" in err
    assert list(stored(manager)) == ["smoke"]


def test_a_link_in_the_files_place_is_refused_before_the_secret_is_changed(inventories: Path, manager: Any) -> None:
    keys("rotate", "smoke")
    before, path = stored(manager), inventories / "aws" / "secrets" / "api-keys" / "smoke"
    path.unlink()
    path.symlink_to("elsewhere")
    code, _, err = keys("rotate", "smoke")
    assert code == 2
    assert "is no regular file; move it away first" in err
    assert stored(manager) == before


def test_a_file_that_cannot_be_written_is_3_and_says_that_the_secret_has_the_key(
    inventories: Path, manager: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    code, _, err = keys("rotate", "smoke")
    assert code == 3
    assert "the new key IS in the secret: make room and run `coderack keys pull`" in err
    assert stored(manager)["smoke"] not in err
