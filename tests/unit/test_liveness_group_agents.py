"""The coupled restart with real agents, real processes and real sockets."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from coderack.liveness.group import probe, store, wire
from coderack.liveness.group.model import Phase, Probe, ProbeState, Report, State

from .group_rig import SECRET, Proxy, Rig


def scenario(rig: Rig, steps: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        async with rig.probing(), asyncio.timeout(30):
            await steps()

    asyncio.run(run())


def test_an_engine_that_is_killed_takes_all_with_it_and_all_come_back(tmp_path: Path) -> None:
    rig = Rig(tmp_path)

    async def steps() -> None:
        rig.up()
        await rig.until(lambda: rig.as_one(1))
        before = rig.invocations()
        rig.kill("b")
        await rig.until(lambda: rig.as_one(2))
        assert not set(before) & set(rig.invocations())
        assert any(
            "the engine failed (result signal). All go down, then all start as one" in line for line in rig.lines
        )
        text = (tmp_path / "a" / "group.prom").read_text()
        assert 'coderack_group_restarts_total{reason="engine_failed"} 1' in text
        assert 'coderack_group_state{state="running"} 1' in text

    scenario(rig, steps)


def test_three_members_and_one_whose_agent_was_away_when_its_engine_died(tmp_path: Path) -> None:
    rig = Rig(tmp_path, ("a", "b", "c"))

    async def steps() -> None:
        rig.up()
        await rig.until(lambda: rig.as_one(1))
        await rig.down("c")
        rig.kill("c")
        await rig.until(lambda: rig.phase is Phase.WAITING)
        assert [rig.active("a"), rig.active("b")] == ["inactive", "inactive"]
        rig.up("c")
        await rig.until(lambda: rig.as_one(2))

    scenario(rig, steps)


def test_a_head_agent_killed_in_mid_restart_goes_on_where_it_was(tmp_path: Path) -> None:
    rig = Rig(tmp_path)

    async def steps() -> None:
        rig.up()
        await rig.until(lambda: rig.as_one(1))
        rig.kill("b")
        await rig.until(lambda: rig.phase is not Phase.RUNNING)
        await rig.down("a")
        rig.up("a")
        await rig.until(lambda: rig.as_one(2))
        await rig.down("a")  # and once more under a running group: nothing happens
        before = rig.invocations()
        rig.up("a")
        await rig.until(lambda: rig.as_one(2))
        assert rig.invocations() == before

    scenario(rig, steps)


def test_a_cut_link_stops_both_sides_and_its_return_starts_them_as_one(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.proxied = {"b"}

    async def steps() -> None:
        async with Proxy(rig.port) as link:
            rig.up()
            await rig.until(lambda: rig.as_one(1))
            link.cut = True
            await rig.until(lambda: {rig.active("a"), rig.active("b")} == {"inactive"})
            assert rig.phase in (Phase.STOPPING, Phase.WAITING)
            link.cut = False
            await rig.until(lambda: rig.as_one(2))
            for name in list(rig.agents):
                await rig.down(name)

    scenario(rig, steps)


def test_a_used_up_budget_leaves_everything_stopped_until_a_human_resumes(tmp_path: Path) -> None:
    rig = Rig(tmp_path, restarts=1)

    async def steps() -> None:
        rig.up()
        await rig.until(lambda: rig.as_one(1))  # the first start was one without an order, too
        rig.kill("a")
        await rig.until(lambda: rig.phase is Phase.GIVEN_UP and rig.active("b") == "inactive")
        assert "coderack_group_given_up 1" in (tmp_path / "a" / "group.prom").read_text()
        assert (await command(rig, "start"))["done"] is False
        assert (await command(rig, "resume"))["done"] is True
        await rig.until(lambda: rig.as_one(2))

    scenario(rig, steps)


def test_a_systemctl_that_hangs_does_not_hang_the_agent(tmp_path: Path) -> None:
    rig = Rig(tmp_path)

    async def steps() -> None:
        rig.up()
        await rig.until(lambda: rig.as_one(1))
        (tmp_path / "b" / "hang").touch()
        await rig.until(lambda: any("b: the engine's state is unknown" in line for line in rig.lines))
        heard = rig.running["a"]._heard["b"].at
        await rig.until(lambda: rig.running["a"]._heard["b"].at > heard)  # it still reports
        assert rig.phase is Phase.RUNNING  # tokens come, so nothing is wrong with the engines
        (tmp_path / "b" / "hang").unlink()
        await rig.until(lambda: any("b: over: the engine's state" in line for line in rig.lines))

    scenario(rig, steps)


def test_a_unit_that_systemd_will_not_start_is_named(tmp_path: Path) -> None:
    rig = Rig(tmp_path, restarts=1)
    (tmp_path / "b" / "refuse").touch()

    async def steps() -> None:
        rig.up()
        await rig.until(lambda: rig.phase is Phase.GIVEN_UP)
        assert any("b: systemctl start: Unit vllm.service is masked." in line for line in rig.lines)

    scenario(rig, steps)


async def command(rig: Rig, verb: str) -> wire.JsonObject:
    challenge = (await wire.ask("127.0.0.1", rig.port, "/status", {}, SECRET, 2))["challenge"]
    body = {"verb": verb, "challenge": challenge}
    return await wire.ask("127.0.0.1", rig.port, "/command", body, SECRET, 2)


def test_nobody_without_the_secret_and_no_recording_moves_the_group(tmp_path: Path) -> None:
    rig = Rig(tmp_path)

    async def steps() -> None:
        rig.up()
        await rig.until(lambda: rig.as_one(1))
        with pytest.raises(wire.NotTrusted, match="401"):
            await wire.ask("127.0.0.1", rig.port, "/command", {"verb": "stop"}, b"x" * 32, 2)
        once = {"verb": "stop", "challenge": "0" * 32}
        answer = await wire.ask("127.0.0.1", rig.port, "/command", once, SECRET, 2)
        assert "done" not in answer
        lie = Report("b", "boot", rig.record("b"), None)
        body = {"report": asdict(lie), "challenge": "0" * 32}
        assert (await wire.ask("127.0.0.1", rig.port, "/report", body, SECRET, 2))["taken"] is False
        for verb, text in (("no", "wanted one of"), (["stop"], "wanted one of")):
            answer = await wire.ask("127.0.0.1", rig.port, "/status", {}, SECRET, 2)
            body = {"verb": verb, "challenge": answer["challenge"]}
            assert text in (await wire.ask("127.0.0.1", rig.port, "/command", body, SECRET, 2))["error"]
        assert rig.as_one(1)

    scenario(rig, steps)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\x00\xff" * 100,
        b"GET / HTTP/1.1\r\n\r\n",
        b"POST /report HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999\r\n\r\n" + b"x" * 70000,
        b"POST / HTTP/1.1\r\nHost: x\r\n" + b"A: " + b"b" * 20000,
    ],
)
def test_garbage_costs_the_head_nothing(sent: bytes) -> None:
    async def handler(path: str, body: wire.JsonObject) -> wire.JsonObject:
        return {"path": path}

    async def run() -> None:
        server = await wire.serve("127.0.0.1", 0, SECRET, handler, lambda line: None)
        port = server.sockets[0].getsockname()[1]
        async with server:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            writer.write_eof()
            answer = await reader.read()
            assert answer == b"" or answer.startswith(b"HTTP/1.1 401")
            writer.close()
            assert (await wire.ask("127.0.0.1", port, "/x", {}, SECRET, 2)) == {"path": "/x"}

    asyncio.run(run())


def test_an_answer_of_somebody_who_took_the_port_is_not_believed() -> None:
    async def run() -> None:
        async def rogue(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            body = json.dumps({"order": {"verb": "stop"}, "taken": True}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            writer.close()

        server = await asyncio.start_server(rogue, "127.0.0.1", 0)
        async with server:
            with pytest.raises(wire.NotTrusted, match="signature"):
                await wire.ask("127.0.0.1", server.sockets[0].getsockname()[1], "/report", {}, SECRET, 2)

    asyncio.run(run())


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": "x"}', '{"schema": "coderack.group-state/1"}', "\udcff"])
def test_damaged_notes_are_reported_and_not_believed(tmp_path: Path, text: str) -> None:
    for name in (store.STATE, store.MEMBER):
        (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    state, why = store.load_state(tmp_path, "boot")
    assert state is None
    assert "damaged" in why
    record, why = store.load_record(tmp_path)
    assert record is None
    assert "damaged" in why


def test_a_time_that_no_clock_shows_is_damage(tmp_path: Path) -> None:
    store.save_state(tmp_path, State(), "another boot")
    path = tmp_path / store.STATE
    path.write_text(json.dumps(json.loads(path.read_text()) | {"at": 10**400}))
    state, why = store.load_state(tmp_path, "boot")
    assert state is None
    assert "damaged" in why


PROBE = {"time": 1000.0, "state": "up", "ranks": [{"rank": 0, "last_token": 999.0}, {"rank": 1, "last_token": 996.0}]}


def read_probe(path: Path, before: Probe, stamp: float | None, now: float, wall: float) -> tuple[Probe, float | None]:
    return probe.read(path, before, stamp, 30.0, now, wall)


def test_the_probes_word_is_as_old_as_its_last_change_by_the_readers_own_clock(tmp_path: Path) -> None:
    path = tmp_path / "probe.json"
    path.write_text(json.dumps(PROBE))
    first, stamp = read_probe(path, Probe(), None, 50.0, 1001.0)
    assert (first.state, first.since, first.token_at) == (ProbeState.UP, 50.0, 46.0)
    later, stamp = read_probe(path, first, stamp, 70.0, 9e9)  # the clock was set, the file is 20 s old
    assert (later.state, later.token_at) == (ProbeState.UP, 46.0)
    old, stamp = read_probe(path, later, stamp, 81.0, 1001.0)
    assert (old.state, old.since) == (ProbeState.UNKNOWN, 81.0)
    path.write_text(json.dumps({**PROBE, "time": 5.0, "state": "down"}))  # set back: news all the same
    assert read_probe(path, old, stamp, 82.0, 5.0)[0].state is ProbeState.DOWN


def test_a_file_that_was_old_at_the_first_sight_is_not_believed_until_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "probe.json"
    path.write_text(json.dumps(PROBE))
    first, stamp = read_probe(path, Probe(), None, 50.0, 5000.0)
    again, stamp = read_probe(path, first, stamp, 51.0, 5000.0)
    assert (first.state, again.state) == (ProbeState.UNKNOWN, ProbeState.UNKNOWN)
    path.write_text(json.dumps({**PROBE, "time": 1005.0}))
    assert read_probe(path, again, stamp, 52.0, 5000.0)[0].state is ProbeState.UP


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", '{"time": "x", "state": "up"}', '{"time": 1, "state": "fine"}', '{"time": 1e999}'),
        *('{"time": NaN, "state": "up"}', f'{{"time": {10**400}, "state": "up"}}'),
        *('{"time": 1, "state": "up", "ranks": [1]}', '{"time": 1, "state": "up", "ranks": [{"last_token": "x"}]}'),
    ],
)
def test_a_file_that_is_not_to_be_understood_is_unknown(tmp_path: Path, text: str) -> None:
    (tmp_path / "probe.json").write_text(text)
    assert read_probe(tmp_path / "probe.json", Probe(), None, 50.0, 1.0)[0].state is ProbeState.UNKNOWN


def test_a_rank_that_never_gave_a_token_is_no_rank_that_is_up(tmp_path: Path) -> None:
    (tmp_path / "probe.json").write_text(json.dumps({**PROBE, "ranks": [{"rank": 0, "last_token": None}]}))
    assert read_probe(tmp_path / "probe.json", Probe(), None, 50.0, 1000.0)[0].token_at == float("-inf")


def test_a_head_whose_port_is_taken_says_so(tmp_path: Path) -> None:
    rig = Rig(tmp_path)

    async def run() -> None:
        async with await asyncio.start_server(lambda *_: None, "127.0.0.1", rig.port):
            rig.up("a")
            with pytest.raises(OSError, match="address already in use"):
                await rig.agents["a"]

    asyncio.run(run())
