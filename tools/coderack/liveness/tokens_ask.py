"""Ask every data-parallel rank of a server for one token, all at once."""

import asyncio
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

import httpx

from coderack.clients.openai_api import endpoint_url
from coderack.liveness.tokens import Answer, Outcome, Round, Start, advanced, excerpt, progress, read_answer, request

# More than a completion of one token, and than the metrics of a few dozen ranks, ever take.
_ANSWER_BYTES = 64 * 1024
_METRICS_BYTES = 8 * 1024 * 1024
# A queued request keeps its place for so many time limits; then it is taken back and sent anew.
_PATIENCE = 20

Progress = dict[int, tuple[tuple[str, str], ...]]


@dataclass(frozen=True)
class Target:
    """A server and what it is asked. Raises ValueError for a URL that `endpoint_url` refuses."""

    url: str
    model: str
    ranks: int
    api_key: str | None = None
    timeout_s: float = 3.0

    def __post_init__(self) -> None:
        endpoint_url(self.url)


class Prober:
    """Rounds of requests to one target; an async context manager.

    A rank has never more than one request under way. One that gets no token in time is taken back if the rank's
    engine has made no step meanwhile; otherwise it keeps its place in the queue into the next round, so that a busy
    rank is neither taken for a dead one nor loaded further.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._root = str(endpoint_url(target.url)).rstrip("/")
        limit = target.timeout_s
        self._http = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {target.api_key}"} if target.api_key else {},
            # Reading the system's CAs takes longer than a request; plain HTTP needs none.
            verify=self._root.startswith("https://"),
            timeout=httpx.Timeout(limit, connect=limit * 0.8, read=limit * (_PATIENCE + 2), pool=None),
            # vLLM closes a connection after five idle seconds, and a request sent into a closing one would be lost. A
            # new one also proves that the server still accepts.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            # The server is our own: no proxy and no ~/.netrc entry of this machine may come between.
            trust_env=False,
        )
        self._waiting: dict[int, tuple[asyncio.Task[Answer], float]] = {}
        self._seen: Progress = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._take_back(list(self._waiting))
        await self._http.aclose()

    async def round(self, start: Start | None = None) -> Round:
        """Takes at most about one and a half time limits, whatever the server does."""
        begun = time.monotonic()
        end = begun + self._target.timeout_s
        for rank in range(self._target.ranks):
            if rank not in self._waiting:
                self._waiting[rank] = (asyncio.create_task(self._ask(rank)), begun)
        await self._wait(begun + self._target.timeout_s / 2)
        answers = self._collect()
        seen: Progress = {}
        if self._doubtful(answers):
            # Only now, since writing all its metrics costs the server far more than a token does.
            before = self._seen or await self._progress(end)
            if self._turned_away(answers):
                await asyncio.sleep(end - time.monotonic())
            await self._wait(end)
            answers |= self._collect()
            if (doubtful := self._doubtful(answers)) and before:
                seen = await self._progress(time.monotonic() + self._target.timeout_s / 2)
                answers |= self._collect()
                doubtful = self._doubtful(answers)
            answers |= {rank: self._judge(rank, answers.get(rank), before, seen) for rank in doubtful}
            await self._take_back([rank for rank in doubtful if not self._may_wait_on(answers[rank])])
        self._seen = seen
        now = time.monotonic()
        return Round(tuple(answers[rank] for rank in sorted(answers)), now, now - begun, start)

    async def _wait(self, until: float) -> None:
        tasks = [task for task, _ in self._waiting.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=max(0.0, until - time.monotonic()))

    def _collect(self) -> dict[int, Answer]:
        done = {rank: task for rank, (task, _) in self._waiting.items() if task.done()}
        for rank in done:
            del self._waiting[rank]
        return {rank: task.result() for rank, task in done.items()}

    def _turned_away(self, answers: dict[int, Answer]) -> list[int]:
        """vLLM answers 503 when its queue is full (--max-num-queued-reqs), a proxy perhaps 429."""
        return [rank for rank, answer in answers.items() if answer.status in (429, 503)]

    def _doubtful(self, answers: dict[int, Answer]) -> list[int]:
        return [*self._waiting, *self._turned_away(answers)]

    def _judge(self, rank: int, answer: Answer | None, before: Progress, seen: Progress) -> Answer:
        """Of a rank that gave no token: busy, or not answering."""
        steps = advanced(before, seen, rank)
        if answer is not None:
            return replace(answer, outcome=Outcome.BUSY) if steps else answer
        waited = time.monotonic() - self._waiting[rank][1]
        if steps:
            return Answer(rank, Outcome.BUSY, f"no token for {waited:.1f} s, but the engine makes steps")
        known = "the engine makes no step" if rank in before and rank in seen else "its metrics do not tell of steps"
        return Answer(rank, Outcome.NO_ANSWER, f"no token within {waited:.1f} s, and {known}", seconds=waited)

    def _may_wait_on(self, answer: Answer) -> bool:
        if answer.outcome is not Outcome.BUSY or answer.rank not in self._waiting:
            return False
        return time.monotonic() - self._waiting[answer.rank][1] < _PATIENCE * self._target.timeout_s

    async def _take_back(self, ranks: Iterable[int]) -> None:
        """Closes the connections, on which the server drops the requests."""
        tasks = [self._waiting.pop(rank)[0] for rank in ranks if rank in self._waiting]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, rank: int) -> Answer:
        headers = {"X-data-parallel-rank": str(rank)} if self._target.ranks > 1 else {}
        sent = time.monotonic()
        try:
            status, body = await self._read(
                "POST", "/v1/completions", _ANSWER_BYTES, headers, json.dumps(request(self._target.model)).encode()
            )
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            return Answer(rank, Outcome.UNREACHABLE, f"no connection to {self._root}: {_reason(error)}")
        except Exception as error:  # whatever a server makes a client raise, the other ranks' answers count
            return Answer(rank, Outcome.NO_ANSWER, f"the connection broke: {_reason(error)}")
        return read_answer(rank, status, body, self._target.model, time.monotonic() - sent)

    async def _progress(self, until: float) -> Progress:
        """Nothing where the server tells nothing in time."""
        try:
            async with asyncio.timeout(max(0.0, until - time.monotonic())):
                status, body = await self._read("GET", "/metrics", _METRICS_BYTES, {}, None)
        except Exception:
            return {}
        return progress(body.decode(errors="replace")) if status == 200 else {}

    async def _read(
        self, method: str, path: str, most: int, headers: dict[str, str], content: bytes | None
    ) -> tuple[int, bytes]:
        """Status and the first `most` bytes of the body. Undecoded, so that few bytes cannot become many."""
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", **headers}
        body = bytearray()
        async with self._http.stream(method, f"{self._root}{path}", headers=headers, content=content) as response:
            async for part in response.aiter_raw():
                body += part
                if len(body) > most:
                    break
        return response.status_code, bytes(body[:most])


def _reason(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return excerpt(text.encode(errors="replace"))
