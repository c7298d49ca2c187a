"""What rounds of one-token requests say about the data-parallel ranks of a server. No I/O.

vLLM's /health stays 200 after the engines of another node have died, and its port stays open: only a token that a rank
has just computed proves that the rank lives.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

EXCERPT = 200

# A few tokens: less than a block of the KV cache (16), which is the least that the prefix cache keeps. Besides, vLLM
# always computes the last token of a prompt anew, cached or not, so the answer always takes a forward pass.
PROMPT = "1"

# Counters and gauges that vLLM sets when a step of that engine has ended, so that any change proves a step. Of a long
# prompt in chunks only the KV cache's use moves, of a full batch only the tokens.
_PROGRESS = re.compile(
    r"^vllm:(generation_tokens_total|prompt_tokens_total|prefix_cache_queries_total|kv_cache_usage_perc"
    r'|num_requests_running|num_requests_waiting)\{(?:[^}]*,)?engine="(\d+)"[^}]*\} (\S+)',
    re.MULTILINE,
)


class Outcome(StrEnum):
    """What became of one request to one rank."""

    OK = "ok"
    BUSY = "busy"  # no token in time, or turned away because the queue is full, but the rank's engine makes steps
    REFUSED = "refused"  # an HTTP status other than 200
    BAD_ANSWER = "bad answer"  # status 200, and no token in it
    NO_ANSWER = "no answer"  # connected, and nothing came in time, or the connection broke
    UNREACHABLE = "unreachable"  # no connection
    WRONG_MODEL = "wrong model"


class State(StrEnum):
    """Of a rank, and of the whole; a rank is never degraded, the whole never busy."""

    UP = "up"
    BUSY = "busy"
    DEGRADED = "degraded"
    DOWN = "down"
    STARTING = "starting"
    UNKNOWN = "unknown"
    STOPPED = "stopped"


RANK_STATES = (State.UP, State.BUSY, State.DOWN, State.STARTING, State.UNKNOWN)
WHOLE_STATES = (State.UP, State.DEGRADED, State.DOWN, State.STARTING, State.UNKNOWN, State.STOPPED)


@dataclass(frozen=True)
class Answer:
    """What one rank answered. seconds: from the request to its end, None where it has not ended."""

    rank: int
    outcome: Outcome
    error: str = ""
    status: int | None = None
    seconds: float | None = None

    @property
    def alive(self) -> bool:
        return self.outcome in (Outcome.OK, Outcome.BUSY)

    @property
    def misdirected(self) -> bool:
        """The server is in order and the question is wrong (model, key, rank): it says nothing about the rank."""
        if self.outcome is Outcome.WRONG_MODEL:
            return True
        return self.status is not None and 400 <= self.status < 500 and self.status not in (408, 429)


@dataclass(frozen=True)
class Start:
    """What the service manager says of the server's unit. at: when its last start began, monotonic seconds."""

    under_way: bool
    at: float


@dataclass(frozen=True)
class Round:
    """One request per rank, all at about the same time. at: monotonic seconds, when it ended."""

    answers: tuple[Answer, ...]
    at: float
    seconds: float
    start: Start | None = None

    @property
    def listening(self) -> bool:
        return any(answer.outcome is not Outcome.UNREACHABLE for answer in self.answers)


@dataclass(frozen=True)
class Limits:
    """failures: so many in a row, and a rank is down. start_s: a start that takes longer is a failure."""

    failures: int = 3
    start_s: float = 2700.0


@dataclass(frozen=True)
class Rank:
    rank: int
    state: State = State.UNKNOWN
    outcome: Outcome | None = None
    error: str = ""
    consecutive_failures: int = 0
    seconds: float | None = None  # of the last token
    last_token: float | None = None  # monotonic seconds


@dataclass(frozen=True)
class Status:
    """All that is known after a round. Times are monotonic seconds, which no change of the clock moves."""

    ranks: tuple[Rank, ...]
    began: float
    since: float
    state: State = State.UNKNOWN
    listening: bool | None = None
    last_heard: float | None = None  # when the server last answered anything
    at: float | None = None  # end of the last round
    seconds: float | None = None  # duration of the last round


def first_status(ranks: int, now: float) -> Status:
    return Status(tuple(Rank(rank) for rank in range(ranks)), began=now, since=now)


def after(status: Status, done: Round, limits: Limits) -> Status:
    """What is known after one more round."""
    starting = _is_starting(status, done, limits)
    answers = {answer.rank: answer for answer in done.answers}
    ranks = tuple(_rank(rank, answers.get(rank.rank), done, starting, limits) for rank in status.ranks)
    state = whole(rank.state for rank in ranks)
    return replace(
        status,
        ranks=ranks,
        state=state,
        since=status.since if state is status.state else done.at,
        listening=done.listening,
        last_heard=done.at if done.listening else status.last_heard,
        at=done.at,
        seconds=done.seconds,
    )


