"""What is concluded from rounds of one-token requests, without any server."""

import json

import pytest

from coderack.liveness.tokens import (
    Answer,
    Limits,
    Outcome,
    Rank,
    Round,
    Start,
    State,
    Status,
    advanced,
    after,
    first_status,
    progress,
    read_answer,
    request,
    whole,
)
from coderack.liveness.tokens_watch import read_unit

from .liveness_server import MODEL, completion

LIMITS = Limits(failures=3, start_s=100)


def rounds(*outcomes: Outcome | list[Outcome], start: Start | None = None, status: Status | None = None) -> Status:
    """The status after one round every 3 s from second 3; one outcome stands for both ranks."""
    status = status or first_status(2, 0.0)
    for outcome in outcomes:
        both = outcome if isinstance(outcome, list) else [outcome, outcome]
        answers = tuple(Answer(rank, one, "" if one is Outcome.OK else "e", None, 0.1) for rank, one in enumerate(both))
        at = (status.at or 0.0) + 3
        status = after(status, Round(answers, at, 0.2, start), LIMITS)
    return status


def test_nothing_is_known_before_the_first_round() -> None:
    assert first_status(2, 0.0).state is State.UNKNOWN


def test_one_token_each_is_up() -> None:
    assert rounds(Outcome.OK).state is State.UP


def test_a_rank_that_fails_less_often_than_the_limit_stays_up() -> None:
    status = rounds(Outcome.OK, Outcome.NO_ANSWER, Outcome.NO_ANSWER)
    assert (status.state, status.ranks[0].consecutive_failures) == (State.UP, 2)


@pytest.mark.parametrize("outcome", [Outcome.REFUSED, Outcome.NO_ANSWER, Outcome.BAD_ANSWER, Outcome.UNREACHABLE])
def test_three_failures_in_a_row_are_down(outcome: Outcome) -> None:
    status = rounds(Outcome.OK, *[outcome] * 3)
    assert (status.state, status.since) == (State.DOWN, status.at)


def test_failures_that_are_not_in_a_row_do_not_add_up() -> None:
    assert rounds(Outcome.OK, *[Outcome.NO_ANSWER, Outcome.NO_ANSWER, Outcome.OK] * 3).state is State.UP


def test_one_dead_rank_of_two_is_degraded() -> None:
    status = rounds(Outcome.OK, *[[Outcome.OK, Outcome.NO_ANSWER]] * 3)
    assert (status.state, [rank.state for rank in status.ranks]) == (State.DEGRADED, [State.UP, State.DOWN])


def test_a_busy_rank_is_alive_however_long_it_is_busy() -> None:
    status = rounds(Outcome.OK, *[Outcome.BUSY] * 50)
    assert (status.state, status.ranks[0].state) == (State.UP, State.BUSY)
    assert status.ranks[0].last_token == 3


def test_one_token_ends_down() -> None:
    assert rounds(*[Outcome.NO_ANSWER] * 5, Outcome.OK).state is State.UP


def test_since_is_when_the_state_began() -> None:
    assert rounds(Outcome.OK, Outcome.OK, Outcome.OK).since == 3


# --- the port is shut


def test_a_port_that_never_was_open_is_starting_and_in_the_end_down() -> None:
    assert rounds(*[Outcome.UNREACHABLE] * 30).state is State.STARTING
    assert rounds(*[Outcome.UNREACHABLE] * 34).state is State.DOWN


def test_a_unit_that_does_not_run_is_not_starting() -> None:
    assert rounds(*[Outcome.UNREACHABLE] * 3, start=Start(under_way=False, at=1)).state is State.DOWN


def test_a_start_counts_from_the_units_start_and_not_from_the_probes() -> None:
    assert rounds(*[Outcome.UNREACHABLE] * 3, start=Start(under_way=True, at=-95)).state is State.DOWN


def test_without_a_unit_a_port_that_was_open_stays_down() -> None:
    assert rounds(Outcome.OK, *[Outcome.UNREACHABLE] * 20).state is State.DOWN


