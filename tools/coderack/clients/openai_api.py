"""An OpenAI-compatible endpoint: list models, complete a prompt, stream a chat, with honest timings.

Times are seconds since the request was sent, taken when an event came off the socket and before it is parsed.
"""

import json
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
from httpx_sse import SSEError, connect_sse

CONNECT_TIMEOUT_S = 10.0
_EXCERPT = 300
# A name or an address, as it is sent to the resolver.
_HOST = re.compile(rb"[A-Za-z0-9._:-]+")
# What vLLM puts into finish_reason when an answer is not a whole one, though the stream closes in good order.
_FAILED_FINISHES = ("error", "abort")
# What reading someone else's JSON may raise, besides values that are not there: endless nesting, endless digits.
_UNREADABLE = (ValueError, RecursionError)
_MISSHAPEN = (KeyError, IndexError, TypeError, AttributeError, *_UNREADABLE)

Read = TypeVar("Read")


class ApiError(Exception):
    """Any way in which the endpoint did not do what was asked."""


class AuthError(ApiError):
    """401 or 403: the endpoint is there and refuses this key."""


class Unreachable(ApiError):
    """No HTTP answer: name, route, port, TLS or time limit."""


class BadStatus(ApiError):
    """An HTTP status other than 200; `status` and an excerpt of the body."""

    def __init__(self, url: str, status: int, excerpt: str) -> None:
        self.status = status
        super().__init__(f"{url} answered {status}: {excerpt or '(empty body)'}")


class BadAnswer(ApiError):
    """Status 200, but the body is not what an OpenAI-compatible server sends."""


class StreamBroken(ApiError):
    """A stream that began and did not come to its proper end; what was received is not a whole answer."""


