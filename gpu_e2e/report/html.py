"""report.html: one file that needs nothing else, for a person to read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from attrs import frozen
from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from gpu_e2e.report import gaps
from gpu_e2e.report.figures import colours, is_number, items, number, part, seconds, shown
from gpu_e2e.report.svg import clean
from gpu_e2e.report.timeline import STATES, close_ups, timeline

_GAP_KEYS = ("p50", "p95", "p99", "max")


@frozen
class Figure:
    """A key figure: the number, what it is, and whether it is as wanted (None: there is nothing to want)."""

    value: str
    label: str
    good: bool | None = None


def render(report: Mapping[str, Any]) -> str:
    """The page of a report; keys that the report lacks leave their part of the page out."""
    colour = colours(report)
    return _template().render(
        report=report,
        style=Markup(_resource("style.css")),  # noqa: S704 - our own file
        verdict=verdict(report),
        story=story(report),
        figures=[*key_figures(report)],
        # The pictures are built as trees and escaped when written out.
        timeline=Markup(timeline(report)),  # noqa: S704
        close_ups=[(title, Markup(svg)) for title, svg in close_ups(report)],  # noqa: S704
        distribution=Markup(gaps.distribution(report)),  # noqa: S704
        over_time=Markup(gaps.over_time(report)),  # noqa: S704
        gap_rows=_gap_rows(report),
        states=STATES,
        colour=colour,
        expectations=items(report, "expectations"),
        refusals=sorted(items(report, "refusals"), key=lambda r: r["t"] if is_number(r.get("t")) else 0.0),
        kv=_kv_rows(report),
        phases=_phase_table(report),
        calls=_call_table(report),
        engines=items(report, "engines"),
        separation=_separation(report),
        versions=items(report, "versions"),
        environment=part(report, "environment"),
    )


def verdict(report: Mapping[str, Any]) -> str:
    """One sentence: did everything hold?"""
    expected = items(report, "expectations")
    failed = sum(not item.get("ok") for item in expected)
    if failed:
        return f"{failed} of {len(expected)} expectations failed"
    if not report.get("ok"):
        return "The run did not end well"
    return f"All {len(expected)} expectations held"


def story(report: Mapping[str, Any]) -> str:
    """What the run did, counted from the report."""
    ends = Counter(
        "published" if any(s.get("state") == "PUBLISHED" for s in items(v, "spans")) else "given up"
        for v in items(report, "versions")
    )
    made = _counted(ends["published"], "version") + " published"
    if ends["given up"]:
        made += f" and {ends['given up']} given up"
    engines = _counted(len(items(report, "engines")), "SGLang engine")
    sessions = _counted(len(part(report, "sessions")), "session")
    return f"{made} on {engines}, while {sessions} generated."


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def key_figures(report: Mapping[str, Any]) -> Iterable[Figure]:
    """What one wants to know first."""
    expected = items(report, "expectations")
    held = sum(bool(item.get("ok")) for item in expected)
    yield Figure(f"{held}/{len(expected)}", "expectations held", held == len(expected) and bool(expected))
    failures = report.get("request_failures")
    yield Figure(number(report.get("requests")), f"requests, {number(failures)} failed", failures == 0)
    sessions = part(report, "sessions")
    bound = len({*map(str, sessions.values())})
    yield Figure(number(len(sessions)), f"sessions, bound to {bound} versions")
    yield Figure(number(report.get("max_managed_versions")), "managed versions on an engine, at most")
    yield Figure(
        number(report.get("pause_calls")), "calls of pause, flush or abort_all", report.get("pause_calls") == 0
    )
    reclaim = part(report, "reclaim")
    flight = number(reclaim.get("in_flight_at_claim"))
    yield Figure(seconds(reclaim.get("drain_s")), f"reclaim waited for {flight} request(s) in flight")
    token_gaps = part(report, "token_gaps")
    if token_gaps:
        quiet = number(part(token_gaps, "quiet").get("p50"), "ms")
        yield Figure(
            number(part(token_gaps, "publishing").get("p50"), "ms"),
            f"median token gap while publishing; else {quiet}",
        )
    yield Figure(number(report.get("journal_events")), "events in the journal")


def _gap_rows(report: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    found = part(report, "token_gaps")
    return [
        (kind, [number(part(found, kind).get("count")), *(number(part(found, kind).get(k), "ms") for k in _GAP_KEYS)])
        for kind in ("publishing", "quiet")
        if part(found, kind)
    ]


@frozen
class KvRow:
    """One session's turns: (cached, prompt, share in percent)."""

    version: str
    session: str
    cells: tuple[tuple[str, str, float], ...]


