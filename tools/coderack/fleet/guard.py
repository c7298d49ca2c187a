"""Which changes of a Terraform plan would cost a GPU node or the weights.

A GPU node that is replaced loses its local copy of the weights, and at AWS perhaps its place: capacity that was given
back is seldom to be had again. Terraform calls both "1 to destroy", between ten harmless lines.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from coderack.fleet.contract import parse_json
from coderack.spec.checked import SpecError

_PLAN = "plan"
_ROLE_TAG = "coderack:role"
_WEIGHTS = re.compile(r"(?:^|[._\-\[\"])weights(?:$|[._\-\]\"])")
# What Terraform's JSON plans know (format 1.x). Another word means that a change cannot be judged.
_ACTIONS = ("no-op", "create", "read", "update", "delete", "forget")


@dataclass(frozen=True)
class Loss:
    """A change that takes something away: `kind` is what, `action` is destroy, replace or forget."""

    address: str
    kind: str
    action: str

    def __str__(self) -> str:
        return f"{self.address}: the plan would {self.action} {self.kind}"


def losses(text: str) -> list[Loss]:
    """The losses in what `terraform show -json PLANFILE` printed. Raises SpecError when it is no such plan."""
    plan = parse_json(text, _PLAN)
    if not isinstance(plan, dict) or not str(plan.get("format_version", "")).startswith("1."):
        problem = "no JSON plan of format 1.x; wanted: what `terraform show -json PLANFILE` prints"
        raise SpecError(_PLAN, (problem,))
    if "planned_values" not in plan and "resource_changes" not in plan:
        raise SpecError(
            _PLAN, ("this is a state, not a plan; give `terraform show -json` a file of `terraform plan -out`",)
        )
    if plan.get("errored"):
        raise SpecError(_PLAN, ("planning ended with an error, so changes are missing; mend that and plan again",))
    changes = _changes(plan)
    return sorted((loss for change in changes if (loss := _loss(change))), key=lambda loss: loss.address)


def unknown_addresses(found: Iterable[Loss], allowed: Iterable[str]) -> list[str]:
    """Allowed addresses that are no loss in this plan: misspelt, or left over from another one."""
    return sorted(set(allowed) - {loss.address for loss in found})


def _changes(plan: Mapping[str, Any]) -> list[Any]:
    # Terraform leaves both out when they are empty.
    changes, deferred = (plan.get(member, []) for member in ("resource_changes", "deferred_changes"))
    if not isinstance(changes, list) or not isinstance(deferred, list):
        problem = "resource_changes or deferred_changes is no list; wanted: what `terraform show -json PLANFILE` prints"
        raise SpecError(_PLAN, (problem,))
    return changes + [one.get("resource_change") if isinstance(one, dict) else one for one in deferred]


def _loss(entry: Any) -> Loss | None:
    try:
        address, kind, change = entry["address"], entry["type"], entry["change"]
        actions, before = change["actions"], change.get("before") or {}
        whole = isinstance(address, str) and isinstance(kind, str) and isinstance(before, Mapping)
        known = isinstance(actions, list) and bool(actions) and all(action in _ACTIONS for action in actions)
    except (KeyError, TypeError, AttributeError) as error:
        problem = f"a change cannot be read ({error}); wanted address, type and change.actions in each"
        raise SpecError(_PLAN, (problem,)) from error
    if not whole or not known:
        seen = f"type {kind!r:.80}, actions {actions!r:.80}"
        problem = f"change of {address!r:.200} has {seen}, wanted text and a list of {', '.join(_ACTIONS)}"
        raise SpecError(_PLAN, (problem,))
    words = set(actions)
    if not words & {"delete", "forget"}:
        return None
    what = _protected(address, kind, before)
    if what is None:
        return None
    if "delete" in words:
        return Loss(address, what, "replace" if "create" in words else "destroy")
    # The thing lives on, but nobody would look after it, and the next apply makes and pays for a second one.
    return Loss(address, what, "forget")


def _protected(address: str, kind: str, before: Mapping[str, Any]) -> str | None:
    if kind == "aws_instance":
        # One whose role cannot be told counts as a GPU node; a tag may have been emptied or misspelt by hand.
        tags = before.get("tags_all") or before.get("tags")
        role = tags.get(_ROLE_TAG) if isinstance(tags, Mapping) else None
        return None if role == "ops" else "a GPU node"
    if kind == "aws_s3_bucket" and (_WEIGHTS.search(address) or _WEIGHTS.search(str(before.get("bucket")))):
        return "the weights bucket"
    if kind == "aws_kms_key":
        # Which data a key encrypts, the plan does not tell; the stack has one for bucket, volumes and secret.
        return "a key without which what it encrypted, such as the weights, cannot be read"
    return None
