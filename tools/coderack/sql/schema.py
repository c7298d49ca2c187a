"""A schema file (.sql): its definitions, and if wanted a few of the rows that it inserts."""

import itertools
import re
import sqlite3
from dataclasses import dataclass

from coderack.sql.comments import skip_comments

ROWS_PER_TABLE = 3
# A dump made by `sqlite3 db .dump` or pg_dump has these around the definitions; they say nothing about the tables.
_IGNORED = ("BEGIN", "COMMIT", "PRAGMA", "SET")
_DEFINITIONS = ("CREATE", "ALTER", "COMMENT")

# A quoted piece or a comment, also one that never ends: nothing in it closes a bracket or a statement.
_QUOTED = r"""'[^']*(?:'|\Z)|"[^"]*(?:"|\Z)|`[^`]*(?:`|\Z)|\[[^\]]*(?:\]|\Z)|--[^\n]*|/\*.*?(?:\*/|\Z)"""
_OPAQUE = re.compile(_QUOTED, re.DOTALL)
_PIECE = re.compile(rf"(?:{_QUOTED}|[^;])*+(?:;|\Z)", re.DOTALL)
_MOST_TRIGGER_STEPS = 1000

# Bounds of the database that runs other people's INSERTs: about a second, and memory.
_STEPS_PER_LOOK = 100_000
_MOST_LOOKS = 300
_LONGEST_VALUE = 4 * 1024 * 1024
_MOST_PAGES = 16_384


class SchemaError(ValueError):
    """A schema file that cannot be used, with what is wrong in it."""


@dataclass(frozen=True)
class TableSample:
    """The first rows of one table, in the order in which they were inserted."""

    table: str
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]


@dataclass(frozen=True)
class Schema:
    """`ddl` is the file's own text with its comments, normalised so that the same schema gives the same bytes."""

    ddl: str
    samples: tuple[TableSample, ...] = ()


def read_schema(text: str, *, with_samples: bool = False) -> Schema:
    """Take the definitions out of `text`; with samples also up to ROWS_PER_TABLE rows per table that it fills.

    Samples come from running the file's CREATE TABLE and INSERT statements in a private in-memory SQLite database.
    Raises SchemaError for a file without a table, with a table that is not closed, with any other kind of statement,
    or (samples only) with statements that SQLite does not understand or that take too long.
    """
    if "\0" in text:
        raise SchemaError("a NUL character in it, wanted text")
    definitions: list[str] = []
    inserts: list[str] = []
    for statement in _statements(text.replace("\r\n", "\n")):
        kind = _first_words(statement, 1)
        if kind in _DEFINITIONS:
            definitions.append(statement)
        elif kind == "INSERT":
            inserts.append(statement)
        elif kind not in _IGNORED:
            raise SchemaError(f"statement begins with {kind!r}, wanted {', '.join(_DEFINITIONS)} or INSERT")
    tables = [statement for statement in definitions if _first_words(statement, 2) == "CREATE TABLE"]
    if not tables:
        raise SchemaError("no CREATE TABLE in it")
    for table in tables:
        _check_closed(table)
    samples = _samples([*tables, *inserts]) if with_samples else ()
    return Schema("\n\n".join(definitions), samples)


def _statements(text: str) -> list[str]:
    """Split at semicolons that are neither in a string nor in a comment; a comment stays with what follows it."""
    statements: list[str] = []
    pending: list[str] = []
    for piece in _PIECE.findall(text):
        pending.append(piece)
        # Only a trigger goes on after a semicolon.
        if sqlite3.complete_statement("".join(pending)):
            statements.append("".join(pending).strip())
            pending = []
        elif len(pending) > _MOST_TRIGGER_STEPS:
            raise SchemaError(f"a statement that has not ended after {_MOST_TRIGGER_STEPS} semicolons")
    rest = "".join(pending).strip()
    # On a line of its own: the last line may be a comment.
    statements.append(f"{rest}\n;")
    return [statement for statement in statements if not _is_empty(statement)]


def _is_empty(statement: str) -> bool:
    return statement[skip_comments(statement) :].strip("; \t\n") == ""


def _check_closed(table: str) -> None:
    bare = _OPAQUE.sub("", table)
    if bare.count("(") != bare.count(")") or not bare.rstrip().endswith(";"):
        line = " ".join(table[skip_comments(table) :].split())
        raise SchemaError(f"a statement is not closed (bracket, quote or comment): {line[:80]}")


def _first_words(statement: str, count: int) -> str:
    words = statement[skip_comments(statement) :].split(maxsplit=count)[:count]
    return " ".join(words).upper().rstrip(";")


def _samples(statements: list[str]) -> tuple[TableSample, ...]:
    database = sqlite3.connect(":memory:")
    looks = itertools.count(1)
    database.set_progress_handler(lambda: next(looks) > _MOST_LOOKS, _STEPS_PER_LOOK)
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE)
    try:
        database.execute(f"PRAGMA max_page_count = {_MOST_PAGES}")
        for statement in statements:
            database.execute(statement)
        names = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        found = [_first_rows(database, name) for name in names]
    except (sqlite3.Error, sqlite3.Warning) as error:
        reason = "the INSERTs take too long" if str(error) == "interrupted" else f"SQLite refuses a statement: {error}"
        raise SchemaError(f"sample rows cannot be read, since {reason}") from error
    finally:
        database.close()
    return tuple(sample for sample in found if sample.rows)


def _first_rows(database: sqlite3.Connection, table: str) -> TableSample:
    quoted = table.replace('"', '""')
    # The name comes from the database's own catalogue and is quoted as an identifier; parameters cannot stand there.
    cursor = database.execute(f'SELECT * FROM "{quoted}" LIMIT {ROWS_PER_TABLE}')  # noqa: S608
    return TableSample(table, tuple(column[0] for column in cursor.description), tuple(cursor.fetchall()))
