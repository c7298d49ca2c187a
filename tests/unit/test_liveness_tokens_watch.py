"""The token probe as a service, in this process, with real sockets and intervals of tens of milliseconds."""

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from coderack.liveness import tokens_watch
from coderack.liveness.tokens import Limits, Round, Start
from coderack.liveness.tokens_ask import Prober, Target
from coderack.liveness.tokens_watch import Watch, run

from .liveness_server import HANG, MODEL, OK, Group, serving

Document = dict[str, Any]
Condition = Callable[[Document], bool]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


class Running:
    """A watch that runs in this event loop, and its document."""

    def __init__(self, watch: Watch, clock: Callable[[], float] = time.time) -> None:
        self._path = watch.out
        self._clock = clock
        self._watch = watch

    async def __aenter__(self) -> "Running":
        self._task = asyncio.create_task(run(self._watch, clock=self._clock))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> float:
        """Seconds that it took to end by SIGTERM."""
        begun = time.monotonic()
        if not self._task.done():
            os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(self._task, 5)
        return time.monotonic() - begun

    def document(self) -> Document:
        assert self._path is not None
        return dict(json.loads(self._path.read_text()))

    async def until(self, condition: Condition) -> Document:
        deadline = time.monotonic() + 5
        while True:
            if self._path is not None and self._path.exists() and condition(seen := self.document()):
                return seen
            assert time.monotonic() < deadline, self.document()
            await asyncio.sleep(0.01)

    async def until_state(self, state: str) -> Document:
        return await self.until(lambda seen: seen["state"] == state)


def watch(url: str, tmp_path: Path, **more: Any) -> Watch:
    fixed: dict[str, Any] = {
        "limits": Limits(failures=2, start_s=60),
        "interval_s": 0.03,
        "out": tmp_path / "probe.json",
        "textfile": tmp_path / "token_probe.prom",
    }
    return Watch(**({"target": Target(url, MODEL, 2, None, 0.1)} | fixed | more))


def metric(path: Path, name: str) -> str:
    [line] = [line for line in path.read_text().splitlines() if line.startswith(f"coderack_token_probe_{name} ")]
    return line.split()[-1]


def test_files_tell_that_all_ranks_give_tokens(tmp_path: Path) -> None:
    async def body(url: str) -> None:
        async with Running(watch(url, tmp_path)) as running:
            seen = await running.until_state("up")
        assert (seen["schema"], seen["model"], seen["listening"]) == ("coderack.token-probe/1", MODEL, True)
        assert [(rank["rank"], rank["state"], rank["error"]) for rank in seen["ranks"]] == [
            (0, "up", ""),
            (1, "up", ""),
        ]
        assert abs(seen["time"] - time.time()) < 5
        assert abs(seen["monotonic_time"] - time.monotonic()) < 5

    with serving(Group()) as url:
        asyncio.run(body(url))
    assert (tmp_path / "probe.json").stat().st_mode & 0o777 == 0o644
    assert sorted(path.name for path in tmp_path.iterdir()) == ["probe.json", "token_probe.prom"]


def test_metrics_tell_the_same(tmp_path: Path) -> None:
    group = Group({1: HANG})

    async def body(url: str) -> None:
        async with Running(watch(url, tmp_path)) as running:
            await running.until_state("degraded")
            name = tmp_path / "token_probe.prom"
            await running.until(lambda _: metric(name, 'rank_state{rank="1",state="down"}') == "1")
            assert metric(name, 'state{state="degraded"}') == "1"
            assert metric(name, 'state{state="up"}') == "0"
            assert metric(name, 'success{rank="0"}') == "1"
            assert metric(name, 'success{rank="1"}') == "0"
            assert int(metric(name, 'consecutive_failures{rank="1"}')) >= 2
            assert 0 < float(metric(name, 'latency_seconds{rank="0"}')) < 1
            assert abs(float(metric(name, 'last_success_timestamp_seconds{rank="0"}')) - time.time()) < 5
            assert 'latency_seconds{rank="1"}' not in name.read_text()

    with serving(group) as url:
        asyncio.run(body(url))