def test_a_restart_shows_as_down_first_and_then_as_starting() -> None:
    lost = rounds(Outcome.OK)
    seen = []
    for _ in range(4):
        lost = rounds(Outcome.UNREACHABLE, start=Start(under_way=True, at=5), status=lost)
        seen.append(lost.state)
    assert seen == [State.UP, State.UP, State.DOWN, State.STARTING]


def test_a_unit_that_has_run_since_before_the_last_answer_is_not_starting() -> None:
    lost = rounds(Outcome.OK)
    assert rounds(*[Outcome.UNREACHABLE] * 9, start=Start(under_way=True, at=2), status=lost).state is State.DOWN


def test_what_counts_against_a_rank_begins_when_the_port_opens() -> None:
    opened = rounds(*[Outcome.UNREACHABLE] * 9, Outcome.REFUSED, Outcome.REFUSED)
    assert (opened.state, opened.ranks[0].consecutive_failures) == (State.STARTING, 2)
    assert rounds(Outcome.REFUSED, status=opened).state is State.DOWN


# --- a question that is wrong


@pytest.mark.parametrize(
    ("status", "state"), [(401, State.UNKNOWN), (400, State.UNKNOWN), (429, State.DOWN), (500, State.DOWN)]
)
def test_a_question_that_the_server_rightly_refuses_says_nothing_about_the_rank(status: int, state: State) -> None:
    seen = first_status(1, 0.0)
    for at in (3.0, 6.0, 9.0):
        seen = after(seen, Round((Answer(0, Outcome.REFUSED, "e", status),), at, 0.1), LIMITS)
    assert seen.state is state


def test_another_model_is_unknown_and_not_a_reason_to_restart() -> None:
    assert rounds(Outcome.OK, *[Outcome.WRONG_MODEL] * 3).state is State.UNKNOWN


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([], State.UNKNOWN),
        ([State.UP, State.BUSY], State.UP),
        ([State.UP, State.UNKNOWN], State.UNKNOWN),
        ([State.DOWN, State.UNKNOWN], State.DOWN),
        ([State.DOWN, State.STARTING], State.DOWN),
        ([State.BUSY, State.DOWN], State.DEGRADED),
    ],
)
def test_a_known_fault_says_more_than_what_is_not_known(states: list[State], expected: State) -> None:
    assert whole(states) is expected


def test_a_rank_that_is_missing_from_a_round_has_failed() -> None:
    status = after(first_status(2, 0.0), Round((Answer(0, Outcome.OK),), 1.0, 0.1), LIMITS)
    assert status.ranks[1] == Rank(1, State.UNKNOWN, Outcome.NO_ANSWER, "was not asked", 1)


# --- reading answers


def read(body: str, status: int = 200) -> Answer:
    return read_answer(0, status, body.encode(), MODEL, 0.1)


def test_a_completion_of_one_token_is_ok() -> None:
    assert read(completion()).outcome is Outcome.OK


def test_an_end_of_text_is_a_token_though_the_text_is_empty() -> None:
    choice = {"index": 0, "text": "", "finish_reason": "stop"}
    assert read(completion(choices=[choice])).outcome is Outcome.OK


# As vLLM 0.32 answers a name that it does not serve.
NOT_FOUND = '{"error":{"message":"The model `x` does not exist.","type":"NotFoundError","param":"model","code":404}}'


@pytest.mark.parametrize(
    ("body", "status", "outcome"),
    [
        (NOT_FOUND, 404, Outcome.WRONG_MODEL),
        ('{"detail":"Not Found"}', 404, Outcome.REFUSED),
        (completion(model="other"), 200, Outcome.WRONG_MODEL),
        (completion(choices=[]), 200, Outcome.BAD_ANSWER),
        (completion(choices=[{"text": "", "finish_reason": "abort"}]), 200, Outcome.BAD_ANSWER),
        (completion(choices=[{"text": "", "finish_reason": ["x"]}]), 200, Outcome.BAD_ANSWER),
        (completion(usage={"completion_tokens": 0}), 200, Outcome.BAD_ANSWER),
        (completion(usage={"completion_tokens": True}), 200, Outcome.BAD_ANSWER),
        (completion(usage=[1]), 200, Outcome.BAD_ANSWER),
        ("", 200, Outcome.BAD_ANSWER),
        ("[]", 200, Outcome.BAD_ANSWER),
        ("null", 200, Outcome.BAD_ANSWER),
        ("[" * 50_000, 200, Outcome.BAD_ANSWER),
        ("9" * 50_000, 200, Outcome.BAD_ANSWER),
        ("\ud83d", 200, Outcome.BAD_ANSWER),
        ("", 500, Outcome.REFUSED),
    ],
)
def test_what_is_no_token_is_told_apart(body: str, status: int, outcome: Outcome) -> None:
    answer = read_answer(0, status, body.encode(errors="surrogatepass"), MODEL, 0.1)
    assert answer.outcome is outcome
    assert answer.error


