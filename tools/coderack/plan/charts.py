"""Geometry of the page's charts: where axes, bars and curves lie. Pure arithmetic; the template draws them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

# One unit is one CSS pixel at full width. Room for labels on the left and below.
WIDTH, HEIGHT = 560, 320
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 14, 46


@dataclass(frozen=True)
class Tick:
    at: float
    label: str


@dataclass(frozen=True)
class Mark:
    """One value of a curve; `waiting` where some requests wait for room in the cache."""

    x: float
    y: float
    waiting: bool


@dataclass(frozen=True)
class Curve:
    name: str
    path: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True)
class Chart:
    """Curves over concurrency. `rows` is the same as text: a concurrency and one value per curve."""

    id: str
    title: str
    description: str
    unit: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    curves: tuple[Curve, ...]
    rows: tuple[tuple[str, ...], ...]


def chart(
    identifier: str,
    title: str,
    unit: str,
    concurrencies: Sequence[int],
    series: Sequence[tuple[str, Sequence[float], Sequence[bool]]],
    *,
    logarithmic: bool = False,
) -> Chart:
    """Lay out curves over `concurrencies` (logarithmic axis). Each series has a name, values, and where some wait."""
    values = [value for _, some, _ in series for value in some]
    steps = _decades(min(values), max(values)) if logarithmic else _linear(max(values))
    low, high = steps[0], steps[-1]

    def at_x(concurrency: int) -> float:
        first, last = math.log2(concurrencies[0]), math.log2(concurrencies[-1])
        share = (math.log2(concurrency) - first) / (last - first) if last > first else 0.5
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def at_y(value: float) -> float:
        share = math.log(value / low) / math.log(high / low) if logarithmic else (value - low) / (high - low)
        return round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 1)

    curves = []
    for name, some, waits in series:
        marks = tuple(
            Mark(at_x(one), at_y(value), wait) for one, value, wait in zip(concurrencies, some, waits, strict=True)
        )
        curves.append(Curve(name, " ".join(f"{mark.x},{mark.y}" for mark in marks), marks))
    return Chart(
        id=identifier,
        title=title,
        description=_description(title, unit, concurrencies, series),
        unit=unit + (", logarithmic" if logarithmic else ""),
        x_ticks=tuple(Tick(at_x(one), str(one)) for one in concurrencies),
        y_ticks=tuple(Tick(at_y(step), short(step)) for step in steps),
        curves=tuple(curves),
        rows=tuple(
            (str(one), *(short(some[place]) + (" (some wait)" if waits[place] else "") for _, some, waits in series))
            for place, one in enumerate(concurrencies)
        ),
    )


def _description(
    title: str, unit: str, concurrencies: Sequence[int], series: Sequence[tuple[str, Sequence[float], Sequence[bool]]]
) -> str:
    ends = "; ".join(f"{name} from {short(some[0])} to {short(some[-1])}" for name, some, _ in series)
    return f"{title} in {unit}, from {concurrencies[0]} to {concurrencies[-1]} requests at a time: {ends}."


def _linear(most: float) -> list[float]:
    """Steps of 1, 2 or 5 from zero to above `most`, about five of them."""
    raw = most / 5
    unit = 10.0 ** math.floor(math.log10(raw))
    size = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= raw)
    return [size * number for number in range(math.ceil(most / size) + 1)]


def _decades(least: float, most: float) -> list[float]:
    """1, 2, 5, 10, ... from below `least` to above `most`."""
    steps = [factor * 10.0**power for power in range(-6, 12) for factor in (1, 2, 5)]
    first = max(place for place, step in enumerate(steps) if step <= least)
    last = min(place for place, step in enumerate(steps) if step >= most)
    return steps[first : max(last, first + 1) + 1]


def short(value: float) -> str:
    """At most three digits that mean something: 0.28, 6.7, 120, 1,030."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    rounded = f"{value:,.{digits}f}"
    return rounded.rstrip("0").rstrip(".") if "." in rounded else f"{value:,.0f}"


@dataclass(frozen=True)
class Segment:
    """A piece of a bar, in percent of the widest; `kind` picks the colour."""

    kind: str
    label: str
    gib: float
    left: float
    width: float


@dataclass(frozen=True)
class Bar:
    """One GPU's memory. `over` is how many GiB are missing where it does not fit."""

    name: str
    note: str
    fits: bool
    segments: tuple[Segment, ...]


def bar(name: str, note: str, parts: Sequence[tuple[str, str, float]], scale_gib: float, *, fits: bool) -> Bar:
    """A stacked bar of parts (kind, label, GiB), in which `scale_gib` is the whole width."""
    segments, left = [], 0.0
    for kind, label, gib in parts:
        segments.append(Segment(kind, label, gib, round(left, 3), round(gib / scale_gib * 100, 3)))
        left += gib / scale_gib * 100
    return Bar(name, note, fits, tuple(segments))
