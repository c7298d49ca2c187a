"""The Table-QA prompt.

Everything that questions over one schema share comes first and is byte-identical between them, so that vLLM's prefix
cache serves it from memory after the first question; the question comes last.
Definitions with comments plus three sample rows per table are the base that published comparisons support.
"""

from coderack.sql.schema import Schema, TableSample

_INSTRUCTIONS = """\
You write SQL for {dialect}. Answer the user's question with one query over the tables below.
Rules:
- Use only tables and columns of the schema, spelt as there.
- Only read: one SELECT statement, which may begin with WITH.
- Put the query into a ```sql block. Add at most one sentence.
- If the schema cannot answer the question, say what is missing and write no query."""

_CELL_WIDTH = 40


Message = dict[str, str]  # keys: role, content


def table_question(schema: Schema, question: str, *, dialect: str = "SQLite") -> list[Message]:
    """Return the chat messages that ask `question` over `schema`."""
    return [
        {"role": "system", "content": fixed_part(schema, dialect=dialect)},
        # Said again next to the question: small models otherwise answer it in prose and make up a figure.
        {"role": "user", "content": f"Write the SQL query that answers this question: {question.strip()}"},
    ]


def fixed_part(schema: Schema, *, dialect: str = "SQLite") -> str:
    """The part that does not depend on the question: instructions, definitions, sample rows."""
    parts = [_INSTRUCTIONS.format(dialect=dialect), "Schema:", schema.ddl, *map(_sample, schema.samples)]
    return "\n\n".join(parts)


def _sample(sample: TableSample) -> str:
    lines = [f"First rows of {sample.table}:", " | ".join(sample.columns)]
    lines += [" | ".join(map(_cell, row)) for row in sample.rows]
    return "\n".join(f"-- {line}" for line in lines)


def _cell(value: object) -> str:
    text = "NULL" if value is None else " ".join(str(value).split())
    return text if len(text) <= _CELL_WIDTH else f"{text[: _CELL_WIDTH - 3]}..."