@dataclass(frozen=True)
class Usage:
    """Token counts as the server reports them."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True)
class Completion:
    text: str
    finish_reason: str
    usage: Usage | None


@dataclass(frozen=True)
class TextDelta:
    """A piece of the answer, never empty. A piece is not a token: a server may send several tokens at once."""

    text: str
    at_s: float


@dataclass(frozen=True)
class StreamEnd:
    """Comes last and exactly once, when the stream has ended properly."""

    finish_reason: str
    usage: Usage | None


@dataclass(frozen=True)
class StreamTimings:
    """Speed of one streamed answer. None where the stream gives no ground for a figure.

    ttft_s: request sent to first text; a chunk which only carries the role is no text.
    itls_s: gaps between successive pieces of text, len(pieces) - 1 of them; the first token is not among them.
    last_s: request sent to last text.
    tokens_per_s: the server's own count of output tokens over `last_s`, so time to first token is included.
    """

    ttft_s: float | None
    itls_s: tuple[float, ...]
    last_s: float | None
    tokens_per_s: float | None

    @classmethod
    def from_arrivals(cls, arrivals_s: Sequence[float], completion_tokens: int | None) -> Self:
        """Compute from the arrival times of the pieces, in order."""
        if not arrivals_s:
            return cls(None, (), None, None)
        last = arrivals_s[-1]
        gaps = tuple(later - earlier for earlier, later in pairwise(arrivals_s))
        rate = completion_tokens / last if completion_tokens is not None and last > 0 else None
        return cls(arrivals_s[0], gaps, last, rate)


class OpenAIClient:
    """A client of one endpoint; use it as a context manager.

    base_url: as `endpoint_url` wants it.
    ca_file: PEM file with the only CA to trust; without it the system's CAs are.
    timeout_s: the longest silence to accept, before the first byte and between any two.

    Raises ValueError for a URL that `endpoint_url` refuses and for a CA file that holds no certificate.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        ca_file: Path | None = None,
        timeout_s: float = 120.0,
    ) -> None:
        self._root = str(endpoint_url(base_url)).rstrip("/")
        self._timeout_s = timeout_s
        self._http = httpx.Client(
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            # Reading the system's CAs takes longer than a short request; plain HTTP needs none.
            verify=_trust(ca_file) if ca_file or self._root.startswith("https://") else False,
            timeout=httpx.Timeout(timeout_s, connect=min(CONNECT_TIMEOUT_S, timeout_s)),
            # The endpoint is our own: no proxy and no ~/.netrc entry of this machine may come between.
            trust_env=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def models(self) -> list[str]:
        """Names of the models that the endpoint serves."""
        return self._json("GET", "/v1/models", None, _models, "list of models")

    def complete(
        self, prompt: str, *, model: str, max_tokens: int, temperature: float = 0.0, stop: Sequence[str] = ()
    ) -> Completion:
        """Continue `prompt` by at most `max_tokens` tokens."""
        request: dict[str, Any] = {
            "model": model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": temperature,
        }
        if stop:
            request["stop"] = list(stop)
        return self._json("POST", "/v1/completions", request, _completion, "completion")

    def stream_chat(
        self, messages: Sequence[Mapping[str, str]], *, model: str, max_tokens: int, temperature: float = 0.0
    ) -> Iterator[TextDelta | StreamEnd]:
        """Ask and yield the answer as it arrives, then one StreamEnd.

        Raises StreamBroken when the stream stops before [DONE], carries an error or ends without a finish reason:
        a server that dies in mid-answer must not look like one that gave a short answer.
        """
        url = f"{self._root}/v1/chat/completions"
        request = {
            "model": model,
            "messages": [dict(message) for message in messages],
            "max_tokens": max_tokens,
            "temperature": temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        sent = time.perf_counter()
        answering = False
        pieces = 0
        finish_reason: str | None = None
        usage: Usage | None = None
        try:
            with connect_sse(self._http, "POST", url, json=request) as source:
                self._check(source.response, url)
                answering = True
                for event in source.iter_sse():
                    at_s = time.perf_counter() - sent
                    if event.data == "[DONE]":
                        break
                    text, finish, counts = _chunk(event.event, event.data, url)
                    finish_reason = finish or finish_reason
                    usage = counts or usage
                    if text:
                        pieces += 1
                        yield TextDelta(text, at_s)
                else:
                    raise StreamBroken(f"{url}: the stream ended after {pieces} pieces of text without [DONE]")
        except SSEError as error:
            raise BadAnswer(f"{url}: not an event stream ({error})") from error
        except httpx.RequestError as error:
            if answering:
                reason = self._reason(error)
                raise StreamBroken(f"{url}: the stream broke after {pieces} pieces of text: {reason}") from error
            raise Unreachable(f"{url}: {self._reason(error)}") from error
        if finish_reason is None or finish_reason in _FAILED_FINISHES:
            raise StreamBroken(f"{url}: finish_reason is {finish_reason}, wanted stop or length ({pieces} pieces came)")
        yield StreamEnd(finish_reason, usage)

    def _json(
        self, method: str, path: str, request: Mapping[str, Any] | None, read: Callable[[Any], Read], wanted: str
    ) -> Read:
        """What `read` finds in the JSON that the endpoint answers."""
        url = f"{self._root}{path}"
        try:
            response = self._http.request(method, url, json=request)
        except httpx.RequestError as error:
            raise Unreachable(f"{url}: {self._reason(error)}") from error
        self._check(response, url)
        try:
            body = response.json()
        except _UNREADABLE as error:
            raise BadAnswer(f"{url}: not JSON: {_excerpt(response.text)}") from error
        try:
            return read(body)
        except _MISSHAPEN as error:
            raise BadAnswer(f"{url}: no {wanted} in {_excerpt(response.text)}") from error

    @staticmethod
    def _check(response: httpx.Response, url: str) -> None:
        if response.status_code == 200:
            return
        response.read()
        if response.status_code in (401, 403):
            raise AuthError(f"{url} answered {response.status_code}: the API key is missing or not accepted")
        raise BadStatus(url, response.status_code, _excerpt(response.text))

    def _reason(self, error: httpx.RequestError) -> str:
        if isinstance(error, httpx.ConnectTimeout):
            return f"no connection within {min(CONNECT_TIMEOUT_S, self._timeout_s):g} s"
        if isinstance(error, httpx.TimeoutException):
            return f"silent for {self._timeout_s:g} s"
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return f"the server's certificate is not trusted ({error}); give the CA that signed it"
        return str(error) or type(error).__name__


def endpoint_url(text: str) -> httpx.URL:
    """The endpoint that `text` names: scheme, host and port, perhaps a path; a trailing /v1 is left out.

    Raises ValueError for what is not http(s), or holds a user, password, query or fragment; it does not repeat those.
    """
    if "@" in text:
        raise ValueError("the URL holds a user or password, wanted one such as https://gateway.example.org")
    if "?" in text or "#" in text:
        raise ValueError("the URL holds a query or fragment, wanted one such as https://gateway.example.org")
    try:
        url = httpx.URL(text.rstrip("/").removesuffix("/v1"))
        # A name that the resolver's own encoding refuses: a label that is empty or longer than 63 characters.
        url.host.encode("idna")
    except (httpx.InvalidURL, UnicodeError) as error:
        raise ValueError(f"URL is {text!r}, wanted one such as https://gateway.example.org: {error}") from error
    port = 443 if url.port is None else url.port
    if url.scheme not in ("http", "https") or _HOST.fullmatch(url.raw_host) is None or not 0 < port < 65536:
        raise ValueError(f"URL is {text!r}, wanted one such as https://gateway.example.org")
    return url


def _trust(ca_file: Path | None) -> ssl.SSLContext:
    if ca_file is None:
        return ssl.create_default_context()
    try:
        return ssl.create_default_context(cafile=str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise ValueError(f"CA file {ca_file}: {error}; wanted a PEM certificate") from error


def _models(body: Any) -> list[str]:
    return [_text(model["id"]) for model in body["data"]]


def _completion(body: Any) -> Completion:
    choice = body["choices"][0]
    return Completion(_text(choice["text"]), _text(choice["finish_reason"]), _usage(body))


def _chunk(event: str, data: str, url: str) -> tuple[str, str | None, Usage | None]:
    """Text, finish reason and usage of one event."""
    try:
        chunk = json.loads(data)
    except _UNREADABLE as error:
        raise StreamBroken(f"{url}: an event is not JSON: {_excerpt(data)}") from error
    # vLLM reports an error in the stream as data with an `error` key, others as an event of that name.
    if event == "error" or not isinstance(chunk, dict) or chunk.get("error"):
        raise StreamBroken(f"{url}: the server reports an error in the stream: {_excerpt(data)}")
    try:
        return *_delta(chunk), _usage(chunk)
    except _MISSHAPEN as error:
        raise StreamBroken(f"{url}: an event is no chat chunk ({error}): {_excerpt(data)}") from error


def _delta(chunk: Mapping[str, Any]) -> tuple[str, str | None]:
    """Text and finish reason of a chunk; the usage chunk has no choices, the first one only a role."""
    choice = chunk["choices"][0] if chunk["choices"] else {}
    finish = choice.get("finish_reason")
    return _text((choice.get("delta") or {}).get("content") or ""), None if finish is None else _text(finish)


def _usage(body: Mapping[str, Any]) -> Usage | None:
    counts = body.get("usage")
    return None if counts is None else Usage(_count(counts["prompt_tokens"]), _count(counts["completion_tokens"]))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} where text belongs")
    return value


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise TypeError("a token count that is none")
    return value


def _excerpt(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}..."
