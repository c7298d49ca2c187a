"""One round against a server with real sockets, each way in which a rank can fail to give a token."""

import asyncio
import socket
import time
from collections.abc import Callable

import pytest

from coderack.liveness.tokens import Outcome, Round
from coderack.liveness.tokens_ask import Prober, Target

from .liveness_server import DROP, FLOOD, GARBAGE, HANG, MODEL, OK, Group, completion, serving

# Long enough for what comes at once, also on a busy machine.
SHORT = 0.25
FULL = (503, '{"error":{"message":"Server overloaded: the request queue is full.","code":503}}')


def ask(
    group: Group,
    *,
    ranks: int = 2,
    timeout_s: float = 5,
    number: int = 1,
    between: Callable[[int], None] | None = None,
) -> list[Round]:
    """So many rounds by one prober; `between` is called after each."""

    async def all_rounds(url: str) -> list[Round]:
        done = []
        async with Prober(Target(url, MODEL, ranks, group.api_key, timeout_s)) as prober:
            for index in range(number):
                done.append(await prober.round())
                if between is not None:
                    between(index)
        return done

    with serving(group) as url:
        return asyncio.run(all_rounds(url))


def outcomes(done: Round) -> list[str]:
    return [answer.outcome.value for answer in done.answers]


def test_each_rank_is_asked_for_one_token_by_its_number() -> None:
    group = Group(api_key="key-1")
    [done] = ask(group, ranks=3)
    assert outcomes(done) == ["ok"] * 3
    assert sorted((path, rank, body["max_tokens"]) for path, rank, body in group.seen) == [
        ("/v1/completions", rank, 1) for rank in range(3)
    ]
    assert all(answer.seconds is not None and 0 < answer.seconds < 5 for answer in done.answers)


def test_a_server_with_one_rank_needs_no_number() -> None:
    group = Group()
    ask(group, ranks=1)
    assert [rank for _, rank, _ in group.seen] == [None]


def test_while_all_is_well_the_metrics_are_left_alone() -> None:
    group = Group()
    ask(group, number=3)
    assert group.asked("/metrics") == 0


def test_a_hanging_rank_gives_no_answer_and_keeps_no_other_waiting() -> None:
    [done] = ask(Group({0: OK, 1: HANG}), timeout_s=SHORT)
    assert outcomes(done) == ["ok", "no answer"]
    assert done.answers[1].error.startswith("no token within 0.")
    assert done.answers[1].error.endswith(" s, and the engine makes no step")
    assert done.seconds < 3


@pytest.mark.parametrize("metrics", [DROP, HANG, GARBAGE, FLOOD, (404, "")])
def test_a_hanging_rank_is_not_busy_where_the_metrics_do_not_say_so(metrics: str | tuple[int, str]) -> None:
    [done] = ask(Group({0: HANG}, steps={0: 1}, metrics=metrics), ranks=1, timeout_s=0.1)
    assert outcomes(done) == ["no answer"]
    assert done.answers[0].error.endswith("its metrics do not tell of steps")
    assert done.seconds < 3


def test_a_queued_request_to_an_engine_that_works_is_busy_and_keeps_its_place() -> None:
    group = Group({0: HANG, 1: OK}, steps={0: 5})
    done = ask(group, number=2, timeout_s=SHORT)
    assert [outcomes(one) for one in done] == [["busy", "ok"]] * 2
    assert [rank for path, rank, _ in group.seen if path == "/v1/completions"].count(0) == 1


def test_a_token_that_comes_late_is_still_taken_and_tells_the_true_time() -> None:
    done = ask(Group({0: 0.5}, steps={0: 5}), ranks=1, number=2, timeout_s=SHORT)
    assert [outcomes(one)[0] for one in done] == ["busy", "ok"]
    assert done[1].answers[0].seconds is not None
    assert done[1].answers[0].seconds > 0.5


