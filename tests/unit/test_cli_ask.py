import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coderack.cli.main import app

from .certificates import make_ca_and_server
from .program import coderack
from .server import KEY, Script, answer, chunk, serving

QUESTION = "How many orders are there?"
SQL_ANSWER = ("Count them:\n```sql\n", "SELECT COUNT(*)", " FROM orders;", "\n```")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("shop.sql").write_text("CREATE TABLE orders (id INT); INSERT INTO orders VALUES (77);")
    Path("key").write_text(f"{KEY}\n")
    Path("wrong-key").write_text("secret-but-wrong\n")
    return tmp_path


def ask(url: str, *options: str, key: str = "key", question: str = QUESTION) -> tuple[int, str, str]:
    fixed = ("ask", "--url", url, "--key-file", key, "--model", "m", "--schema", "shop.sql")
    result = CliRunner().invoke(app, [*fixed, *options, question])
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.usefixtures("files")
def test_prints_the_answer_then_its_sql_and_how_fast_it_came() -> None:
    with serving(Script(answer(*SQL_ANSWER))) as url:
        code, out, err = ask(url)
    assert (code, err) == (0, "")
    streamed, _, summary = out.partition("\n\nSQL")
    assert streamed == "".join(SQL_ANSWER)
    lines = [line.split() for line in summary.splitlines()]
    assert lines[0] == ["SELECT", "COUNT(*)", "FROM", "orders;"]
    assert (lines[1][0], lines[1][2]) == ("TTFT", "ms")
    assert (lines[2][0], lines[2][2:]) == ("Throughput", ["tokens/s", "(4", "tokens)"])
    assert float(lines[2][1]) > 0


@pytest.mark.usefixtures("files")
def test_json_is_one_object_with_the_same_content() -> None:
    with serving(Script(answer(*SQL_ANSWER))) as url:
        code, out, _ = ask(url, "--json")
    report = json.loads(out)
    assert code == 0
    assert report["schema"] == "coderack.ask/1"
    assert report["question"] == QUESTION
    assert report["answer"] == "".join(SQL_ANSWER)
    assert report["sql"] == "SELECT COUNT(*) FROM orders;"
    assert report["usage"] == {"prompt_tokens": 40, "completion_tokens": 4}
    assert 0 < report["ttft_s"] <= report["last_s"]
    assert report["tokens_per_s"] == pytest.approx(4 / report["last_s"])


@pytest.mark.usefixtures("files")
def test_sample_rows_reach_the_model_only_when_wanted() -> None:
    script = Script(answer(*SQL_ANSWER))
    with serving(script) as url:
        ask(url)
        ask(url, "--samples", "--dialect", "PostgreSQL", "--max-tokens", "7")
    plain, with_samples = (request["messages"][0]["content"] for request in script.requests)
    assert "77" not in plain
    assert "-- 77" in with_samples
    assert "PostgreSQL" in with_samples
    assert script.requests[1]["max_tokens"] == 7
    assert script.requests[1]["messages"][-1]["content"].endswith(QUESTION)


@pytest.mark.usefixtures("files")
def test_an_answer_without_sql_does_not_hold() -> None:
    with serving(Script(answer("I cannot tell."))) as url:
        code, out, err = ask(url, "--json")
    assert (code, err) == (1, "coderack: the answer holds no SQL\n")
    assert json.loads(out)["sql"] is None


@pytest.mark.usefixtures("files")
def test_says_when_the_answer_was_cut() -> None:
    with serving(Script(answer("```sql\nSELECT id FROM", finish="length"))) as url:
        code, _, err = ask(url, "--max-tokens", "5")
    assert code == 0
    assert err == "coderack: the answer was cut at 5 tokens; give a larger --max-tokens\n"


@pytest.mark.usefixtures("files")
def test_a_refused_key_is_1_and_is_not_printed() -> None:
    with serving(Script(answer(*SQL_ANSWER))) as url:
        code, out, err = ask(url, key="wrong-key")
    assert (code, out) == (1, "")
    assert "answered 401: the API key is missing or not accepted" in err
    assert "secret-but-wrong" not in out + err


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(("status", "code"), [(404, 2), (400, 2), (429, 3), (500, 3), (503, 3)])
def test_what_the_server_refuses_is_bad_input_and_what_it_cannot_do_is_unknown(status: int, code: int) -> None:
    with serving(Script(status=status, body="no such model")) as url:
        seen, _, err = ask(url)
    assert seen == code
    assert f"answered {status}: no such model" in err


@pytest.mark.usefixtures("files")
def test_a_broken_stream_is_3_and_gives_no_result() -> None:
    with serving(Script([chunk("```sql\nSELECT 1;\n```"), None])) as url:
        code, out, err = ask(url)
        json_code, json_out, _ = ask(url, "--json")
    assert (code, json_code, json_out) == (3, 3, "")
    assert "SQL  " not in out
    assert "the stream broke after 1 pieces of text" in err


@pytest.mark.usefixtures("files")
def test_an_endpoint_that_is_not_there_is_3() -> None:
    code, _, err = ask("http://127.0.0.1:1")
    assert code == 3
    assert err.startswith("coderack: http://127.0.0.1:1/v1/chat/completions: ")


