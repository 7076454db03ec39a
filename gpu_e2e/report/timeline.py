"""The timeline: versions with their states, sessions with their turns, and what each engine did, on one time axis."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from xml.etree.ElementTree import Element

from gpu_e2e.report.figures import colours, is_number, items, publications, seconds, spans
from gpu_e2e.report.svg import Linear, add, canvas, markup

STATES = ("LOADING", "PUBLISHED", "RETIRED", "RECLAIMING", "RECLAIMED", "ABORTED", "FAILED_CLEAN")

_WIDTH, _LEFT, _RIGHT, _TOP = 1120.0, 96.0, 12.0, 46.0
_ORDERS = ("load", "probe", "unload")  # those with a look of their own
_NO = re.compile("fail|refus|unknown|error", re.IGNORECASE)  # outcomes that are not a yes
_TOO_SHORT = 0.1  # share of the whole time below which a publication has a picture of its own
_BOLD = 6.8
_LETTER = 6.1  # width of a small letter, for labels that must fit


class _Drawing:
    """Rows are drawn from top to bottom; the height is known at the end, the grid is laid under them then."""

    def __init__(self, report: Mapping[str, Any], first: float, last: float) -> None:
        self.report = report
        self.colour = colours(report)
        moments = _moments(report)
        self.close = first > min(moments) or last < max(moments)
        self.x = Linear(first, last, _LEFT, _WIDTH - _RIGHT)
        self.y = _TOP
        self.svg = canvas(_WIDTH, 0, "Timeline of versions, sessions and engine operations", "timeline")
        self.under = add(self.svg, "g")

    def heading(self, text: str) -> None:
        self.y += 14
        add(self.svg, "text", "section", text=text, x=0, y=self.y + 8)
        add(self.svg, "line", "rule", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=self.y + 4, y2=self.y + 4)
        self.y += 18

    def bar(
        self,
        span: Mapping[str, Any],
        height: float,
        css: str,
        tip: str,
        *,
        at: float = 0,
        labels: tuple[str, ...] = (),
        least: float = 1.5,
        radius: float = 2,
    ) -> None:
        """One bar of the current row, with the first label that fits."""
        start, end = self.x(span["start"]), self.x(span["end"])
        width = max(least, end - start)
        top = self.y + at
        add(self.svg, "rect", css, tip, x=start, y=top, width=width, height=height, rx=radius)
        label = next((text for text in labels if width > len(text) * _LETTER + 6), "")
        if label:
            kind = "in " + " ".join(c for c in css.split() if c.startswith("s-") or c in ("unload", "probe"))
            add(self.svg, "text", kind, text=label, x=start + width / 2, y=top + height / 2 + 3.3, text_anchor="middle")

    def seen(self, records: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Those that have a time within the picture; bars that reach out of it are cut at its edges."""
        return [r for r in spans(records) if r["end"] >= self.x.low and r["start"] <= self.x.high]

    def of(self, version: object) -> str:
        return self.colour.get(str(version), "vb")


def timeline(report: Mapping[str, Any]) -> str:
    """The SVG, or an empty text when the report has nothing with a time."""
    moments = _moments(report)
    if not moments:
        return ""
    first, last = min(moments), max(moments)
    margin = (last - first or 1.0) * 0.008
    return _drawn(_Drawing(report, max(0.0, first - margin), last + margin))


