import socket
import threading
from pathlib import Path

import pytest

from coderack.clients.openai_api import (
    AuthError,
    BadAnswer,
    BadStatus,
    Completion,
    OpenAIClient,
    StreamBroken,
    StreamEnd,
    StreamTimings,
    TextDelta,
    Unreachable,
    Usage,
)

from .certificates import make_ca_and_server
from .server import KEY, Event, Script, answer, chunk, serving, usage


def ask(script: Script, *, key: str | None = KEY, timeout_s: float = 5.0) -> list[TextDelta | StreamEnd]:
    with serving(script) as url, OpenAIClient(url, api_key=key, timeout_s=timeout_s) as client:
        return list(client.stream_chat([{"role": "user", "content": "hi"}], model="m", max_tokens=9))


def texts(events: list[TextDelta | StreamEnd]) -> list[str]:
    return [event.text for event in events if isinstance(event, TextDelta)]


def arrivals(events: list[TextDelta | StreamEnd]) -> list[float]:
    return [event.at_s for event in events if isinstance(event, TextDelta)]


def test_streams_text_and_ends_with_finish_reason_and_usage() -> None:
    events = ask(Script(answer("SELECT", " 1")))
    assert texts(events) == ["SELECT", " 1"]
    assert events[-1] == StreamEnd("stop", Usage(40, 2))


def test_asks_for_the_stream_with_usage_and_without_randomness() -> None:
    script = Script(answer("x"))
    ask(script)
    assert script.requests == [
        {
            "path": "/v1/chat/completions",
            "model": "m",
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 9,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]


def test_time_to_first_token_is_that_of_the_first_text_not_of_the_role() -> None:
    # vLLM sends the role at once and the first token after the prefill.
    events = ask(Script([chunk("", role="assistant"), 0.3, chunk("a"), chunk("b", finish="stop"), "[DONE]"]))
    assert texts(events) == ["a", "b"]
    assert arrivals(events)[0] >= 0.3


def test_pieces_are_handed_on_as_they_come() -> None:
    first_was_read = threading.Event()
    script = Script([chunk("a"), first_was_read, chunk("b", finish="stop"), "[DONE]"])
    with serving(script) as url, OpenAIClient(url, api_key=KEY) as client:
        stream = client.stream_chat([], model="m", max_tokens=9)
        assert texts([next(stream)]) == ["a"]
        first_was_read.set()
        assert texts(list(stream)) == ["b"]


def test_usage_counts_wherever_in_the_stream_it_comes() -> None:
    events = ask(Script([chunk("a"), usage(1), chunk("", finish="stop"), "[DONE]"]))
    assert events[-1] == StreamEnd("stop", Usage(40, 1))


def test_a_server_without_usage_gives_no_usage() -> None:
    assert ask(Script([chunk("a", finish="length"), "[DONE]"]))[-1] == StreamEnd("length", None)


BROKEN: dict[str, tuple[list[Event], str]] = {
    "no [DONE]": ([chunk("a"), chunk("b", finish="stop")], "ended after 2 pieces of text without"),
    "connection lost": ([chunk("a"), None], "broke after 1 pieces of text"),
    "silence": ([chunk("a"), 1.5, chunk("b")], "broke after 1 pieces of text: silent for 1 s"),
    "error as data, then [DONE]": (
        [chunk("a"), '{"error": {"message": "engine is dead"}}', "[DONE]"],
        "reports an error in the stream: .*engine is dead",
    ),
    "error as event": (
        ['event: error\ndata: {"detail": "no"}\n\n'],
        'reports an error in the stream: {"detail": "no"}',
    ),
    "no finish reason": ([chunk("a"), "[DONE]"], "finish_reason is None, wanted stop or length"),
    "aborted by the engine": ([chunk("a", finish="abort"), "[DONE]"], "finish_reason is abort"),
    "not JSON": (["oops"], "an event is not JSON: oops"),
    "nesting without end": (['{"choices": ' + "[" * 100_000], "an event is not JSON: "),
    "content that is no text": (
        ['{"choices": [{"delta": {"content": [1]}}]}'],
        r"an event is no chat chunk \(list where text belongs\)",
    ),
    "finish reason that is no text": (
        ['{"choices": [{"delta": {}, "finish_reason": 5}]}'],
        r"an event is no chat chunk \(int where text belongs\)",
    ),
    "choices that are no list": (['{"choices": {"a": 1}}'], "an event is no chat chunk"),
    "a negative count of tokens": ([usage(-1)], "an event is no chat chunk"),
    "an endless count of tokens": (
        ['{"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": Infinity}}'],
        "an event is no chat chunk",
    ),
    "usage that is no object": (['{"choices": [], "usage": 7}'], "an event is no chat chunk"),
    "not a chunk": (['{"x": 1}'], "an event is no chat chunk"),
}


@pytest.mark.parametrize(("events", "message"), BROKEN.values(), ids=BROKEN.keys())
def test_a_stream_that_does_not_end_properly_is_broken(events: list[Event], message: str) -> None:
    with pytest.raises(StreamBroken, match=message):
        ask(Script(events), timeout_s=1.0 if 1.5 in events else 5.0)


def test_text_before_the_break_has_been_handed_on() -> None:
    with serving(Script([chunk("a"), None])) as url, OpenAIClient(url, api_key=KEY) as client:
        stream = client.stream_chat([], model="m", max_tokens=9)
        first = next(stream)
        assert isinstance(first, TextDelta)
        assert first.text == "a"
        with pytest.raises(StreamBroken):
            next(stream)


def test_a_page_instead_of_a_stream_is_a_bad_answer() -> None:
    with pytest.raises(BadAnswer, match="not an event stream"):
        ask(Script([chunk("a")], content_type="text/html"))


@pytest.mark.parametrize("key", [None, "wrong"])
def test_a_refused_key_is_an_auth_error_that_does_not_repeat_the_key(key: str | None) -> None:
    with pytest.raises(AuthError, match="answered 401: the API key is missing or not accepted") as caught:
        ask(Script(answer("x")), key=key)
    assert "wrong" not in str(caught.value)


def test_a_bad_status_carries_an_excerpt_of_the_body() -> None:
    with pytest.raises(BadStatus, match=r"answered 404: the model `m` does not exist x+\.\.\.$") as caught:
        ask(Script(status=404, body="the model `m`\n does not exist " + "x" * 5000))
    assert caught.value.status == 404
    assert len(str(caught.value)) < 500


def test_a_closed_port_is_unreachable() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    with OpenAIClient(url) as client, pytest.raises(Unreachable, match=f"{url}/v1/models: .*refused"):
        client.models()


def test_a_server_that_accepts_and_stays_silent_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with OpenAIClient(url, timeout_s=0.2) as client, pytest.raises(Unreachable, match=r"silent for 0\.2 s"):
            client.models()


def test_models_are_listed() -> None:
    script = Script(body='{"data": [{"id": "a"}, {"id": "b"}]}')
    with serving(script) as url, OpenAIClient(f"{url}/v1/", api_key=KEY) as client:
        assert client.models() == ["a", "b"]
    assert script.requests[0]["path"] == "/v1/models"


def test_a_prompt_is_completed() -> None:
    choice = '{"text": " 2", "finish_reason": "length"}'
    script = Script(body=f'{{"choices": [{choice}], "usage": {{"prompt_tokens": 3, "completion_tokens": 1}}}}')
    with serving(script) as url, OpenAIClient(url, api_key=KEY) as client:
        completion = client.complete("1 +", model="m", max_tokens=1, stop=[";"])
    assert completion == Completion(" 2", "length", Usage(3, 1))
    assert script.requests[0]["stop"] == [";"]


@pytest.mark.parametrize(
    "body",
    [
        "<html>",
        "{}",
        '{"choices": []}',
        "[]",
        '{"data": [1]}',
        '{"data": [{"id": 1}]}',
        '{"choices": [{"text": 1, "finish_reason": "stop"}]}',
        '{"choices": [{"text": "a", "finish_reason": "stop"}], "usage": {"prompt_tokens": 1, "completion_tokens": -1}}',
        "[" * 100_000,
    ],
)
def test_status_200_with_another_body_is_a_bad_answer(body: str) -> None:
    with serving(Script(body=body)) as url, OpenAIClient(url, api_key=KEY) as client:
        with pytest.raises(BadAnswer):
            client.models()
        with pytest.raises(BadAnswer):
            client.complete("x", model="m", max_tokens=1)


def test_tls_trusts_the_given_ca_and_no_other(tmp_path: Path) -> None:
    ca, certificate = make_ca_and_server(tmp_path, "ours")
    other_ca, _ = make_ca_and_server(tmp_path, "other")
    with serving(Script(body='{"data": [{"id": "a"}]}'), certificate) as url:
        with OpenAIClient(url, api_key=KEY, ca_file=ca) as client:
            assert client.models() == ["a"]
        for wrong in (other_ca, None):
            with (
                OpenAIClient(url, api_key=KEY, ca_file=wrong) as client,
                pytest.raises(Unreachable, match=r"certificate is not trusted .* give the CA that signed it"),
            ):
                client.models()


def test_a_proxy_of_the_environment_does_not_come_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    assert texts(ask(Script(answer("x")))) == ["x"]


@pytest.mark.parametrize("content", [None, "not a certificate"])
def test_a_ca_file_without_certificate_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "ca.pem").write_text(content)
    with pytest.raises(ValueError, match=r"CA file .*ca\.pem: .*; wanted a PEM certificate"):
        OpenAIClient("https://127.0.0.1", ca_file=tmp_path / "ca.pem")