def test_tls_needs_the_right_ca(files: Path) -> None:
    ca, certificate = make_ca_and_server(files, "ours")
    other_ca, _ = make_ca_and_server(files, "other")
    with serving(Script(answer(*SQL_ANSWER)), certificate) as url:
        assert ask(url, "--ca-file", str(ca))[0] == 0
        code, _, err = ask(url, "--ca-file", str(other_ca))
    assert code == 3
    assert "certificate is not trusted" in err


@pytest.mark.usefixtures("files")
def test_the_answer_cannot_steer_the_terminal() -> None:
    with serving(Script(answer("\x1b[2J```sql\nSELECT 1\x07;\n```"))) as url:
        _, out, _ = ask(url)
    assert not {"\x1b", "\x07"} & set(out)


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("https://127.0.0.1", ("--key-file", "none"), "key file none: "),
        ("https://127.0.0.1", ("--key-file", "two-keys"), "key file two-keys: wanted one key"),
        ("https://127.0.0.1", ("--ca-file", "none.pem"), "CA file none.pem: "),
        ("https://127.0.0.1", ("--schema", "none.sql"), "schema none.sql: "),
        ("https://127.0.0.1", ("--schema", "drop.sql"), "schema drop.sql: statement begins with 'DROP'"),
        ("127.0.0.1", (), "URL is '127.0.0.1', wanted one such as https://"),
        ("https://[", (), "URL is 'https://[', wanted one such as https://"),
        ("https://", (), "URL is 'https://', wanted one such as https://"),
        ("https://" + "a" * 64 + ".org", (), "URL is 'https://aaaa"),
        ("https://..x", (), "URL is 'https://..x', wanted one such as https://"),
        ("https://gw:99999", (), "URL is 'https://gw:99999', wanted one such as https://"),
        ("https://gw?a=b", (), "the URL holds a query or fragment"),
        ("https://gw#a", (), "the URL holds a query or fragment"),
        ("https://gw", ("--model", "m\udcff"), "the model is 'm\\udcff', wanted UTF-8 text"),
        ("https://gw", ("--schema", "nul.sql"), "schema nul.sql: a NUL character in it"),
        ("https://gw", ("--schema", "large.sql"), "schema large.sql: larger than 4194304 bytes"),
        ("https://gw", ("--schema", "open.sql"), "schema open.sql: a statement is not closed"),
        ("http://10.77.0.20", (), "URL is http://10.77.0.20, wanted https://: the key must not cross"),
    ],
)
def test_bad_input_is_2_before_anything_is_asked(url: str, options: tuple[str, ...], message: str) -> None:
    Path("two-keys").write_text("a\nb\n")
    Path("drop.sql").write_text("DROP TABLE orders;")
    Path("nul.sql").write_text("CREATE TABLE t (a INT);\0")
    Path("large.sql").write_text("CREATE TABLE t (a INT);" + " " * 4 * 1024 * 1024)
    Path("open.sql").write_text("CREATE TABLE t (a INT")
    code, out, err = ask(url, *options)
    assert (code, out) == (2, "")
    assert err.startswith(f"coderack: {message}")


@pytest.mark.usefixtures("files")
def test_an_empty_question_is_2() -> None:
    assert ask("https://127.0.0.1", question=" ")[::2] == (2, "coderack: the question is empty\n")


@pytest.mark.usefixtures("files")
def test_a_question_that_is_not_utf_8_is_2() -> None:
    assert ask("https://127.0.0.1", question="caf\udce9?")[::2] == (
        2,
        "coderack: the question is 'caf\\udce9?', wanted UTF-8 text\n",
    )


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("url", ["https://user:hunter2@gw", "http://hunter2@[", "http://10.0.0.1@hunter2"])
def test_a_url_with_a_password_is_2_and_is_not_printed(url: str) -> None:
    code, out, err = ask(url)
    assert (code, out) == (2, "")
    assert err.startswith("coderack: the URL holds a user or password")
    assert "hunter2" not in err


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("tokens", ["-5", "Infinity", "NaN", "1.5", "true", '"7"', "9" * 5000])
def test_a_token_count_that_is_none_is_3_and_gives_no_rate(tokens: str) -> None:
    counts = f'{{"choices": [], "usage": {{"prompt_tokens": 1, "completion_tokens": {tokens}}}}}'
    with serving(Script([chunk("SELECT 1;", finish="stop"), counts, "[DONE]"])) as url:
        code, out, err = ask(url)
    assert code == 3
    assert "tokens/s" not in out
    assert "an event is no" in err


@pytest.mark.usefixtures("files")
def test_an_answer_that_no_encoding_holds_is_still_printed() -> None:
    with serving(Script(answer("```sql\nSELECT 'caf\ud800';\n```"))) as url:
        run = coderack("ask", "--url", url, "--key-file", "key", "--model", "m", "--schema", "shop.sql", "--json", "q")
    assert (run.returncode, run.stderr) == (0, "")
    assert json.loads(run.stdout)["sql"] == "SELECT 'caf\ud800';"


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("seconds", ["inf", "nan", "1e300", "0"])
def test_a_timeout_that_no_socket_takes_is_2(seconds: str) -> None:
    assert ask("https://127.0.0.1", "--timeout", seconds)[0] == 2
