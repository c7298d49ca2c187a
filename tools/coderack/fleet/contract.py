"""Read the Terraform `fleet` output, from what Terraform prints or from its state."""

import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from coderack.spec.checked import SpecError, validate
from coderack.spec.fleet import Fleet

_OUTPUT = "fleet output"
# Terraform writes a UUID. It ends up in the header of a file: nothing that could leave the comment gets through.
_LINEAGE = re.compile(r"[0-9A-Za-z-]{1,64}")


@dataclass(frozen=True)
class Origin:
    """Where a fleet was read; serial and lineage name one state of one stack, where the input tells them."""

    source: str
    serial: int | None = None
    lineage: str | None = None

    def __str__(self) -> str:
        known = (("serial", self.serial), ("lineage", self.lineage))
        return ", ".join([self.source, *(f"{name} {value}" for name, value in known if value is not None)])


def parse_fleet(text: str) -> Fleet:
    """As `parse_contract`, without its origin."""
    return parse_contract(text, "-")[0]


def parse_contract(text: str, source: str) -> tuple[Fleet, Origin]:
    """Return the fleet in `text` and where it came from; `source` says how `text` was got.

    Takes what `terraform output -json fleet`, `terraform output -json` and `terraform state pull` print; only the last
    tells serial and lineage. Raises SpecError.
    """
    if not text.strip():
        raise SpecError(_OUTPUT, ("the input is empty, wanted JSON; has `terraform apply` run in this stack?",))
    data = parse_json(text, _OUTPUT)
    fleet = validate(Fleet, _fleet_value(data), _OUTPUT)
    return fleet, _origin(data, source)


def parse_json(text: str, what: str) -> Any:
    """`text` as JSON in which no key is given twice; `what` names it in the SpecError."""

    def no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) < len(pairs):
            counted = sorted(Counter(key for key, _ in pairs).items())
            problems = (f"key {key} is given {times} times, wanted once" for key, times in counted if times > 1)
            raise SpecError(what, tuple(problems))
        return members

    try:
        return json.loads(text, object_pairs_hook=no_doubles)
    except SpecError:
        raise
    except json.JSONDecodeError as error:
        raise SpecError(what, (f"line {error.lineno} column {error.colno} is not JSON: {error.msg}",)) from None
    except (ValueError, RecursionError) as error:
        # A number with thousands of digits, or nesting without end: valid JSON, but nothing of ours.
        raise SpecError(what, (f"the JSON cannot be read: {error}",)) from None


def output_value(data: object, name: str) -> Any:
    """The value of the output `name` in what `terraform output -json` or `terraform state pull` printed."""
    what = f"{name} output"
    if not isinstance(data, dict):
        raise SpecError(what, (f"the input is a JSON {type(data).__name__}, wanted an object",))
    outputs = data["outputs"] if _is_state(data) else data
    output = outputs.get(name) if isinstance(outputs, dict) else None
    if not isinstance(output, dict):
        seen = ", ".join(sorted(outputs)) if isinstance(outputs, dict) and outputs else "nothing"
        wanted = "nodes or an output named fleet" if name == "fleet" else f"an output named {name}"
        problem = f"the input holds {seen}, wanted {wanted}; has `terraform apply` run here?"
        raise SpecError(what, (problem,))
    if output.get("sensitive"):
        raise SpecError(what, ("the output is marked sensitive; secrets do not belong into the inventory",))
    return output.get("value", output)


def _fleet_value(data: object) -> object:
    if isinstance(data, dict) and "nodes" in data:
        return data
    return output_value(data, "fleet")


def _is_state(data: dict[str, Any]) -> bool:
    return "lineage" in data and "outputs" in data


def _origin(data: object, source: str) -> Origin:
    if not isinstance(data, dict) or not _is_state(data):
        return Origin(source)
    serial, lineage = data.get("serial"), data["lineage"]
    if type(serial) is not int or not isinstance(lineage, str) or not _LINEAGE.fullmatch(lineage):
        problem = (
            f"serial is {serial!r:.40} and lineage {lineage!r:.80}, wanted a number and a UUID as Terraform writes them"
        )
        raise SpecError("Terraform state", (problem,))
    return Origin(source, serial, lineage)
