"""The gateway's API keys: one secret in AWS Secrets Manager, and the files from which the gateway role reads them.

The secret is a JSON object, name -> key. Terraform makes it empty and never sees a value. On the controller each key is
a file `inventories/<env>/secrets/api-keys/<name>` for its owner only, which git ignores.
"""

import json
import re
import secrets
import string
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coderack.clients.aws import AwsError, errors
from coderack.fleet import files
from coderack.spec.checked import SpecError

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
# What roles/gateway takes.
_KEY = re.compile(r"[A-Za-z0-9._~+/=-]{24,}")
_ALPHABET = string.ascii_letters + string.digits
_LENGTH = 40  # 238 bits
_NOT_FOUND = "ResourceNotFoundException"
_CURRENT = "AWSCURRENT"


def new_key() -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(_LENGTH))


def check_name(name: str) -> None:
    """Raises SpecError for what is no name of a key: it becomes a file's name, and part of the gateway's log."""
    if not _NAME.fullmatch(name):
        problem = "wanted small letters, digits and -, beginning with a letter or digit, such as table-qa"
        raise SpecError(f"key name {name!r:.80}", (problem,))


class SecretStore:
    """The secret. Errors name the secret and never hold a value."""

    def __init__(self, client: Any, secret: str) -> None:
        self._client = client
        self._secret = secret

    def read(self) -> tuple[dict[str, str], str | None]:
        """The keys by name and the version they are in; none and None for a secret that is still empty.

        Raises AwsError, also for a secret that does not exist, and SpecError for one that holds something else.
        """
        try:
            with errors(f"GetSecretValue of {self._secret}"):
                answer = self._client.get_secret_value(SecretId=self._secret, VersionStage=_CURRENT)
                version: str = answer["VersionId"]
        except AwsError as error:
            if error.code != _NOT_FOUND:
                raise
            # The same code for "no such secret" and "no value yet"; only the second lets itself be described.
            with errors(f"DescribeSecret of {self._secret}"):
                self._client.describe_secret(SecretId=self._secret)
            return {}, None
        return _parsed(answer.get("SecretString"), self._secret), version

    def put(self, keys: Mapping[str, str], seen: str | None) -> None:
        """Store `keys` as the current version if `seen` still is the current one: nobody's rotation gets lost.

        Raises AwsError.
        """
        token = str(uuid.uuid4())
        value = json.dumps(dict(sorted(keys.items())))
        # Under a stage of its own a version waits until it is made the current one, which AWS does only if `seen` still
        # is. A secret without a value has no version to be held against: there the value becomes current at once.
        waiting = f"coderack-{token}"
        stages = {} if seen is None else {"VersionStages": [waiting]}
        with errors(f"PutSecretValue of {self._secret}"):
            self._client.put_secret_value(SecretId=self._secret, ClientRequestToken=token, SecretString=value, **stages)
        if seen is None:
            return
        try:
            with errors(f"UpdateSecretVersionStage of {self._secret} (repeat, if another rotation was faster)"):
                self._move(_CURRENT, RemoveFromVersionId=seen, MoveToVersionId=token)
        finally:
            # A version without any stage is deleted by AWS in its own time.
            with errors(f"UpdateSecretVersionStage of {self._secret}"):
                self._move(waiting, RemoveFromVersionId=token)

    def _move(self, stage: str, **versions: str) -> None:
        self._client.update_secret_version_stage(SecretId=self._secret, VersionStage=stage, **versions)


def directory_of(environment: Path) -> Path:
    return environment / "secrets" / "api-keys"


def make_directory(environment: Path) -> Path:
    directory = directory_of(environment)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for one in (directory.parent, directory):
        one.chmod(0o700)
    return directory


def save(directory: Path, keys: Mapping[str, str]) -> list[str]:
    """Write each key to its file, whole or not at all; return the names of those that changed."""
    changed = []
    for name, key in sorted(keys.items()):
        path, text = directory / name, f"{key}\n"
        if files.is_there(path) and path.read_bytes() == text.encode():
            path.chmod(0o600)
            continue
        files.replace(path, text, mode=0o600)
        changed.append(name)
    return changed


def _parsed(text: object, secret: str) -> dict[str, str]:
    """Never puts into an error what it read."""
    what = f"secret {secret}"
    try:
        keys = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        keys = None
    if not isinstance(keys, dict):
        raise SpecError(what, ("its value is no JSON object of name -> key; look at it in AWS's console",))
    for name, key in keys.items():
        check_name(name)
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            problem = "wanted 24 or more of A-Z a-z 0-9 . _ ~ + / = -; make a new one with `coderack keys rotate`"
            raise SpecError(what, (f"the key of {name} is not usable, {problem}",))
    return keys
