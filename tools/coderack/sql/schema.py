"""A schema file (.sql): its definitions, and if wanted a few of the rows that it inserts."""

import re
import sqlite3
from dataclasses import dataclass

from coderack.sql.comments import skip_comments

ROWS_PER_TABLE = 3
# A dump made by `sqlite3 db .dump` or pg_dump has these around the definitions; they say nothing about the tables.
_IGNORED = ("BEGIN", "COMMIT", "PRAGMA", "SET")
_DEFINITIONS = ("CREATE", "ALTER", "COMMENT")


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
    Raises SchemaError for a file without a table, with any other kind of statement, or (samples only) with
    statements that SQLite does not understand.
    """
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
    samples = _samples([*tables, *inserts]) if with_samples else ()
    return Schema("\n\n".join(definitions), samples)


def _statements(text: str) -> list[str]:
    """Split at semicolons that are neither in a string nor in a comment; a comment stays with what follows it."""
    statements: list[str] = []
    pending = ""
    for piece in re.split(r"(?<=;)", text):
        pending += piece
        if sqlite3.complete_statement(pending):
            statements.append(pending.strip())
            pending = ""
    if skip_comments(pending) < len(pending):
        statements.append(f"{pending.strip()};")
    return statements


def _first_words(statement: str, count: int) -> str:
    words = statement[skip_comments(statement) :].split(maxsplit=count)[:count]
    return " ".join(words).upper().rstrip(";")


def _samples(statements: list[str]) -> tuple[TableSample, ...]:
    database = sqlite3.connect(":memory:")
    try:
        for statement in statements:
            database.execute(statement)
        names = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        found = [_first_rows(database, name) for name in names]
    except (sqlite3.Error, sqlite3.Warning) as error:
        raise SchemaError(f"sample rows cannot be read, since SQLite refuses a statement: {error}") from error
    finally:
        database.close()
    return tuple(sample for sample in found if sample.rows)


def _first_rows(database: sqlite3.Connection, table: str) -> TableSample:
    quoted = table.replace('"', '""')
    # The name comes from the database's own catalogue and is quoted as an identifier; parameters cannot stand there.
    cursor = database.execute(f'SELECT * FROM "{quoted}" LIMIT {ROWS_PER_TABLE}')  # noqa: S608
    return TableSample(table, tuple(column[0] for column in cursor.description), tuple(cursor.fetchall()))