def test_a_hang_is_down_with_its_reason_and_a_token_ends_it(tmp_path: Path) -> None:
    group = Group()

    async def body(url: str) -> None:
        async with Running(watch(url, tmp_path)) as running:
            await running.until_state("up")
            group.behaviour.update({0: HANG, 1: HANG})
            seen = await running.until_state("down")
            assert seen["listening"] is True
            assert "the engine makes no step" in seen["ranks"][0]["error"]
            group.behaviour.clear()
            assert (await running.until_state("up"))["ranks"][0]["consecutive_failures"] == 0

    with serving(group) as url:
        asyncio.run(body(url))


def test_under_load_an_engine_that_makes_steps_stays_up(tmp_path: Path) -> None:
    group = Group({0: HANG, 1: HANG}, steps={0: 3, 1: 3})

    async def body(url: str) -> None:
        patient = watch(url, tmp_path, target=Target(url, MODEL, 2, None, 0.25))
        async with Running(patient) as running:
            seen = await running.until_state("up")
            assert [rank["state"] for rank in seen["ranks"]] == ["busy", "busy"]
            for _ in range(20):
                await asyncio.sleep(0.03)
                assert running.document()["state"] == "up"

    with serving(group) as url:
        asyncio.run(body(url))


def test_a_port_that_opens_and_shuts_is_starting_then_up_then_down(tmp_path: Path) -> None:
    port = free_port()

    async def body() -> None:
        async with Running(watch(f"http://127.0.0.1:{port}", tmp_path)) as running:
            assert (await running.until_state("starting"))["listening"] is False
            with serving(Group(), port):
                await running.until_state("up")
            assert (await running.until_state("down"))["listening"] is False

    asyncio.run(body())


def test_a_unit_that_was_started_again_is_starting_after_it_was_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = 0.0

    async def look(unit: str) -> Start:
        assert unit == "vllm.service"
        return Start(under_way=True, at=started)

    monkeypatch.setattr(tokens_watch, "look_at_unit", look)
    port = free_port()

    async def body() -> None:
        nonlocal started
        async with Running(watch(f"http://127.0.0.1:{port}", tmp_path, unit="vllm.service")) as running:
            with serving(Group(), port):
                await running.until_state("up")
            await running.until_state("down")
            await asyncio.sleep(0.1)
            assert running.document()["state"] == "down"
            started = time.monotonic()
            await running.until_state("starting")

    asyncio.run(body())


def test_sigterm_in_the_middle_of_a_round_ends_it_at_once_and_is_told(tmp_path: Path) -> None:
    group = Group({0: HANG, 1: HANG})

    async def body(url: str) -> None:
        slow = Watch(Target(url, MODEL, 2, None, 60), Limits(), 60, tmp_path / "probe.json", tmp_path / "t.prom")
        async with Running(slow) as running:
            await running.until_state("unknown")
            while not group.seen:
                await asyncio.sleep(0.01)
            assert await running.stop() < 1
            assert running.document()["state"] == "stopped"
            assert metric(tmp_path / "t.prom", 'state{state="stopped"}') == "1"

    with serving(group) as url:
        asyncio.run(body(url))


def test_a_file_that_cannot_be_written_is_said_once_and_holds_nothing_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "full"

    async def body(url: str) -> None:
        async with Running(watch(url, tmp_path, textfile=folder / "t.prom")) as running:
            first = await running.until_state("up")
            await running.until(lambda seen: bool(seen["monotonic_time"] > first["monotonic_time"]))
            folder.mkdir()
            while not (folder / "t.prom").exists():
                await asyncio.sleep(0.01)

    with caplog.at_level("INFO", "coderack"), serving(Group()) as url:
        asyncio.run(body(url))
    said = [message for message in caplog.messages if "t.prom" in message]
    assert said == [
        f"{folder / 't.prom'} is not written: No such file or directory; readers will find it stale",
        f"{folder / 't.prom'} is written again",
    ]


def test_a_clock_that_jumps_back_puts_no_time_into_the_future(tmp_path: Path) -> None:
    ahead = 3600.0

    async def body(url: str) -> None:
        nonlocal ahead
        async with Running(watch(url, tmp_path), clock=lambda: 1_000_000.0 + ahead + time.monotonic()) as running:
            before = await running.until_state("up")
            ahead = 0.0
            now = await running.until(lambda seen: bool(seen["time"] < before["time"]))
            assert now["monotonic_time"] > before["monotonic_time"]
            assert now["since"] <= now["time"]
            assert all(rank["last_token"] <= now["time"] for rank in now["ranks"])
            assert now["state"] == "up"

    with serving(Group()) as url:
        asyncio.run(body(url))


