"""Plain data as YAML text, always the same bytes for the same data.

PyYAML's emitter builds an object per value and takes 20 s and 1 GB for 10,000 nodes; this takes a fraction of a second.
What it writes is read back by PyYAML in the tests.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

_RESOLVER: Any = yaml.resolver.Resolver()
_TEXT_TAG = "tag:yaml.org,2002:str"
# A subset of what YAML takes without quotes: no indicator anywhere, no space at the end.
_PLAIN = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9 ._/()+-]*[A-Za-z0-9._/()+-])?")
_PRINTABLE = re.compile(r"[ -&(-~]+")  # ASCII without the single quote


def dump(data: Mapping[str, Any]) -> str:
    """`data` as block-style YAML: mappings with short text as keys, lists of scalars, text, numbers, booleans, None."""
    lines: list[str] = []
    _mapping(data, "", lines)
    return ("\n".join(lines) or "{}") + "\n"


def _mapping(data: Mapping[str, Any], indent: str, lines: list[str]) -> None:
    for key in sorted(data):
        value = data[key]
        head = f"{indent}{_text(key)}:"
        if isinstance(value, Mapping) and value:
            lines.append(head)
            _mapping(value, f"{indent}  ", lines)
        elif isinstance(value, Sequence) and not isinstance(value, str) and value:
            lines.append(head)
            lines.extend(f"{indent}  - {_scalar(item)}" for item in value)
        else:
            lines.append(f"{head} {_scalar(value)}")


def _scalar(value: object) -> str:
    if isinstance(value, str):
        return _text(value)
    # true, false, null, numbers, [] and {} are written in YAML as in JSON.
    return json.dumps(value)


def _text(text: str) -> str:
    if _PLAIN.fullmatch(text) and _RESOLVER.resolve(yaml.ScalarNode, text, (True, False)) == _TEXT_TAG:
        return text
    if _PRINTABLE.fullmatch(text):
        return f"'{text}'"
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(char: str) -> str:
    return char if _PRINTABLE.fullmatch(char) and char not in '"\\' else f"\\U{ord(char):08X}"
