"""`figures` of report.json: what the sections measured, and what each must be; a figure nobody measured is None."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from attrs import frozen

from lorafsm_sglang import control_calls

Sections: TypeAlias = Mapping[str, Mapping[str, Any]]


@frozen
class Goal:
    """One figure: the section that measures it, RFC clause, what it is, and the bound that it must keep (inclusive)."""

    section: str
    clause: str
    what: str
    bound: float
    at_most: bool = True

    def __str__(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {self.bound:g}"


GOALS: Mapping[str, Goal] = {
    "failed_requests": Goal("online", "RFC 7.3", "requests that ended without their answer", 0),
    "pauses": Goal("online", "RFC 7.3", "pause, flush and abort-all calls in the engines' access logs", 0),
    "gap_p99_ratio": Goal(
        "online",
        "RFC 7.3",
        "99th percentile of token gaps from reserve to commit, over that in equal windows without",
        1.5,
    ),
    "gap_max_ratio": Goal(
        "online", "RFC 7.3", "largest of these gaps, likewise; 250 ms or less is always small enough", 2.0
    ),
    "logprob_max_error": Goal(
        "numeric", "RFC 7.2", "nats between a session's scores and its version's baseline, the largest", 1e-3
    ),
    "ab_separation": Goal(
        "numeric", "RFC 7.2", "least distance of A and B where they are compared, in epsilons", 10, at_most=False
    ),
    "publication_ratio": Goal(
        "online",
        "RFC 7.3",
        "reserve to commit, over raw transfer + native load + probe + 300 ms; median of the row",
        1.0,
    ),
    "reclaim_after_last_ms": Goal("online", "RFC 5.1", "from the end of a version's last request to its unload", 100),
    "max_managed_versions": Goal("online", "RFC 5.2", "most versions that held a slot at any time, by the journal", 2),
}
"""`gap_max_ratio` is also kept where the largest gap is 250 ms or less.  `publication_ratio` is the publication over
raw transfer + native load + probe + 300 ms; `ab_separation` counts epsilons."""

SMALL_GAP_MS = 250.0
STOPS = ("pause_generation", "flush_cache", "abort_request_without_rid")
"""Calls that stop everybody; an abort that names its request stops one, and is its owner's (RFC 4.3)."""


def figures(sections: Sections) -> dict[str, float | None]:
    """The figure of each goal; None where its section did not run or did not measure it."""
    return {name: _number(sections.get(goal.section, {}).get(name)) for name, goal in GOALS.items()}


def not_judged(name: str, sections: Sections) -> str:
    """Why the machine of a run cannot show whether this figure keeps its goal; empty: it can."""
    needed = sections.get("plan", {}).get("limits", {}).get("gap_ratio_cores", 0)
    cores = sections.get("environment", {}).get("cpus") or 0
    if name != "gap_p99_ratio" or cores >= needed:
        return ""
    return f"on {needed} cores or more; here are {cores}"


def kept(name: str, value: float | None, sections: Sections) -> bool | None:
    """Whether a figure keeps its goal; None: not run."""
    if value is None:
        return None
    goal = GOALS[name]
    bound = float(sections["numeric"]["epsilon"]) if name == "logprob_max_error" else goal.bound
    if name == "gap_max_ratio" and _largest_gap(sections) <= SMALL_GAP_MS:
        return True
    return value <= bound if goal.at_most else value >= bound


def pauses(logs: Sequence[Path]) -> int:
    """Pause, flush and abort-all calls in engines' access logs; AccessLogError when a log proves nothing."""
    return sum(calls[route] for calls in map(control_calls, logs) for route in STOPS)


def _largest_gap(sections: Sections) -> float:
    found = (sections.get("online", {}).get("gaps") or {}).get("publishing") or {}
    return float(found.get("max", float("inf")))


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
