"""`lorafsm status` for people: tables of versions, engines and what is under way."""

from __future__ import annotations

from collections.abc import Iterable

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lorafsm.status import AttemptLine, EngineLine, ReclaimLine, Status, VersionLine

_COLOURS = {
    "PUBLISHED": "bold green",
    "UP": "green",
    "READY": "green",
    "UNLOADED": "green",
    "LOADING": "yellow",
    "RECLAIMING": "yellow",
    "REPAIRING": "yellow",
    "ORDERED": "yellow",
    "ABORTED": "red",
    "FAILED": "red",
    "UNKNOWN": "red",
    "LOST": "red",
    "QUARANTINED": "bold red",
    "DEAD": "red",
}
_FINISHED_SHOWN = 5
_WIDE = 110  # columns from which the digest has room too


def duration(ms: int) -> str:
    """A time span for the eye: 850 ms, 12.3 s, 4 min 05 s, 3 h 07 min."""
    if ms < 1000:
        return f"{ms} ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    minutes, seconds = divmod(ms // 1000, 60)
    if minutes < 60:
        return f"{minutes} min {seconds:02} s"
    return f"{minutes // 60} h {minutes % 60:02} min"


def show(status: Status, source: str, console: Console) -> None:
    """All of it, in the order in which one asks; `source` says where it was read and to when ages count."""
    default = f"{status.default} at revision {status.revision}" if status.default else "none yet"
    console.print(
        Text.assemble(
            ("epoch ", "dim"), status.epoch, ("   default ", "dim"), (default, "bold"),
            ("   slots ", "dim"), f"{status.slots_used} of {status.capacity}",
            ("   sessions ", "dim"), f"{status.live_sessions} live of {status.live_owners} live owner(s)",
        ),
        soft_wrap=True,
    )  # fmt: skip
    console.print(Text(source, "dim"), soft_wrap=True)
    narrow = console.width < _WIDE
    console.print(_versions(status.versions, narrow))
    console.print(_engines(status.engines))
    if status.attempt is not None:
        console.print(_attempt(status.attempt))
    for reclaim in status.reclaims:
        console.print(_reclaim(reclaim))
    _next_reserve(status, console)


def _versions(versions: tuple[VersionLine, ...], narrow: bool) -> Table:
    finished = [v for v in versions if not v.holds_slot]
    hidden = {v.key for v in finished[:-_FINISHED_SHOWN]}
    title = f"Versions ({len(hidden)} older ones without a slot not shown)" if hidden else "Versions"
    identity = () if narrow else ("digest", "try")
    table = titled(title, "version", "state", "for", *identity, "refs", "oldest holder", "routable on, or failure")
    for v in versions:
        if v.key in hidden:
            continue
        state = _state(v.state)
        if v.revoked:
            state.append(" revoked")
        holder = f"{v.oldest}, {duration(v.oldest_age)}" if v.oldest is not None else ""
        proof = () if narrow else (v.digest[:12], str(v.attempt))
        table.add_row(
            str(v.key), state, duration(v.age), *proof, str(v.session_refs), holder,
            v.failure if v.failure and not v.holds_slot else _listed(v.routable),
        )  # fmt: skip
    return table


def _engines(engines: tuple[EngineLine, ...]) -> Table:
    table = titled("Engines", "engine", "incarnation", "state", "for", "residents", "strays", "pending repairs")
    for e in engines:
        state = _state(e.state)
        if e.reason:
            state.append(f" {e.reason}")
        repairs = [f"{repair.key} (number {repair.number})" for repair in e.repairs]
        if e.retry_in:
            repairs.append(f"next in {duration(e.retry_in)}")
        table.add_row(
            e.engine, str(e.incarnation), state, duration(e.age), _listed(e.residents),
            _listed(stray.lora_name for stray in e.strays), _listed(repairs),
        )  # fmt: skip
    return table


def _attempt(attempt: AttemptLine) -> Table:
    title = f"Attempt {attempt.number} of {attempt.key} is {attempt.state}"
    if attempt.reason:
        title += f": {attempt.reason}"
    if attempt.driver_lease:
        title += f"; its driver's lease runs for {duration(attempt.driver_lease)}"
    table = titled(title, "target", "incarnation", "state", "buckets", "detail")
    for t in attempt.targets:
        done = f"{t.buckets_done} of {attempt.buckets}" if attempt.buckets else "-"
        table.add_row(t.engine, str(t.incarnation), _state(t.state), done, t.detail)
    return table


def _reclaim(reclaim: ReclaimLine) -> Table:
    title = f"Reclaim {reclaim.reclaim_id} of {reclaim.key}, claimed {duration(reclaim.age)} before"
    table = titled(title, "engine", "incarnation", "unload")
    for u in reclaim.unloads:
        table.add_row(u.engine, str(u.incarnation), _state(u.state))
    return table


def _next_reserve(status: Status, console: Console) -> None:
    refusal = status.next_reserve
    if refusal is None:
        console.print(Text("A reserve of a new version would be accepted now.", "green"))
        return
    console.print(Text(f"A reserve of a new version would be refused: {refusal.code}", "bold red"))
    for line in map(str, refusal.blockers) if refusal.blockers else (refusal.reason, *refusal.engines):
        console.print(Text(f"  {line}"), soft_wrap=True)


def titled(title: str, *columns: str) -> Table:
    """An empty table in the style of this page."""
    table = Table(title=Text(title, "bold", no_wrap=True), title_justify="left", box=SIMPLE_HEAD, min_width=len(title))
    for column in columns:
        fixed = column in ("version", "engine", "incarnation", "target", "state", "for", "digest", "refs")
        table.add_column(column, overflow="fold", no_wrap=fixed, min_width=len(column.split(",")[0]))
    return table


def _state(state: str) -> Text:
    return Text(str(state), _COLOURS.get(str(state), ""))


def _listed(items: Iterable[object]) -> str:
    return ", ".join(map(str, items)) or "-"