def test_an_error_is_one_short_line_whatever_the_server_sends() -> None:
    error = read("\x1b[31m\n\x00" + "é" * 9000, 500).error
    assert error.startswith("HTTP 500: [31m é")
    assert len(error) < 250
    assert error.isprintable()


# --- progress

# From the /metrics of vLLM 0.32.0 with two ranks.
METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny-qwen3-moe"} 1.0
vllm:num_requests_running{engine="1",model_name="tiny-qwen3-moe"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny-qwen3-moe",reason="capacity"} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny-qwen3-moe"} 0.001953125
vllm:kv_cache_usage_perc{engine="1",model_name="tiny-qwen3-moe"} 0.0
vllm:generation_tokens_total{engine="0",model_name="tiny-qwen3-moe"} 41.0
vllm:generation_tokens_total{engine="1",model_name="tiny-qwen3-moe"} 40.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny-qwen3-moe"} 41.0
http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 81.0
"""


def test_an_engine_whose_counters_move_has_made_a_step_and_the_other_has_not() -> None:
    later = METRICS.replace(
        'generation_tokens_total{engine="0",model_name="tiny-qwen3-moe"} 41',
        'generation_tokens_total{engine="0",model_name="tiny-qwen3-moe"} 42',
    )
    before, now = progress(METRICS), progress(later)
    assert (advanced(before, now, 0), advanced(before, now, 1)) == (True, False)


def test_a_long_prompt_in_chunks_moves_only_the_cache() -> None:
    later = METRICS.replace("0.001953125", "0.25")
    assert advanced(progress(METRICS), progress(later), 0)


def test_requests_at_the_door_are_no_step() -> None:
    later = METRICS.replace("81.0", "99.0").replace('success_total{engine="0"', 'failure_total{engine="0"')
    assert not advanced(progress(METRICS), progress(later), 0)


@pytest.mark.parametrize(
    "text", ["", "\n\x00", "vllm:generation_tokens_total{", 'vllm:kv_cache_usage_perc{engine="0"', "a," * 100_000]
)
def test_metrics_that_do_not_tell_are_no_progress(text: str) -> None:
    assert progress(text) == {}
    assert not advanced(progress(text), progress(METRICS), 0)


# --- the unit


# As systemd 252 prints them.
def unit(state: str, active: int, inactive: int) -> str:
    return f"ActiveState={state}\nActiveEnterTimestampMonotonic={active}\nInactiveExitTimestampMonotonic={inactive}\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (unit("active", 62_000_000, 61_000_000), Start(under_way=True, at=62.0)),
        (unit("activating", 62_000_000, 90_000_000), Start(under_way=True, at=90.0)),
        (unit("failed", 62_000_000, 61_000_000), Start(under_way=False, at=61.0)),
        (unit("inactive", 0, 0), Start(under_way=False, at=0.0)),
        ("", None),
        ("ActiveState=active\nActiveEnterTimestampMonotonic=soon\n", None),
    ],
)
def test_the_unit_tells_when_its_start_began(text: str, expected: Start | None) -> None:
    assert read_unit(text) == expected


def test_requests_are_for_exactly_one_token() -> None:
    assert json.dumps(request("m")) == '{"model": "m", "prompt": "1", "max_tokens": 1, "temperature": 0}'