def test_a_url_without_scheme_is_refused() -> None:
    with pytest.raises(ValueError, match="URL is 'gateway:443', wanted one such as https://"):
        OpenAIClient("gateway:443")


def test_timings_come_from_arrivals_and_the_servers_token_count() -> None:
    timings = StreamTimings.from_arrivals([0.5, 0.75, 1.25], completion_tokens=10)
    assert timings == StreamTimings(ttft_s=0.5, itls_s=(0.25, 0.5), last_s=1.25, tokens_per_s=8.0)


def test_timings_of_a_single_piece_have_no_gaps() -> None:
    assert StreamTimings.from_arrivals([0.5], 4) == StreamTimings(0.5, (), 0.5, 8.0)


def test_timings_without_ground_are_unknown() -> None:
    assert StreamTimings.from_arrivals([], 4) == StreamTimings(None, (), None, None)
    assert StreamTimings.from_arrivals([0.5, 1.0], None).tokens_per_s is None


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("https://user:secret@gw", "the URL holds a user or password"),
        ("https://gw/v1?key=secret", "the URL holds a query or fragment"),
        ("https://gw#secret", "the URL holds a query or fragment"),
    ],
)
def test_a_url_with_more_than_an_address_is_refused_and_not_repeated(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        OpenAIClient(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["https://" + "a" * 64 + ".org", "https://..x", "https://gw:0", "https://gw:99999"])
def test_a_url_that_no_resolver_takes_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="wanted one such as https://"):
        OpenAIClient(url)
