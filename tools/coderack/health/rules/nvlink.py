"""NVLinks, each one: state, speed, other end, error counters over time, and whether all pairs of GPUs are reached."""

from collections import Counter
from collections.abc import Iterator

from coderack.health.findings import Action, Finding, Severity, Subject
from coderack.health.readings import NOT_SUPPORTED, Answer, Probe
from coderack.health.rules.common import Case, confirmed, finding, numbers, unknown

_UP = (1, 2)  # active, and asleep to save power
_REMOTE = {0: "gpu", 1: "ibmnpu", 2: "switch"}
_P2P = {
    0: "OK",
    1: "chipset not supported",
    2: "GPU not supported",
    3: "topology not supported",
    4: "disabled by a driver option",
    5: "not supported",
    6: "unknown",
}


def judge(case: Case) -> Iterator[Finding]:
    for index, probe, gpu in case.judged_gpus():
        if case.wanted.nvlink.links:
            yield from _gpu(case, index, probe, gpu)
    yield from _pairs(case)


def _gpu(case: Case, index: int, probe: Probe, gpu: Subject) -> Iterator[Finding]:
    wanted = case.wanted.nvlink
    total = wanted.links + len(wanted.inactive)
    there = probe.integer("links")
    if there is None:
        yield unknown("nvlink-unknown", gpu, "number of NVLinks", probe["links"], total)
        return
    if there == 0:
        yield finding("nvlink-absent", gpu, "NVLink: not supported", f"{wanted.links} active links")
        return
    if there != total:
        yield finding("nvlink-count", gpu, f"{there} NVLinks", total)
        return
    links = [link for link in range(there) if link not in wanted.inactive]
    up = [link for link in links if probe[f"link.{link}.state"].value in _UP]
    yield from _states(case, probe, gpu, links, up)
    for link in up:
        yield from _speed(case, probe, index, link)
        yield from _remote(case, probe, index, link)
        yield from _errors(case, probe, index, link)
    yield from _unreadable_counters(probe, gpu, up)
    if len(up) == len(links):
        yield from _pattern(case, probe, gpu, up)


def _states(case: Case, probe: Probe, gpu: Subject, links: list[int], up: list[int]) -> Iterator[Finding]:
    unread = [link for link in links if probe[f"link.{link}.state"].error not in (None, NOT_SUPPORTED)]
    down = [link for link in links if link not in up and link not in unread]
    if unread:
        errors = sorted({str(probe[f"link.{link}.state"].error) for link in unread})
        yield finding("nvlink-unknown", gpu, f"links {numbers(unread)}: {', '.join(errors)}", "state readable")
    if not down:
        return
    kind = "nvlink-all-down" if len(down) == len(links) else "nvlink-down"
    seen = f"{len(down)} of {len(links)} links down: {numbers(down)}"
    yield confirmed(case, finding(kind, gpu, seen, f"all {len(links)} active"))


def _speed(case: Case, probe: Probe, index: int, link: int) -> Iterator[Finding]:
    wanted = case.wanted.nvlink.speed_mbps
    answer = probe[f"link.{link}.speed"]
    if wanted is None:
        return
    if answer.error is not None:
        yield unknown("nvlink-speed", case.link(index, link), "speed", answer, f"{wanted} MB/s")
    elif answer.value != wanted:
        yield finding("nvlink-speed", case.link(index, link), f"{answer.value} MB/s", f"{wanted} MB/s")


def _remote(case: Case, probe: Probe, index: int, link: int) -> Iterator[Finding]:
    wanted = case.wanted.nvlink.remote
    answer = probe[f"link.{link}.remote"]
    if wanted == "any":
        return
    if answer.error is not None:
        yield unknown("nvlink-remote", case.link(index, link), "other end", answer, wanted)
    elif (seen := _REMOTE.get(int(answer.value or 0), "unknown")) != wanted:
        yield finding("nvlink-remote", case.link(index, link), f"other end: {seen}", wanted)


def _pattern(case: Case, probe: Probe, gpu: Subject, links: list[int]) -> Iterator[Finding]:
    wanted = list(case.wanted.nvlink.per_switch)
    if not wanted:
        return
    peers = [probe[f"link.{link}.peer"] for link in links]
    if failed := next((peer for peer in peers if peer.error is not None), None):
        yield unknown("nvlink-pattern", gpu, "bus id of the other end", failed, f"{wanted} links per switch")
        return
    seen = sorted(Counter(peer.value for peer in peers).values())
    if seen != wanted:
        yield finding("nvlink-pattern", gpu, f"{seen} links per switch", wanted)


