"""`coderack fleet guard`: no GPU node and no weights bucket goes by accident."""

from dataclasses import asdict
from typing import Annotated

import typer

from coderack.cli.console import Exit, JsonOption, fail, print_json, printable
from coderack.cli.environment import outcomes, read_text
from coderack.fleet import guard as plans


def guard(
    plan: Annotated[str, typer.Argument(metavar="PLAN.json|-", help="What terraform show -json PLANFILE printed.")],
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", metavar="ADDRESS", help="Resource that may go; may be given several times."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Refuse a plan that would destroy, replace or forget a GPU node, the weights bucket or a KMS key.

    An instance counts as a GPU node unless its tag coderack:role is ops. What is meant to go is named in full,
    as the plan names it.

    Example: terraform show -json tfplan | coderack fleet guard --allow 'module.gpu_nodes.aws_instance.gpu["gpu-a"]' -
    """
    allowed = allow or []
    with outcomes():
        found = plans.losses(read_text(plan))
    refused = [loss for loss in found if loss.address not in allowed]
    if as_json:
        lists = {"refused": [asdict(loss) for loss in refused], "losses": [asdict(loss) for loss in found]}
        print_json("coderack.fleet-guard/1", {"holds": not refused, "allowed": allowed, **lists})
    else:
        for loss in found:
            typer.echo(printable(f"{loss}{'' if loss in refused else ' (allowed)'}"))
        if not found:
            typer.echo("the plan keeps all GPU nodes and the weights bucket")
    for address in plans.unknown_addresses(found, allowed):
        typer.echo(printable(f"coderack: --allow {address}: the plan loses nothing of this address"), err=True)
    if refused:
        options = " ".join(f"--allow '{loss.address}'" for loss in refused)
        problem = f"{len(refused)} loss(es) that nobody allowed; change the plan, or say that it is meant: {options}"
        fail(Exit.DOES_NOT_HOLD, problem)
