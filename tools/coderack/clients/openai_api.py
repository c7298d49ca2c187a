"""An OpenAI-compatible endpoint: list models, complete a prompt, stream a chat, with honest timings.

Times are seconds since the request was sent, taken when an event came off the socket and before it is parsed.
"""

import json
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
from httpx_sse import SSEError, connect_sse

CONNECT_TIMEOUT_S = 10.0
_EXCERPT = 300
# What vLLM puts into finish_reason when an answer is not a whole one, though the stream closes in good order.
_FAILED_FINISHES = ("error", "abort")


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

    base_url: scheme, host and port; a trailing /v1 is accepted.
    ca_file: PEM file with the only CA to trust; without it the system's CAs are.
    timeout_s: the longest silence to accept, before the first byte and between any two.

    Raises ValueError for a URL that is not http(s) and for a CA file that holds no certificate.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        ca_file: Path | None = None,
        timeout_s: float = 120.0,
    ) -> None:
        self._root = base_url.rstrip("/").removesuffix("/v1")
        if not _is_http_url(self._root):
            raise ValueError(f"URL is {base_url!r}, wanted one such as https://gateway.example.org")
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
        body = self._json("GET", "/v1/models", None)
        try:
            return [str(model["id"]) for model in body["data"]]
        except (KeyError, TypeError) as error:
            raise BadAnswer(f"{self._root}/v1/models: no list of models in {_excerpt(json.dumps(body))}") from error

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
        body = self._json("POST", "/v1/completions", request)
        try:
            choice = body["choices"][0]
            return Completion(str(choice["text"]), str(choice["finish_reason"]), _usage(body))
        except (KeyError, IndexError, TypeError) as error:
            raise BadAnswer(f"{self._root}/v1/completions: no completion in {_excerpt(json.dumps(body))}") from error

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
                    chunk = _chunk(event.event, event.data, url)
                    usage = _usage(chunk) or usage
                    text, finish = _delta(chunk, url)
                    finish_reason = finish or finish_reason
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

    def _json(self, method: str, path: str, request: Mapping[str, Any] | None) -> Any:
        url = f"{self._root}{path}"
        try:
            response = self._http.request(method, url, json=request)
        except httpx.RequestError as error:
            raise Unreachable(f"{url}: {self._reason(error)}") from error
        self._check(response, url)
        try:
            return response.json()
        except ValueError as error:
            raise BadAnswer(f"{url}: not JSON: {_excerpt(response.text)}") from error

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


def _is_http_url(text: str) -> bool:
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        return False
    return url.scheme in ("http", "https") and bool(url.host)


def _trust(ca_file: Path | None) -> ssl.SSLContext:
    if ca_file is None:
        return ssl.create_default_context()
    try:
        return ssl.create_default_context(cafile=str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise ValueError(f"CA file {ca_file}: {error}; wanted a PEM certificate") from error


def _chunk(event: str, data: str, url: str) -> dict[str, Any]:
    try:
        chunk = json.loads(data)
    except ValueError as error:
        raise StreamBroken(f"{url}: an event is not JSON: {_excerpt(data)}") from error
    # vLLM reports an error in the stream as data with an `error` key, others as an event of that name.
    if event == "error" or not isinstance(chunk, dict) or chunk.get("error"):
        raise StreamBroken(f"{url}: the server reports an error in the stream: {_excerpt(data)}")
    return chunk


def _delta(chunk: Mapping[str, Any], url: str) -> tuple[str, str | None]:
    """Text and finish reason of a chunk; the usage chunk has no choices, the first one only a role."""
    try:
        choice = chunk["choices"][0] if chunk["choices"] else {}
        return (choice.get("delta") or {}).get("content") or "", choice.get("finish_reason")
    except (KeyError, TypeError, AttributeError) as error:
        raise StreamBroken(f"{url}: an event is no chat chunk: {_excerpt(json.dumps(chunk))}") from error


def _usage(body: Mapping[str, Any]) -> Usage | None:
    counts = body.get("usage")
    if not isinstance(counts, dict):
        return None
    try:
        return Usage(int(counts["prompt_tokens"]), int(counts["completion_tokens"]))
    except (KeyError, TypeError, ValueError):
        return None


def _excerpt(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}..."
