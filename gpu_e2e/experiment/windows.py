"""Windows with a publication and equal ones without, interleaved, so that gaps and latencies become ratios (RFC 7.3).

Times are seconds from the start of the run, measures are ms.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

from attrs import frozen

from lorafsm.errors import InvalidField

Kind: TypeAlias = Literal["publishing", "quiet"]
Sample: TypeAlias = tuple[float, float]
"""(when it ended, its length in ms)."""

LARGEST_UNEQUAL = 0.25
"""Total lengths of both kinds may differ by this share; more would compare unequal chances of a long gap."""


@frozen
class Window:
    """From begin to commit (publishing), or as long a time without a publication (quiet)."""

    kind: Kind
    start: float
    end: float


def percentiles(values: Iterable[float]) -> dict[str, float | int] | None:
    """p50, p95, p99 (nearest rank), max and count; None where nothing was measured: that is no zero."""
    ordered = sorted(values)
    if not ordered:
        return None

    def rank(share: float) -> float:
        return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)], 3)

    shares = {"p50": rank(0.5), "p95": rank(0.95), "p99": rank(0.99)}
    return {**shares, "max": round(ordered[-1], 3), "count": len(ordered)}


def inside(samples: Iterable[Sample], windows: Iterable[Window], kind: Kind) -> list[float]:
    """Lengths of those samples that overlap a window of this kind: a gap that outlasts its window counts in it."""
    spans = [(window.start, window.end) for window in windows if window.kind == kind]
    return [ms for at, ms in samples if any(at >= start and at - ms / 1000 <= end for start, end in spans)]


def check_interleaved(windows: Sequence[Window]) -> None:
    """Refuse windows that cannot be compared: they alternate, do not overlap, and are as long in total."""
    kinds = [window.kind for window in windows]
    if any(a == b for a, b in itertools.pairwise(kinds)) or len(set(kinds)) < 2:
        raise InvalidField("windows", "must alternate between publishing and quiet, with both kinds")
    if any(w.end <= w.start for w in windows) or any(a.end > b.start for a, b in itertools.pairwise(windows)):
        raise InvalidField("windows", "must be in order, must not overlap, and each must last")
    total = {kind: sum(w.end - w.start for w in windows if w.kind == kind) for kind in ("publishing", "quiet")}
    if abs(total["publishing"] - total["quiet"]) > LARGEST_UNEQUAL * max(total.values()):
        raise InvalidField("windows", f"last {total} s in total: not equal enough to compare")


def compared(samples: Sequence[Sample], windows: Sequence[Window]) -> dict[str, object]:
    """Both kinds' percentiles and `p99_ratio`, `max_ratio` (publishing / quiet; None where a kind has no sample)."""
    kinds: tuple[Kind, ...] = ("publishing", "quiet")
    found: dict[str, dict[str, float | int] | None] = {
        kind: percentiles(inside(samples, windows, kind)) for kind in kinds
    }
    with_, without = found["publishing"], found["quiet"]

    def ratio(key: str) -> float | None:
        return round(with_[key] / without[key], 4) if with_ and without and without[key] > 0 else None

    return {**found, "p99_ratio": ratio("p99"), "max_ratio": ratio("max")}


def no_progress(
    arrivals: Mapping[str, Sequence[float]], busy: Mapping[str, Sequence[tuple[float, float]]]
) -> dict[str, float]:
    """For each engine the longest time, in ms, with a request in flight and no token of any request.

    `arrivals` are the times of tokens, `busy` the spans of requests, by engine; spans may overlap.
    """
    return {
        engine: max((_longest(start, end, arrivals.get(engine, ())) for start, end in _joined(spans)), default=0.0)
        for engine, spans in busy.items()
    }


def _joined(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    joined: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def _longest(start: float, end: float, arrivals: Sequence[float]) -> float:
    moments = [start, *sorted(t for t in arrivals if start < t < end), end]
    return round(max(b - a for a, b in itertools.pairwise(moments)) * 1000, 3)
