"""Files that a person gives: read up to a bound, and an error that names them."""

from pathlib import Path

from coderack.spec.checked import SpecError


def read_bytes(path: Path, limit: int, wanted: str) -> bytes:
    """Return the content of `path`. Raises SpecError, with what was `wanted`, when it cannot be read or is larger."""
    try:
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise SpecError(str(path), (f"cannot be read ({error.strerror}); wanted {wanted}",)) from None
    if len(content) > limit:
        raise SpecError(str(path), (f"has more than {limit} bytes; wanted {wanted}",))
    return content
