"""Token gaps: the time between two tokens of a stream, while a version is being published and while none is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from xml.etree.ElementTree import Element

from gpu_e2e.report.figures import is_number, part, publications
from gpu_e2e.report.svg import Linear, Log, add, canvas, markup

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 552.0, 250.0, 44.0, 34.0
_MOST_DOTS = 4000
_KINDS = ("quiet", "publishing")  # drawn in this order

Sample = tuple[float, float]


def samples(report: Mapping[str, Any]) -> dict[str, list[Sample]]:
    """(t in s, gap in ms) of each kind: publishing when t lies in a publication window."""
    windows = publications(report)
    found: dict[str, list[Sample]] = {kind: [] for kind in _KINDS}
    listed = part(report, "token_gaps").get("samples")
    for sample in listed if isinstance(listed, list) else ():
        if isinstance(sample, (list, tuple)) and len(sample) == 2 and all(map(is_number, sample)):
            inside = any(start <= sample[0] <= end for _, start, end in windows)
            found["publishing" if inside else "quiet"].append((sample[0], max(0.01, sample[1])))
    return found


def distribution(report: Mapping[str, Any]) -> str:
    """The share of gaps below a length, one curve a kind; empty without samples."""
    found = samples(report)
    x = _gap_scale(found, _LEFT, _WIDTH - 14)
    if x is None:
        return ""
    y = Linear(0, 1, _HEIGHT - _BOTTOM, 14)
    svg = canvas(_WIDTH, _HEIGHT, "Distribution of token gaps", "chart")
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        _row(svg, y(share), f"{share:.0%}")
    for tick in x.ticks():
        add(svg, "line", "grid", x1=x(tick), x2=x(tick), y1=14, y2=_HEIGHT - _BOTTOM)
        add(svg, "text", "tick", text=f"{tick:g}", x=x(tick), y=_HEIGHT - _BOTTOM + 15, text_anchor="middle")
    add(svg, "text", "tick", text="gap, ms", x=_WIDTH - 14, y=_HEIGHT - 4, text_anchor="end")
    for kind in _KINDS:
        ordered = sorted(gap for _, gap in found[kind])
        if ordered:
            step = max(1, len(ordered) // 400)
            kept = [*range(0, len(ordered), step), len(ordered) - 1]
            places = [f"{x(ordered[i]):.1f},{y((i + 1) / len(ordered)):.1f}" for i in kept]
            add(svg, "polyline", f"curve {kind}", f"{kind}: {len(ordered)} gaps", points=" ".join(places))
    return markup(svg)


def over_time(report: Mapping[str, Any]) -> str:
    """Every gap when it happened, publications shaded; empty without samples."""
    found = samples(report)
    y = _gap_scale(found, _HEIGHT - _BOTTOM, 14)
    if y is None:
        return ""
    times = [t for kind in found.values() for t, _ in kind]
    x = Linear(min(times), max(times), _LEFT, _WIDTH - 14)
    svg = canvas(_WIDTH, _HEIGHT, "Token gaps over time", "chart")
    for _, start, end in publications(report):
        if end > x.low and start < x.high:
            add(svg, "rect", "window", x=x(start), y=14, width=x(end) - x(start), height=_HEIGHT - _BOTTOM - 14)
    for tick in y.ticks():
        _row(svg, y(tick), f"{tick:g}")
    for tick in x.ticks(7):
        add(svg, "text", "tick", text=f"{tick:g} s", x=x(tick), y=_HEIGHT - _BOTTOM + 15, text_anchor="middle")
    add(svg, "text", "tick", text="gap, ms", x=0, y=9)
    for kind in _KINDS:
        step = max(1, len(found[kind]) // _MOST_DOTS)
        dots = "".join(f"M{x(t):.1f},{y(gap):.1f}h0" for t, gap in found[kind][::step])
        if dots:
            add(svg, "path", f"dots {kind}", d=dots)
    return markup(svg)


def _gap_scale(found: Mapping[str, list[Sample]], start: float, end: float) -> Log | None:
    gaps = [gap for kind in found.values() for _, gap in kind]
    return Log(min(gaps) * 0.9, max(gaps) * 1.1, start, end) if gaps else None


def _row(svg: Element, y: float, label: str) -> None:
    add(svg, "line", "grid", x1=_LEFT, x2=_WIDTH - 14, y1=y, y2=y)
    add(svg, "text", "tick", text=label, x=_LEFT - 7, y=y + 3.5, text_anchor="end")