def _kv_rows(report: Mapping[str, Any]) -> list[KvRow]:
    rows: dict[tuple[str, str], dict[int, tuple[str, str, float]]] = {}
    for entry in items(report, "kv"):
        cached, prompt, turn = entry.get("cached_tokens"), entry.get("prompt_tokens"), entry.get("turn")
        if not isinstance(turn, int):
            continue
        share = (
            100.0 * float(cached or 0) / float(prompt) if is_number(cached) and is_number(prompt) and prompt else 0.0
        )
        row = rows.setdefault((str(entry.get("version") or "base"), str(entry.get("session", ""))), {})
        row[turn] = number(cached), number(prompt), min(100.0, max(0.0, share))
    turns = sorted({turn for row in rows.values() for turn in row})
    ordered = sorted(rows.items(), key=lambda item: item[0][0])  # stable: sessions in the order of their first turn
    return [KvRow(v, s, tuple(row.get(turn, ("", "", -1.0)) for turn in turns)) for (v, s), row in ordered]


@frozen
class Grid:
    """A table of numbers: the columns' names, and rows of a heading and cells."""

    columns: tuple[str, ...]
    rows: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]


def _phase_table(report: Mapping[str, Any]) -> Grid | None:
    phases = items(report, "phases")
    engines = sorted({str(p["engine"]) for p in phases if p.get("engine")})
    columns = ["", *engines] if any(not p.get("engine") for p in phases) else engines
    cells: dict[tuple[str, str], dict[str, float]] = {}
    for p in phases:
        if is_number(p.get("seconds")):
            row = cells.setdefault((str(p.get("version") or "base"), str(p.get("phase", "?"))), {})
            at = str(p.get("engine") or "")
            row[at] = row.get(at, 0.0) + p["seconds"]
    ordered = sorted(cells.items(), key=lambda item: item[0][0])
    rows = tuple((key, tuple(seconds(row[c], 2) if c in row else "" for c in columns)) for key, row in ordered)
    return Grid(tuple(c or "publisher" for c in columns), rows) if rows else None


def _call_table(report: Mapping[str, Any]) -> Grid | None:
    calls = part(report, "control_calls")
    engines = sorted(name for name in calls if part(calls, name))
    routes = sorted({route for name in engines for route in part(calls, name)})
    rows = tuple(((route,), tuple(number(part(calls, name).get(route, 0)) for name in engines)) for route in routes)
    return Grid(tuple(engines), rows) if rows else None


@frozen
class Pair:
    """Two versions' first scored tokens, and how many tolerances lie between them."""

    names: str
    position: str
    delta: str
    ratio: str


def _separation(report: Mapping[str, Any]) -> list[Pair]:
    separation = part(report, "separation")
    tolerance = separation.get("tolerance")
    return [
        Pair(
            f"{p.get('a', '?')} – {p.get('b', '?')}",
            number(p.get("position")),
            number(p.get("delta")),
            f"{p['delta'] / tolerance:,.0f} ×"
            if is_number(p.get("delta")) and is_number(tolerance) and tolerance
            else "–",
        )
        for p in items(separation, "pairs")
    ]


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(shown=lambda value: clean(shown(value)), seconds=seconds, number=number)
    environment.finalize = lambda value: value if isinstance(value, Markup) else clean(value)
    return environment.from_string(_resource("page.html.j2"))


def _resource(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
