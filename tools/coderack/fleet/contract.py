"""Read the Terraform `fleet` output."""

import json
from collections import Counter
from typing import Any

from coderack.spec.checked import SpecError, validate
from coderack.spec.fleet import Fleet

_OUTPUT = "fleet output"


def parse_fleet(text: str) -> Fleet:
    """Return the fleet in `text`: what `terraform output -json fleet` prints, or the whole `terraform output -json`.

    Raises SpecError.
    """
    if not text.strip():
        raise SpecError(_OUTPUT, ("the input is empty, wanted JSON; has `terraform apply` run in this stack?",))
    try:
        data = json.loads(text, object_pairs_hook=_no_doubles)
    except SpecError:
        raise
    except json.JSONDecodeError as error:
        raise SpecError(_OUTPUT, (f"line {error.lineno} column {error.colno} is not JSON: {error.msg}",)) from None
    except (ValueError, RecursionError) as error:
        # A number with thousands of digits, or nesting without end: valid JSON, but no fleet.
        raise SpecError(_OUTPUT, (f"the JSON cannot be read: {error}",)) from None
    return validate(Fleet, _fleet_value(data), _OUTPUT)


def _fleet_value(data: object) -> object:
    if not isinstance(data, dict):
        raise SpecError(_OUTPUT, (f"the input is a JSON {type(data).__name__}, wanted an object",))
    if "nodes" in data:
        return data
    output = data.get("fleet")
    if not isinstance(output, dict):
        seen = ", ".join(sorted(data)) or "nothing"
        problem = f"the input holds {seen}, wanted nodes or an output named fleet; has `terraform apply` run here?"
        raise SpecError(_OUTPUT, (problem,))
    if output.get("sensitive"):
        raise SpecError(_OUTPUT, ("the output is marked sensitive; secrets do not belong into the inventory",))
    return output.get("value", output)


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    doubles = sorted((key, times) for key, times in Counter(key for key, _ in pairs).items() if times > 1)
    if doubles:
        raise SpecError(_OUTPUT, tuple(f"key {key} is given {times} times, wanted once" for key, times in doubles))
    return dict(pairs)