def test_a_round_that_fails_in_itself_is_not_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = Prober.round
    calls = 0

    async def sometimes(self: Prober, start: Start | None = None) -> Round:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise RuntimeError("no more files")
        return await real(self, start)

    monkeypatch.setattr(Prober, "round", sometimes)

    async def body(url: str) -> None:
        async with Running(watch(url, tmp_path)) as running:
            await running.until_state("up")

    with serving(Group()) as url:
        asyncio.run(body(url))
    assert caplog.messages.count("a round failed: RuntimeError('no more files')") == 2


def test_systemd_is_told_of_readiness_life_state_and_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))

        async def body(url: str) -> None:
            async with Running(watch(url, tmp_path)) as running:
                await running.until_state("up")
                await asyncio.sleep(0.05)

        with serving(Group()) as url:
            asyncio.run(body(url))
        told = []
        with suppress(BlockingIOError):
            while True:
                told.append(systemd.recv(4096).decode())
    assert told.index("READY=1") < told.index("WATCHDOG=1") < told.index("STOPPING=1")
    assert any(line.startswith("STATUS=up: 2 of 2 ranks gave a token, the slowest after 0.") for line in told)
    assert told[-1].startswith("STATUS=stopped")


# --- over HTTP


async def get(port: int, request: bytes = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n") -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = (await asyncio.wait_for(reader.read(), 5)).decode()
    writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split()[1]), body


async def reachable(port: int) -> None:
    while True:
        try:
            await get(port)
        except OSError:
            await asyncio.sleep(0.01)
        else:
            return


def test_a_health_check_gets_200_while_up_and_503_otherwise(tmp_path: Path) -> None:
    port, group = free_port(), Group()

    async def body(url: str) -> None:
        async with Running(watch(url, tmp_path, listen=("127.0.0.1", port))) as running:
            await reachable(port)
            await running.until_state("up")
            code, text = await get(port)
            assert (code, json.loads(text)["state"]) == (200, "up")
            assert await get(port, b"HEAD /any HTTP/1.0\r\n\r\n") == (200, "")
            # What HAProxy's httpchk sends where nothing else is said.
            assert (await get(port, b"OPTIONS / HTTP/1.0\r\n\r\n"))[0] == 200
            group.behaviour[1] = HANG
            await running.until_state("degraded")
            code, text = await get(port)
            assert (code, json.loads(text)["state"]) == (503, "degraded")

    with serving(group) as url:
        asyncio.run(body(url))


def test_before_the_first_round_a_health_check_fails(tmp_path: Path) -> None:
    port = free_port()

    async def body(url: str) -> None:
        slow = Watch(Target(url, MODEL, 2, None, 60), Limits(), 60, tmp_path / "p.json", listen=("127.0.0.1", port))
        async with Running(slow):
            await reachable(port)
            assert (await get(port))[0] == 503

    with serving(Group({0: HANG})) as url:
        asyncio.run(body(url))


def test_slow_and_many_clients_keep_no_health_check_waiting_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens_watch, "_CLIENT_S", 0.2)
    port = free_port()

    async def body(url: str) -> None:
        async with Running(watch(url, tmp_path, listen=("127.0.0.1", port))) as running:
            await reachable(port)
            await running.until_state("up")
            slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
            for _, writer in slow[::2]:
                writer.write(b"GET / HT")
            ends = await asyncio.gather(*(reader.read() for reader, _ in slow), return_exceptions=True)
            assert all(end == b"" or isinstance(end, ConnectionError) for end in ends)
            assert (await get(port))[0] == 200
            with pytest.raises((IndexError, ConnectionError)):
                await get(port, b"x" * 100_000)
            assert (await get(port))[0] == 200
            for _, writer in slow:
                writer.close()

    with serving(Group()) as url:
        asyncio.run(body(url))


def test_an_address_that_is_taken_is_said_and_the_rest_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens_watch, "_LISTEN_AGAIN_S", 0.02)

    async def body(url: str) -> None:
        taken = socket.create_server(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        async with Running(watch(url, tmp_path, listen=("127.0.0.1", port))) as running:
            await running.until_state("up")
            taken.close()
            await reachable(port)

    with serving(Group({0: OK})) as url:
        asyncio.run(body(url))
    [said] = [message for message in caplog.messages if "nothing is served" in message]
    assert "trying on" in said
