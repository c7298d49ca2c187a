"""Two ways to ask for a file over HTTP.

`Web` is httpx: redirects, proxies and certificates as the environment says, for Hubs and buckets. A GB costs 0.6 s in
which no other thread of Python runs. `Direct` is the standard library's client, which costs a tenth of that, for the
way to another node: plain HTTP over a private network of many GB/s, where no proxy may come in between.
"""

import http.client
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

import httpx

CONNECT_S, SILENCE_S = 10.0, 30.0
_READ = 1 << 20


class Broken(Exception):
    """A request that may go better next time; `pause_s` where the server said when."""

    def __init__(self, message: str, pause_s: float | None = None) -> None:
        super().__init__(message)
        self.pause_s = pause_s


@dataclass(frozen=True)
class Answer:
    """`headers` by names in small letters; `chunks` may raise Broken, and ends early where the connection did."""

    status: int
    headers: Mapping[str, str]
    chunks: Iterator[bytes]


class Transport(Protocol):
    def get(self, url: str, headers: Mapping[str, str]) -> AbstractContextManager[Answer]:
        """Raises Broken."""
        ...


def _small(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers}


class Web:
    def __init__(self, parallel: int = 1) -> None:
        limits = httpx.Limits(max_connections=parallel + 2, max_keepalive_connections=parallel + 2)
        timeout = httpx.Timeout(SILENCE_S, connect=CONNECT_S, pool=None)
        self._client = httpx.Client(timeout=timeout, limits=limits, follow_redirects=True, max_redirects=5)

    @contextmanager
    def get(self, url: str, headers: Mapping[str, str]) -> Iterator[Answer]:
        try:
            with self._client.stream("GET", url, headers={**headers, "Accept-Encoding": "identity"}) as answer:
                yield Answer(answer.status_code, _small(answer.headers.items()), answer.iter_raw())
        # UnicodeError: a name that DNS cannot have.
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise Broken(f"{type(error).__name__}: {error}") from error


class Direct:
    @contextmanager
    def get(self, url: str, headers: Mapping[str, str]) -> Iterator[Answer]:
        parts = urlsplit(url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=SILENCE_S)
        try:
            connection.request("GET", parts.path, headers=dict(headers))
            answer = connection.getresponse()
            yield Answer(answer.status, _small(answer.headers.items()), iter(lambda: answer.read1(_READ), b""))
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            raise Broken(f"{type(error).__name__}: {error}") from error
        finally:
            connection.close()
