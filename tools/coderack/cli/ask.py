"""`coderack ask`: one table question, answered by the served model."""

import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import httpx
import typer

from coderack.cli.console import Exit, JsonOption, fail, print_json, printable
from coderack.clients.openai_api import (
    ApiError,
    AuthError,
    BadStatus,
    OpenAIClient,
    StreamEnd,
    StreamTimings,
    TextDelta,
    endpoint_url,
)
from coderack.sql.answer import extract_sql
from coderack.sql.prompt import table_question
from coderack.sql.schema import Schema, SchemaError, read_schema

# Far more than a schema that still fits into a prompt.
_SCHEMA_BYTES = 4 * 1024 * 1024
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def ask(
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="The question, in plain words.")],
    *,
    url: Annotated[str, typer.Option("--url", metavar="URL", help="Endpoint, such as https://gateway.")],
    model: Annotated[str, typer.Option("--model", metavar="NAME", help="Served model name.")],
    schema: Annotated[Path, typer.Option("--schema", metavar="FILE.sql", help="CREATE TABLE statements.")],
    key_file: Annotated[
        Path | None, typer.Option("--key-file", metavar="FILE", help="File that holds the API key.")
    ] = None,
    ca_file: Annotated[
        Path | None, typer.Option("--ca-file", metavar="FILE", help="CA certificate of the endpoint (PEM).")
    ] = None,
    samples: Annotated[
        bool, typer.Option("--samples", help="Show the model the first rows that the schema file inserts.")
    ] = False,
    dialect: Annotated[str, typer.Option("--dialect", metavar="NAME", help="SQL dialect to write.")] = "SQLite",
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Longest answer, in tokens.")] = 512,
    timeout_s: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0.1, max=86_400, help="Longest silence to accept.")
    ] = 120.0,
    as_json: JsonOption = False,
) -> None:
    """Ask a question about tables; print the answer as it comes, its SQL, and how fast it came.

    The SQL is printed, not run. Exit code 1: the key was refused, or the answer holds no SQL.

    Example: coderack ask --url https://10.77.0.20 --key-file key --ca-file ca.crt --model qwen3-coder-480b
    --schema shop.sql "How many orders are there?"
    """
    if not question.strip():
        fail(Exit.BAD_INPUT, "the question is empty")
    _check_text(question=question, model=model, dialect=dialect)
    messages = table_question(_schema(schema, samples), question, dialect=dialect)
    try:
        key = _key(key_file, endpoint_url(url))
        client = OpenAIClient(url, api_key=key, ca_file=ca_file, timeout_s=timeout_s)
    except ValueError as error:
        fail(Exit.BAD_INPUT, error)
    try:
        with client:
            events = client.stream_chat(messages, model=model, max_tokens=max_tokens)
            answer = _receive(events, echo=not as_json)
    except ApiError as error:
        fail(_exit_code(error), error)

    if as_json:
        print_json("coderack.ask/1", {"question": question, "model": model, **_report(answer)})
    else:
        _print_summary(answer)
    if answer.end.finish_reason == "length":
        typer.echo(f"coderack: the answer was cut at {max_tokens} tokens; give a larger --max-tokens", err=True)
    if answer.sql is None:
        fail(Exit.DOES_NOT_HOLD, "the answer holds no SQL")


@dataclass(frozen=True)
class _Answer:
    text: str
    sql: str | None
    end: StreamEnd
    timings: StreamTimings


def _receive(events: Iterable[TextDelta | StreamEnd], *, echo: bool) -> _Answer:
    """Read the stream to its end; with `echo` print the text as it comes and end its line, also when it breaks."""
    deltas: list[TextDelta] = []
    try:
        for event in events:
            if isinstance(event, StreamEnd):
                return _whole(deltas, event)
            deltas.append(event)
            if echo:
                typer.echo(printable(event.text), nl=False)
    finally:
        if echo and deltas:
            typer.echo()
    raise AssertionError("stream_chat ends with StreamEnd or raises")


def _whole(deltas: list[TextDelta], end: StreamEnd) -> _Answer:
    text = "".join(delta.text for delta in deltas)
    tokens = end.usage.completion_tokens if end.usage else None
    return _Answer(text, extract_sql(text), end, StreamTimings.from_arrivals([delta.at_s for delta in deltas], tokens))


def _schema(path: Path, with_samples: bool) -> Schema:
    try:
        with path.open("rb") as file:
            data = file.read(_SCHEMA_BYTES + 1)
        if len(data) > _SCHEMA_BYTES:
            fail(Exit.BAD_INPUT, f"schema {path}: larger than {_SCHEMA_BYTES} bytes; give one without the data")
        return read_schema(data.decode("utf-8"), with_samples=with_samples)
    except (OSError, UnicodeDecodeError, SchemaError) as error:
        fail(Exit.BAD_INPUT, f"schema {path}: {error}")


def _check_text(**words: str) -> None:
    """The shell passes any bytes; what is not UTF-8 cannot be sent."""
    for name, text in words.items():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            fail(Exit.BAD_INPUT, f"the {name} is {text!r}, wanted UTF-8 text")


def _key(path: Path | None, url: httpx.URL) -> str | None:
    if path is None:
        return None
    if url.scheme == "http" and url.host not in _LOOPBACK:
        fail(Exit.BAD_INPUT, f"URL is {url}, wanted https://: the key must not cross the network in the clear")
    try:
        key = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        fail(Exit.BAD_INPUT, f"key file {path}: {error}")
    if not key or not key.isprintable() or " " in key:
        fail(Exit.BAD_INPUT, f"key file {path}: wanted one key, alone and without blanks")
    return key


def _exit_code(error: ApiError) -> Exit:
    if isinstance(error, AuthError):
        return Exit.DOES_NOT_HOLD
    # The server understood and refuses what was asked, such as an unknown model; 429 only means "not now".
    if isinstance(error, BadStatus) and 400 <= error.status < 500 and error.status != 429:
        return Exit.BAD_INPUT
    return Exit.UNKNOWN


def _report(answer: _Answer) -> dict[str, object]:
    end, timings = answer.end, answer.timings
    return {
        "answer": answer.text,
        "sql": answer.sql,
        "finish_reason": end.finish_reason,
        "usage": asdict(end.usage) if end.usage else None,
        "ttft_s": timings.ttft_s,
        "itl_median_s": statistics.median(timings.itls_s) if timings.itls_s else None,
        "last_s": timings.last_s,
        "tokens_per_s": timings.tokens_per_s,
    }


def _print_summary(answer: _Answer) -> None:
    usage, timings = answer.end.usage, answer.timings
    ttft = "unknown" if timings.ttft_s is None else f"{timings.ttft_s * 1000:.0f} ms"
    rate = "unknown" if timings.tokens_per_s is None else f"{timings.tokens_per_s:.1f} tokens/s"
    count = f" ({usage.completion_tokens} tokens)" if usage else ""
    typer.echo(f"\nSQL         {printable(answer.sql) if answer.sql else 'none'}")
    typer.echo(f"TTFT        {ttft}")
    typer.echo(f"Throughput  {rate}{count}")