def test_an_engine_that_stops_working_is_seen_in_the_next_round() -> None:
    group = Group({0: HANG}, steps={0: 5})
    done = ask(group, ranks=1, number=2, timeout_s=SHORT, between=lambda _: group.steps.clear())
    # The first look of the second round is the last of the first one.
    assert [outcomes(one)[0] for one in done] == ["busy", "no answer"]


def test_another_engines_work_does_not_excuse_a_rank() -> None:
    [done] = ask(Group({0: HANG, 1: HANG}, steps={1: 5}), timeout_s=SHORT)
    assert outcomes(done) == ["no answer", "busy"]


def test_never_more_than_one_request_to_a_rank_is_under_way() -> None:
    for steps in ({}, {0: 1}):
        group = Group({0: HANG}, steps=steps)
        ask(group, number=3, timeout_s=0.06)
        assert group.most_together == 1


def test_a_full_queue_is_busy_while_the_engine_works_and_a_refusal_when_it_does_not() -> None:
    [done] = ask(Group({0: FULL, 1: FULL}, steps={0: 9}), timeout_s=SHORT)
    assert outcomes(done) == ["busy", "refused"]


@pytest.mark.parametrize(
    ("behaviour", "outcome", "error"),
    [
        ((500, '{"error":{"message":"EngineCore encountered an issue."}}'), Outcome.REFUSED, 'HTTP 500: {"error"'),
        ((404, '{"error":{"message":"The model `m` does not exist."}}'), Outcome.WRONG_MODEL, "HTTP 404: "),
        ((200, completion(model="other")), Outcome.WRONG_MODEL, "answered by model other"),
        ((200, "<html>"), Outcome.BAD_ANSWER, "no completion in: <html>"),
        (FLOOD, Outcome.BAD_ANSWER, "no completion in: xxx"),
        (GARBAGE, Outcome.NO_ANSWER, "the connection broke: "),
        (DROP, Outcome.NO_ANSWER, "the connection broke: Server disconnected"),
    ],
)
def test_what_came_instead_of_a_token_is_named(behaviour: str | tuple[int, str], outcome: Outcome, error: str) -> None:
    [done] = ask(Group({0: behaviour}), ranks=1)
    assert done.answers[0].outcome is outcome
    assert done.answers[0].error.startswith(error)


def test_a_wrong_key_is_refused_with_401() -> None:
    async def one(url: str) -> Round:
        async with Prober(Target(url, MODEL, 1, "wrong")) as prober:
            return await prober.round()

    with serving(Group(api_key="right")) as url:
        done = asyncio.run(one(url))
    assert (done.answers[0].status, done.answers[0].misdirected) == (401, True)


def round_at(url: str, timeout_s: float = 0.3) -> Round:
    async def one() -> Round:
        async with Prober(Target(url, MODEL, 2, None, timeout_s)) as prober:
            return await prober.round()

    return asyncio.run(one())


def test_a_shut_port_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    done = round_at(f"http://127.0.0.1:{port}")
    assert (outcomes(done), done.listening) == (["unreachable"] * 2, False)


def test_a_port_that_accepts_and_says_nothing_is_no_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        done = round_at(f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert (outcomes(done), done.listening) == (["no answer"] * 2, True)


def test_a_name_that_does_not_exist_is_unreachable() -> None:
    done = round_at("http://nowhere.invalid:8000", timeout_s=3)
    assert outcomes(done) == ["unreachable"] * 2


def test_a_request_that_is_taken_back_is_dropped_by_the_server() -> None:
    group = Group({0: HANG})

    def look(_: int) -> None:
        deadline = time.monotonic() + 2
        while group.together[None] and time.monotonic() < deadline:
            time.sleep(0.01)
        assert group.together[None] == 0

    ask(group, ranks=1, timeout_s=0.1, between=look)


@pytest.mark.parametrize("url", ["", "gpu-a:8000", "ftp://x", "http://u:p@x", "http://x:99999", "http://x/?q=1"])
def test_a_url_that_cannot_be_meant_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="URL"):
        Target(url, MODEL, 1)