def close_ups(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(title, SVG) of each publication that is too short to be read on the whole timeline."""
    moments = _moments(report)
    pictures = []
    for name, start, end in publications(report):
        length = end - start
        if 0 < length < _TOO_SHORT * (max(moments) - min(moments)):
            drawing = _Drawing(report, max(0.0, start - length * 0.25), end + length * 0.25)
            pictures.append((f"{name}: {seconds(length)} from reserve to its end", _drawn(drawing)))
    return pictures


def _drawn(d: _Drawing) -> str:
    _versions(d)
    _sessions(d)
    _engines(d)
    _grid(d)
    d.svg.set("viewBox", f"0 0 {_WIDTH:.0f} {d.y + 30:.0f}")
    return markup(d.svg)


def _moments(report: Mapping[str, Any]) -> list[float]:
    timed = [*spans(items(report, "session_spans")), *spans(items(report, "operations"))]
    for version in items(report, "versions"):
        timed += spans(items(version, "spans"))
    return [t for span in timed for t in (span["start"], span["end"])]


def _versions(d: _Drawing) -> None:
    versions = [(v, shown) for v in items(d.report, "versions") if (shown := d.seen(items(v, "spans")))]
    if not versions:
        return
    d.heading("versions")
    for version, shown in versions:
        name = str(version.get("name", "?"))
        add(d.svg, "rect", f"chip {d.of(name)}", x=_LEFT - 34, y=d.y, width=22, height=20, rx=4)
        add(d.svg, "text", "letter", text=name[:2], x=_LEFT - 23, y=d.y + 14, text_anchor="middle")
        add(
            d.svg,
            "text",
            "faint",
            text=f"version {str(version.get('key', '')).rpartition('-')[2]}"[:10],
            x=0,
            y=d.y + 14,
        )
        for span in shown:
            state = str(span.get("state", "?"))
            css = f"s-{state}" if state in STATES else "s-other"
            tip = f"{name} {state}: {_when(span)}\n{version.get('lora_name', '')}"
            d.bar(span, 20, css, tip, labels=(state.replace("_", " ").lower(),), radius=3)
        d.y += 26


def _sessions(d: _Drawing) -> None:
    sessions = d.seen(items(d.report, "session_spans"))
    if d.close:  # there is room for those that do something
        sessions = [s for s in sessions if d.seen(items(s, "turns"))]
    if not sessions:
        return
    d.heading("sessions")
    for session in sorted(sessions, key=lambda s: (s["start"], str(s.get("name")))):
        name, version = str(session.get("name", "?")), session.get("version")
        css = d.of(version)
        add(d.svg, "text", "name", text=name[:12], x=0, y=d.y + 10)
        add(d.svg, "text", f"mark {css}", text=str(version)[:2], x=_LEFT - 23, y=d.y + 10, text_anchor="middle")
        d.bar(session, 5, f"{css} rail", f"{name} is bound to {version}: {_when(session)}", at=4)
        shown = d.seen(items(session, "turns"))
        for index, turn in enumerate(spans(items(session, "turns")), 1):
            if turn not in shown:
                continue
            tip = f"{name} on {version}, turn {index} on {turn.get('engine', '?')}: {_when(turn)}"
            tip += f"\n{turn.get('cached_tokens', '–')} cached, {turn.get('output_tokens', '–')} output tokens"
            d.bar(turn, 11, css, tip, at=1)
        d.y += 16


def _engines(d: _Drawing) -> None:
    operations = d.seen([*items(d.report, "operations"), *_turns(d.report)])
    for engine in sorted({str(o.get("engine", "?")) for o in operations}):
        d.heading(f"engine {engine}")
        own = sorted((o for o in operations if str(o.get("engine", "?")) == engine), key=lambda o: o["start"])
        control = [o for o in own if o.get("op") != "generate"]
        generate = [o for o in own if o.get("op") == "generate"]
        add(d.svg, "text", "name", text="orders", x=0, y=d.y + 12)
        for row in _packed(control):
            for o in row:
                failed = _failed(o)
                kind = str(o.get("op")) if o.get("op") in _ORDERS else ""
                css = f"{d.of(o.get('version'))} order {kind}" + (" failed" if failed else "")
                tip = f"{o.get('op')} {o.get('version') or 'base'} on {engine}: {_when(o)}, {o.get('outcome', 'OK')}"
                d.bar(o, 16, css, tip, labels=_order_labels(o), radius=3)
            d.y += 19
        if generate:
            d.y += 3
            add(d.svg, "text", "name", text="generate", x=0, y=d.y + 6)
        for row in _packed(generate):
            for o in row:
                failed = _failed(o)
                tip = f"generate {o.get('version') or 'base'} on {engine}: {_when(o)}, {o.get('outcome', 'OK')}"
                d.bar(o, 6, d.of(o.get("version")) + (" failed" if failed else ""), tip, radius=1.5)
            d.y += 8


def _turns(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The sessions' turns as operations of their engines, for a report that does not list them as such."""
    if any(o.get("op") == "generate" for o in items(report, "operations")):
        return []
    return [
        {**turn, "op": "generate", "version": session.get("version")}
        for session in items(report, "session_spans")
        for turn in spans(items(session, "turns"))
    ]


def _failed(operation: Mapping[str, Any]) -> bool:
    return _NO.search(str(operation.get("outcome", ""))) is not None


def _order_labels(order: Mapping[str, Any]) -> tuple[str, ...]:
    op = str(order.get("op", "?"))
    return f"{op} {order.get('version') or 'base'}", op, op[:1].upper()


def _packed(operations: list[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Rows in which nothing overlaps, each operation in the first row that is free."""
    rows: list[list[Mapping[str, Any]]] = []
    for operation in operations:
        row = next((r for r in rows if r[-1]["end"] <= operation["start"]), None)
        if row is None:
            rows.append(row := [])
        row.append(operation)
    return rows


def _grid(d: _Drawing) -> None:
    bottom = d.y + 8
    for _, start, end in publications(d.report):
        if end < d.x.low or start > d.x.high:
            continue
        left, right = d.x(start), d.x(end)
        add(d.under, "rect", "window", x=left, y=_TOP, width=right - left, height=bottom - _TOP)
    for tick in d.x.ticks(12):
        add(d.under, "line", "grid", x1=d.x(tick), x2=d.x(tick), y1=_TOP, y2=bottom)
        add(d.under, "text", "tick", text=f"{tick:g} s", x=d.x(tick), y=bottom + 15, text_anchor="middle")
    _marks(d, bottom)


def _marks(d: _Drawing, bottom: float) -> None:
    """What happened at one moment: commits as lines through all rows, refusals as marks above them."""
    free = 0.0
    for moment, name in sorted(_commits(d.report)):
        if not d.x.low <= moment <= d.x.high:
            continue
        x = d.x(moment)
        add(d.svg, "line", f"commit {d.of(name)}", x1=x, x2=x, y1=_TOP - 8, y2=bottom)
        label = f"commit {name}"
        half = len(label) * _BOLD / 2
        place = max(x, free + half + 7)
        add(d.svg, "text", f"mark {d.of(name)}", text=label, x=place, y=_TOP - 14, text_anchor="middle")
        free = place + half
    for refusal in items(d.report, "refusals"):
        if is_number(refusal.get("t")) and d.x.low <= refusal["t"] <= d.x.high:
            tip = f"{refusal.get('event')} refused at {refusal['t']:.1f} s: {refusal.get('code')}"
            _cross(d.svg, d.x(refusal["t"]), _TOP - 2, tip)


def _cross(svg: Element, x: float, y: float, tip: str) -> None:
    r = 3.2
    mark = add(svg, "g", "refusal", tip)
    add(mark, "circle", "hit", cx=x, cy=y, r=7)
    add(mark, "path", d=f"M{x - r:.1f},{y - r:.1f}l{2 * r:.1f},{2 * r:.1f}m0,{-2 * r:.1f}l{-2 * r:.1f},{2 * r:.1f}")


def _commits(report: Mapping[str, Any]) -> list[tuple[float, str]]:
    return [
        (span["start"], str(version.get("name", "?")))
        for version in items(report, "versions")
        for span in spans(items(version, "spans"))
        if span.get("state") == "PUBLISHED"
    ]


def _when(span: Mapping[str, Any]) -> str:
    return f"{span['start']:.1f} to {span['end']:.1f} s ({seconds(span['end'] - span['start'])})"
