import time

import pytest

from coderack.sql.prompt import fixed_part, table_question
from coderack.sql.schema import SchemaError, TableSample, read_schema

SHOP = """\
-- What customers bought; one row per order; see "returns; refunds".
CREATE TABLE orders (
  id INTEGER PRIMARY KEY,
  customer TEXT, -- full name; never a key
  total REAL /* in EUR; VAT included */
);
INSERT INTO orders VALUES (1, 'Kim; Lee', 12.5), (2, NULL, 3), (3, 'Ana', 4), (4, 'Bo', 5);
CREATE VIEW big AS SELECT * FROM orders WHERE total > 10;
"""


def test_definitions_keep_their_comments_and_lose_the_rows() -> None:
    ddl = read_schema(SHOP).ddl
    assert "-- What customers bought" in ddl
    assert "/* in EUR; VAT included */" in ddl
    assert "CREATE VIEW big" in ddl
    assert "INSERT" not in ddl
    assert "Kim" not in ddl


def test_samples_are_the_first_rows_of_each_table() -> None:
    schema = read_schema(SHOP, with_samples=True)
    rows = ((1, "Kim; Lee", 12.5), (2, None, 3.0), (3, "Ana", 4.0))
    assert schema.samples == (TableSample("orders", ("id", "customer", "total"), rows),)


def test_samples_are_left_out_unless_wanted() -> None:
    assert read_schema(SHOP).samples == ()


def test_a_table_without_rows_gives_no_sample() -> None:
    assert read_schema("CREATE TABLE t (a INT);", with_samples=True).samples == ()


def test_last_statement_needs_no_semicolon() -> None:
    assert read_schema("CREATE TABLE t (a INT)\n-- end\n").ddl.startswith("CREATE TABLE t (a INT)")


def test_dump_noise_is_left_out() -> None:
    dump = "PRAGMA foreign_keys=OFF;\nBEGIN TRANSACTION;\nCREATE TABLE t (a INT);\nCOMMIT;\n"
    assert read_schema(dump).ddl == "CREATE TABLE t (a INT);"


def test_line_ends_of_the_checkout_do_not_show() -> None:
    assert read_schema(SHOP.replace("\n", "\r\n")) == read_schema(SHOP)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no CREATE TABLE in it"),
        ("-- only a comment", "no CREATE TABLE in it"),
        (";;;", "no CREATE TABLE in it"),
        ("CREATE TABLE t (a INT);\0", "a NUL character in it"),
        ("CREATE TABLE t (a INT", r"a statement is not closed .*: CREATE TABLE t \(a INT"),
        ("CREATE TABLE t (a INT; CREATE TABLE u (a INT);", r"a statement is not closed .*: CREATE TABLE t \(a INT;"),
        ("CREATE TABLE t (a TEXT DEFAULT 'x);", "a statement is not closed"),
        ("CREATE TABLE t (a INT); DROP TABLE t;", "statement begins with 'DROP', wanted CREATE, ALTER, COMMENT"),
        ("/* a */ SELECT 1 /* b */", "statement begins with 'SELECT'"),
        ("ATTACH 'x.db' AS x;", "statement begins with 'ATTACH'"),
    ],
)
def test_refuses_a_file_that_is_no_schema(text: str, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        read_schema(text)


def test_says_so_when_samples_need_a_dialect_that_sqlite_does_not_know() -> None:
    text = "CREATE TABLE t (a INT); INSERT INTO t VALUES (DATE '2026-01-01'::date);"
    with pytest.raises(SchemaError, match="sample rows cannot be read"):
        read_schema(text, with_samples=True)
    assert read_schema(text).ddl == "CREATE TABLE t (a INT);"


def test_brackets_in_comments_and_strings_close_nothing() -> None:
    text = "CREATE TABLE t (a TEXT DEFAULT ')', -- :)\n b INT /* ( */, \"c)\" INT, [d)] INT);"
    assert read_schema(text, with_samples=True).ddl == text


def test_empty_statements_are_left_out() -> None:
    assert read_schema(";;CREATE TABLE t (a INT);; -- end\n;").ddl == "CREATE TABLE t (a INT);"


def test_a_trigger_stays_one_statement() -> None:
    trigger = "CREATE TRIGGER x AFTER INSERT ON t BEGIN DELETE FROM t; SELECT ';'; END;"
    assert read_schema(f"CREATE TABLE t (a INT);{trigger}").ddl == f"CREATE TABLE t (a INT);\n\n{trigger}"


@pytest.mark.parametrize(
    "insert",
    [
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) INSERT INTO t SELECT i FROM n;",
        "INSERT INTO t WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n;",
        "INSERT INTO t WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n;",
        "INSERT INTO t VALUES (zeroblob(900000000));",
    ],
)
def test_inserts_that_never_end_or_fill_the_memory_are_refused(insert: str) -> None:
    started = time.monotonic()
    with pytest.raises(SchemaError):
        read_schema(f"CREATE TABLE t (a); {insert}", with_samples=True)
    assert time.monotonic() - started < 20


@pytest.mark.parametrize("text", ["CREATE TABLE t (a TEXT DEFAULT '", "CREATE TRIGGER x AFTER INSERT ON t BEGIN "])
def test_a_statement_that_never_ends_is_refused_soon(text: str) -> None:
    started = time.monotonic()
    with pytest.raises(SchemaError):
        read_schema(text + ";" * 1_000_000)
    assert time.monotonic() - started < 20


def test_questions_over_one_schema_share_every_byte_before_the_question() -> None:
    schema = read_schema(SHOP, with_samples=True)
    first = table_question(schema, "How many orders are there?")
    second = table_question(read_schema(SHOP, with_samples=True), "Who paid most?\n")
    assert first[:-1] == second[:-1]
    assert (first[-1], second[-1]) == (
        {"role": "user", "content": "Write the SQL query that answers this question: How many orders are there?"},
        {"role": "user", "content": "Write the SQL query that answers this question: Who paid most?"},
    )


def test_fixed_part_goes_from_instructions_over_definitions_to_samples() -> None:
    text = fixed_part(read_schema(SHOP, with_samples=True), dialect="PostgreSQL")
    marks = ["PostgreSQL", "CREATE TABLE orders", "CREATE VIEW big", "-- First rows of orders:", "-- 2 | NULL | 3.0"]
    positions = [text.index(mark) for mark in marks]
    assert positions == sorted(positions)


def test_a_sample_stays_one_short_line_per_row() -> None:
    text = "CREATE TABLE t (a TEXT); INSERT INTO t VALUES ('line\none LONG');".replace("LONG", "x" * 500)
    assert fixed_part(read_schema(text, with_samples=True)).endswith("-- a\n-- line one " + "x" * 28 + "...")
