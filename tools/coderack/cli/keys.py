"""`coderack keys`: the gateway's API keys, made and rotated without anybody seeing them."""

from pathlib import Path
from typing import Annotated

import typer

from coderack.cli.console import JsonOption, print_json
from coderack.cli.environment import (
    DEFAULT_INVENTORIES,
    EnvOption,
    InventoriesOption,
    RegionOption,
    outcomes,
)
from coderack.clients import aws
from coderack.clients.terraform import state
from coderack.fleet import api_keys, files, inventory
from coderack.fleet.contract import output_value, parse_json
from coderack.spec.checked import SpecError

app = typer.Typer(help="Make, rotate and fetch the gateway's API keys.", no_args_is_help=True, add_completion=False)

_OUTPUT = "api_keys_secret"
SecretOption = Annotated[
    str | None,
    typer.Option(
        "--secret", metavar="NAME|ARN", envvar="CODERACK_API_KEYS_SECRET", help="Secret in AWS Secrets Manager."
    ),
]
SecretFromOption = Annotated[
    Path | None, typer.Option("--from", metavar="DIR", help=f"Terraform root whose output {_OUTPUT} names the secret.")
]


@app.command()
def rotate(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Holder of the key, as in gateway_api_keys.")],
    *,
    env: EnvOption,
    secret: SecretOption = None,
    root: SecretFromOption = None,
    local: Annotated[bool, typer.Option("--local", help="No secret: only the file (bare metal, lab).")] = False,
    region: RegionOption = None,
    inventories: InventoriesOption = DEFAULT_INVENTORIES,
    as_json: JsonOption = False,
) -> None:
    """Make a new key for NAME, in the secret and in inventories/ENV/secrets/api-keys/NAME.

    The key is printed nowhere. The old one works until `make configure` has written the new one to the gateway, so give
    the holder the file first. Where clients cannot change at one moment, rotate under a second name and drop the first.

    Example: coderack keys rotate table-qa --env aws --from terraform/stacks/aws
    """
    with outcomes(f"key of {name} not rotated"):
        api_keys.check_name(name)
        environment = inventory.hosts_file(inventories, env).parent
        if local and root is not None:
            raise SpecError("keys", ("--local and --from given, wanted one of them",))
        store = None if local else _store(secret, root, region)
        directory = api_keys.make_directory(environment)
        files.is_there(directory / name)  # refuses a link or folder there before the secret is changed
        key = api_keys.new_key()
        with files.lock(directory / ".lock"):
            if store is not None:
                keys, version = store.read()
                store.put({**keys, name: key}, version)
            _save(directory, {name: key}, in_secret=store is not None)
    path = directory / name
    if as_json:
        print_json("coderack.keys-rotate/1", {"env": env, "name": name, "path": str(path), "in_secret": not local})
    else:
        typer.echo(
            f"{path} written{'' if local else ' and stored in the secret'}; `make configure` brings it to the gateway"
        )


@app.command()
def pull(
    *,
    env: EnvOption,
    secret: SecretOption = None,
    root: SecretFromOption = None,
    region: RegionOption = None,
    inventories: InventoriesOption = DEFAULT_INVENTORIES,
    as_json: JsonOption = False,
) -> None:
    """Fetch all keys of the secret into inventories/ENV/secrets/api-keys/, where the gateway role reads them.

    Files of names that the secret does not have are left alone.

    Example: coderack keys pull --env aws --secret coderack-api-keys --region us-west-2
    """
    with outcomes(f"keys of {env} not fetched"):
        environment = inventory.hosts_file(inventories, env).parent
        keys, _ = _store(secret, root, region).read()
        if not keys:
            raise SpecError("secret", ("it has no keys yet; make the first with `coderack keys rotate NAME`",))
        directory = api_keys.make_directory(environment)
        with files.lock(directory / ".lock"):
            changed = api_keys.save(directory, keys)
    if as_json:
        print_json(
            "coderack.keys-pull/1", {"env": env, "path": str(directory), "names": sorted(keys), "changed": changed}
        )
    else:
        typer.echo(f"{directory}: {', '.join(sorted(keys))}; changed: {', '.join(changed) or 'none'}")


def _store(secret: str | None, root: Path | None, region: str | None) -> api_keys.SecretStore:
    """An ARN, or the output that holds one, names the region too."""
    if root is not None:
        secret = _secret_of(root)
    if not secret:
        problem = "which secret is not known; give --from DIR (Terraform's output), --secret NAME, or --local for none"
        raise SpecError("keys", (problem,))
    parts = secret.split(":")
    if region is None and len(parts) > 6 and parts[0] == "arn":
        region = parts[3]
    return api_keys.SecretStore(aws.client("secretsmanager", region), secret)


def _secret_of(root: Path) -> str:
    text = state(root)
    value = output_value(parse_json(text, "Terraform state") if text.strip() else {}, _OUTPUT)
    if not isinstance(value, str) or not value:
        raise SpecError(f"{_OUTPUT} output", (f"is {type(value).__name__}, wanted the secret's name or ARN",))
    return value


def _save(directory: Path, keys: dict[str, str], *, in_secret: bool) -> None:
    try:
        api_keys.save(directory, keys)
    except OSError as error:
        remedy = "; the new key IS in the secret: make room and run `coderack keys pull`" if in_secret else ""
        raise OSError(f"{error}{remedy}") from error
