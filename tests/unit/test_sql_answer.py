import pytest

from coderack.sql.answer import extract_sql

ANSWERS = {
    # The shape in which SmolLM2-135M-Instruct answers "How many orders are there?".
    "prose around a block": (
        "To count the orders:\n\n```sql\nSELECT COUNT(*) FROM orders;\n```\n\nThis counts all rows.",
        "SELECT COUNT(*) FROM orders;",
    ),
    "nothing but the query": ("SELECT 1", "SELECT 1"),
    "block of another tag": ("```text\nSELECT a FROM t\n```", "SELECT a FROM t"),
    "block without tag": ("```\nSELECT a\nFROM t\n```", "SELECT a\nFROM t"),
    "block on one line": ("Use ```sql SELECT a FROM t```.", "SELECT a FROM t"),
    "tag in capitals": ("```SQL\nSELECT a\n```", "SELECT a"),
    "sql block after a block of code": (
        "```\nSELECT wrong\n```\n```sqlite\nSELECT right\n```",
        "SELECT right",
    ),
    "first of two": ("```sql\nSELECT 1\n```\nor\n```sql\nSELECT 2\n```", "SELECT 1"),
    "cut block": ("```sql\nSELECT a FROM", "SELECT a FROM"),
    "empty block, then prose": ("```sql\n```\nSELECT a FROM t;", "SELECT a FROM t;"),
    "comment before the query": ("```\n-- total; per day\nSELECT a\n```", "-- total; per day\nSELECT a"),
    "several statements stay together": ("```sql\nSELECT 1; DROP TABLE t;\n```", "SELECT 1; DROP TABLE t;"),
    "statement that must be refused later": ("```sql\nDELETE FROM t;\n```", "DELETE FROM t;"),
    "inline code": ("The query is `SELECT a FROM t`, as asked.", "SELECT a FROM t"),
    "keyword in inline code is no query": ("Use `SELECT` here:\nSELECT a FROM t;", "SELECT a FROM t;"),
    "after a colon": ("The answer: SELECT a FROM t; It counts.", "SELECT a FROM t;"),
    "lower case": ("select a\nfrom t\n\nThis selects a.", "select a\nfrom t"),
    "semicolon in a string": ("SELECT ';' AS x FROM t; done", "SELECT ';' AS x FROM t;"),
    "quote in a string": ("SELECT 'it''s; ok' FROM t; done", "SELECT 'it''s; ok' FROM t;"),
    "semicolon in a comment": ("SELECT a -- one; two\nFROM t; done", "SELECT a -- one; two\nFROM t;"),
    "empty line in a string": ("SELECT 'a\n\nb' FROM t; done", "SELECT 'a\n\nb' FROM t;"),
    "common table expression": ("WITH x AS (SELECT 1) SELECT * FROM x; bye", "WITH x AS (SELECT 1) SELECT * FROM x;"),
    "recursive": (
        "WITH RECURSIVE n(i) AS (SELECT 1) SELECT i FROM n",
        "WITH RECURSIVE n(i) AS (SELECT 1) SELECT i FROM n",
    ),
    "sentences that begin like queries": ("With this table you can see it.\nSelect the customers you want.", None),
    "python": ("```python\nprint('SELECT')\n```", None),
    "refusal": ("The schema has no prices.", None),
    "nothing": ("", None),
}


@pytest.mark.parametrize(("answer", "sql"), ANSWERS.values(), ids=ANSWERS.keys())
def test_extracts(answer: str, sql: str | None) -> None:
    assert extract_sql(answer) == sql
