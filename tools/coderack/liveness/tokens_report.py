"""What the token probe tells: one JSON document, and metrics `coderack_token_probe_*`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from coderack.clients.textfile import Series, page
from coderack.liveness.tokens import RANK_STATES, WHOLE_STATES, Outcome, Rank, Round, State, Status

SCHEMA = "coderack.token-probe/1"
ONCE_SCHEMA = "coderack.token-probe-once/1"

_TYPES = {
    "coderack_token_probe_state": ("gauge", "1 for the state of the whole server."),
    "coderack_token_probe_last_round_timestamp_seconds": (
        "gauge",
        "When the last round ended: older than half a minute means blind.",
    ),
    "coderack_token_probe_round_duration_seconds": ("gauge", "How long the last round took."),
    "coderack_token_probe_rank_state": ("gauge", "1 for the state of the data-parallel rank."),
    "coderack_token_probe_success": ("gauge", "Whether the rank gave a token in the last round."),
    "coderack_token_probe_consecutive_failures": ("gauge", "Rounds without a sign of life of the rank since the last."),
    "coderack_token_probe_latency_seconds": ("gauge", "Request to answer of the rank's last token."),
    "coderack_token_probe_last_success_timestamp_seconds": ("gauge", "When the rank last gave a token."),
}


@dataclass(frozen=True)
class Clocks:
    """The same instant on both clocks: monotonic seconds, and seconds since 1970."""

    monotonic: float
    wall: float

    def as_wall(self, monotonic: float) -> float:
        """Counted back from now, so that after a change of the clock no time lies in the future."""
        return self.wall - (self.monotonic - monotonic)


def document(status: Status, clocks: Clocks, *, url: str, model: str, boot_id: str | None) -> dict[str, Any]:
    """What readers on the node get; without the schema, which whoever writes it adds.

    monotonic_time is CLOCK_MONOTONIC: a reader of the same boot tells the document's age by it even while the clock
    is being set.
    """
    return {
        "time": round(clocks.wall, 3),
        "monotonic_time": round(clocks.monotonic, 3),
        "boot_id": boot_id,
        "url": url,
        "model": model,
        "state": status.state.value,
        "since": round(clocks.as_wall(status.since), 3),
        "listening": status.listening,
        "round_seconds": None if status.seconds is None else round(status.seconds, 3),
        "ranks": [_rank(rank, clocks) for rank in status.ranks],
    }


def _rank(rank: Rank, clocks: Clocks) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "state": rank.state.value,
        "outcome": None if rank.outcome is None else rank.outcome.value,
        "seconds": None if rank.seconds is None else round(rank.seconds, 4),
        "last_token": None if rank.last_token is None else round(clocks.as_wall(rank.last_token), 3),
        "error": rank.error,
        "consecutive_failures": rank.consecutive_failures,
    }


def metrics(status: Status, clocks: Clocks) -> str:
    """The whole file for the textfile collector. What was never seen has no series."""
    return page(_TYPES, _series(status, clocks))


def _series(status: Status, clocks: Clocks) -> Iterator[Series]:
    for state in WHOLE_STATES:
        yield "coderack_token_probe_state", {"state": state.value}, float(state is status.state)
    if status.at is not None and status.seconds is not None:
        yield "coderack_token_probe_last_round_timestamp_seconds", {}, clocks.as_wall(status.at)
        yield "coderack_token_probe_round_duration_seconds", {}, status.seconds
    for rank in status.ranks:
        labels = {"rank": str(rank.rank)}
        for state in RANK_STATES:
            yield "coderack_token_probe_rank_state", {**labels, "state": state.value}, float(state is rank.state)
        if rank.outcome is not None:
            yield "coderack_token_probe_success", labels, float(rank.outcome is Outcome.OK)
        yield "coderack_token_probe_consecutive_failures", labels, float(rank.consecutive_failures)
        if rank.seconds is not None:
            yield "coderack_token_probe_latency_seconds", labels, rank.seconds
        if rank.last_token is not None:
            yield "coderack_token_probe_last_success_timestamp_seconds", labels, clocks.as_wall(rank.last_token)


def headline(status: Status) -> str:
    """One line for `systemctl status`."""
    tokens = [rank.seconds for rank in status.ranks if rank.outcome is Outcome.OK and rank.seconds is not None]
    text = f"{status.state}: {len(tokens)} of {len(status.ranks)} ranks gave a token"
    if tokens:
        text += f", the slowest after {max(tokens):.2f} s"
    wrong = next((rank for rank in status.ranks if rank.error), None)
    return text if wrong is None else f"{text}; rank {wrong.rank}: {wrong.error}"


def verdict(done: Round) -> State:
    """Of a single round, which has no past: up, down, or unknown."""
    outcomes = {answer.outcome for answer in done.answers}
    if outcomes == {Outcome.OK}:
        return State.UP
    # A closed port, a full queue and a refused key leave open what the ranks would do.
    open_ended = {Outcome.OK, Outcome.BUSY, Outcome.UNREACHABLE}
    failed = [a for a in done.answers if a.outcome not in open_ended and a.status not in (401, 403)]
    return State.DOWN if failed else State.UNKNOWN


def once(done: Round, *, url: str, model: str) -> dict[str, Any]:
    return {
        "url": url,
        "model": model,
        "state": verdict(done).value,
        "round_seconds": round(done.seconds, 3),
        "ranks": [
            {
                "rank": answer.rank,
                "outcome": answer.outcome.value,
                "seconds": None if answer.seconds is None else round(answer.seconds, 4),
                "error": answer.error,
            }
            for answer in done.answers
        ],
    }