def _errors(case: Case, probe: Probe, index: int, link: int) -> Iterator[Finding]:
    key = f"{probe.text('uuid')}/link{link}"
    yield from _recovery(case, key, case.link(index, link))
    yield from _replay(case, key, case.link(index, link))
    yield from _crc(case, key, case.link(index, link))
    yield from _windows(case, key, case.link(index, link))


def _recovery(case: Case, key: str, subject: Subject) -> Iterator[Finding]:
    limits, history = case.wanted.limits, case.history
    found = history.increase(f"{key}/recovery", case.window)
    if found is not None and found[0] > 0:
        per_minute = found[0] / max(found[1], 60) * 60
        seen = f"{found[0]:.0f} recoveries in {found[1]:.0f} s"
        limit = limits.nvlink_recovery_per_minute
        if per_minute >= limit:
            yield finding("nvlink-recovery", subject, seen, f"under {limit:g}/min", Severity.CRITICAL, Action.DRAIN)
        else:
            yield finding("nvlink-recovery", subject, seen, "none")
    days = history.days_with_increase(f"{key}/recovery")
    if len(days) >= limits.nvlink_trend_days:
        seen = f"recoveries on {len(days)} days: {', '.join(days)}"
        yield finding("nvlink-recovery-trend", subject, seen, f"on fewer than {limits.nvlink_trend_days} of 14 days")


def _replay(case: Case, key: str, subject: Subject) -> Iterator[Finding]:
    limit = case.wanted.limits.nvlink_replay_per_minute
    rate = case.history.per_second(f"{key}/replay", case.window)
    if rate is not None and rate * 60 >= limit:
        yield finding("nvlink-replay", subject, f"{rate * 60:.1f} replays/min", f"under {limit:g}/min")


def _crc(case: Case, key: str, subject: Subject) -> Iterator[Finding]:
    limits = case.wanted.limits
    rate = case.history.per_second(f"{key}/crc", case.window)
    if rate is None:
        return
    if rate >= limits.nvlink_crc_per_second:
        wanted = f"under {limits.nvlink_crc_per_second:g}/s"
        yield finding("nvlink-crc", subject, f"{rate:.0f} CRC errors/s", wanted, Severity.CRITICAL, Action.DRAIN)
    elif rate * 60 >= limits.nvlink_crc_per_minute:
        yield finding(
            "nvlink-crc", subject, f"{rate * 60:.1f} CRC errors/min", f"under {limits.nvlink_crc_per_minute:g}/min"
        )


def _windows(case: Case, key: str, subject: Subject) -> Iterator[Finding]:
    windows = case.wanted.limits.nvlink_windows
    for counter in ("recovery", "replay", "crc"):
        bad = case.history.windows_with_increase(f"{key}/{counter}", windows)
        if bad > windows // 2:
            yield finding(
                "nvlink-flapping",
                subject,
                f"{counter} errors in {bad} of the last {windows} passes",
                f"in at most {windows // 2}",
            )
            return


def _unreadable_counters(probe: Probe, gpu: Subject, links: list[int]) -> Iterator[Finding]:
    for counter in ("recovery", "replay", "crc"):
        failed = [link for link in links if probe[f"link.{link}.{counter}"].error is not None]
        if failed:
            error = probe[f"link.{failed[0]}.{counter}"].error
            yield finding("nvlink-counters", gpu, f"{counter} of links {numbers(failed)}: {error}", "readable")
            return


def _pairs(case: Case) -> Iterator[Finding]:
    pairs = case.readings.pairs
    if not case.wanted.nvlink.peer_to_peer or not pairs.complete or pairs["init"].error is not None:
        return
    bad: dict[int, list[str]] = {}
    for key, answer in pairs.answers.items():
        one, _, other = key.partition(".")
        if other and answer.value != 0:
            bad.setdefault(int(one), []).append(f"GPU {other}: {_status(answer)}")
    # A GPU that reaches nobody shows up on all others, too: name it once.
    for index in sorted(bad, key=lambda index: -len(bad[index])):
        if bad[index] and index < len(case.readings.gpus):
            yield from _pair(case, index, bad[index])
            for rest in bad.values():
                rest[:] = [text for text in rest if not text.startswith(f"GPU {index}:")]


def _status(answer: Answer) -> str:
    return f"no value ({answer.error})" if answer.error else _P2P.get(int(answer.value or 0), str(answer.value))


def _pair(case: Case, one: int, others: list[str]) -> Iterator[Finding]:
    errors = all("no value" in text for text in others)
    severity = Severity.UNKNOWN if errors else None
    yield finding("peer-to-peer", case.gpu(one), "; ".join(others), "OK over NVLink to every GPU", severity)
