"""Comments in front of a statement."""

import re

_LEADING = re.compile(r"(?:\s|--[^\n]*(?:\n|\Z)|/\*.*?\*/)*", re.DOTALL)


def skip_comments(text: str) -> int:
    """Offset of the first character of `text` that is neither white space nor part of a comment."""
    match = _LEADING.match(text)
    return match.end() if match else 0