def whole(states: Iterable[State]) -> State:
    """A known fault says more than what is not known, and what is not known is never healthy."""
    seen = set(states)
    if State.DOWN in seen:
        return State.DEGRADED if seen & {State.UP, State.BUSY} else State.DOWN
    for state in (State.UNKNOWN, State.STARTING):
        if state in seen:
            return state
    return State.UP if seen else State.UNKNOWN


def _is_starting(status: Status, done: Round, limits: Limits) -> bool:
    """Whether a closed port is one that is yet to open.

    The loss of a server that had answered is always told as `down` first; `starting` comes only with a start that
    began after its last answer.
    """
    if done.listening:
        return False
    if status.last_heard is None:
        start = done.start or Start(under_way=True, at=status.began)
        return start.under_way and done.at - start.at < limits.start_s
    if done.start is None or not all(rank.state in (State.DOWN, State.STARTING) for rank in status.ranks):
        return False
    return done.start.under_way and done.start.at > status.last_heard and done.at - done.start.at < limits.start_s


def _rank(rank: Rank, answer: Answer | None, done: Round, starting: bool, limits: Limits) -> Rank:
    if answer is None:
        answer = Answer(rank.rank, Outcome.NO_ANSWER, "was not asked")
    if answer.outcome is Outcome.OK:
        return Rank(rank.rank, State.UP, answer.outcome, "", 0, answer.seconds, done.at)
    if answer.outcome is Outcome.BUSY:
        return replace(rank, state=State.BUSY, outcome=answer.outcome, error=answer.error, consecutive_failures=0)
    failures, state = rank.consecutive_failures + 1, rank.state
    if state is State.STARTING and rank.outcome is Outcome.UNREACHABLE and done.listening:
        failures = 1  # what counts against a rank begins when the port opens
    if starting:
        state = State.STARTING
    elif failures >= limits.failures or (state is State.STARTING and not done.listening):
        state = State.UNKNOWN if answer.misdirected else State.DOWN
    return replace(rank, state=state, outcome=answer.outcome, error=answer.error, consecutive_failures=failures)


def request(model: str) -> dict[str, Any]:
    return {"model": model, "prompt": PROMPT, "max_tokens": 1, "temperature": 0}


def read_answer(rank: int, status: int, body: bytes, model: str, seconds: float) -> Answer:
    """What a whole HTTP answer says."""
    if status != 200:
        outcome = Outcome.WRONG_MODEL if status == 404 and b"does not exist" in body else Outcome.REFUSED
        return Answer(rank, outcome, f"HTTP {status}: {excerpt(body) or '(empty body)'}", status, seconds)
    try:
        wrong = _missing(json.loads(body), model)
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        wrong = (Outcome.BAD_ANSWER, f"no completion in: {excerpt(body) or '(empty body)'}")
    if wrong is None:
        return Answer(rank, Outcome.OK, "", status, seconds)
    return Answer(rank, wrong[0], wrong[1], status, seconds)


def _missing(answer: Any, model: str) -> tuple[Outcome, str] | None:
    """What is wrong with a completion of one token."""
    choice = answer["choices"][0]
    finish = choice["finish_reason"]
    served = answer.get("model", model)
    if served != model:
        return Outcome.WRONG_MODEL, f"answered by model {excerpt(str(served).encode())}, wanted {model}"
    # "abort" and "error" are what a request gets whose engine went away.
    if finish not in ("length", "stop"):
        return Outcome.BAD_ANSWER, f"finish_reason is {excerpt(str(finish).encode())}, wanted length"
    # The text may well be empty: an end of text is a token, too.
    tokens = (answer.get("usage") or {}).get("completion_tokens", 1)
    if type(tokens) is not int or tokens < 1:
        return Outcome.BAD_ANSWER, f"completion_tokens is {excerpt(str(tokens).encode())}, wanted 1"
    return None


def progress(metrics: str) -> dict[int, tuple[tuple[str, str], ...]]:
    """For each engine of vLLM's /metrics a value that changes whenever the engine has made a step."""
    seen: dict[int, list[tuple[str, str]]] = {}
    for name, engine, value in _PROGRESS.findall(metrics):
        if len(engine) < 6:
            seen.setdefault(int(engine), []).append((name, value))
    return {engine: tuple(sorted(values)) for engine, values in seen.items()}


def excerpt(body: bytes) -> str:
    """The beginning of someone else's text, on one line and without control characters."""
    text = body[: 4 * EXCERPT].decode(errors="replace")
    text = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return text if len(text) <= EXCERPT else f"{text[:EXCERPT]}..."


def advanced(
    before: Mapping[int, tuple[tuple[str, str], ...]], now: Mapping[int, tuple[tuple[str, str], ...]], rank: int
) -> bool:
    """Whether the rank's engine made a step between the two; no if one of them is not known."""
    return rank in before and rank in now and before[rank] != now[rank]
