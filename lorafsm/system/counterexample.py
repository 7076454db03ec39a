"""The readable form of a weak variant's shortest counterexample: what `spec/counterexamples/` keeps."""

from __future__ import annotations

from lorafsm.explore import Violation
from lorafsm.system import actions as do
from lorafsm.system.box import SystemBox
from lorafsm.system.model import Model
from lorafsm.system.records import System
from lorafsm.system.weak import WEAK, Weak
from lorafsm.system.words import as_program, in_words

MAX_STATES = 60_000


def shortest(weak: Weak) -> Violation[System, do.Action] | None:
    """The nearest broken invariant, or None: the mistake is not caught in its box."""
    found = Model(weak.box, weak.rules).search(MAX_STATES)
    return found.violations[0] if found.violations else None


def as_page(name: str, violation: Violation[System, do.Action]) -> str:
    """The page of `spec/counterexamples/NAME.md`."""
    weak = WEAK[name]
    steps = [f"{n}. {in_words(action)}" for n, action in enumerate(violation.path.events, 1)]
    lines = [
        f"# {name.replace('_', ' ')}",
        "",
        f"Weakened: {weak.says}.",
        "",
        f"It breaks {weak.rule}.",
        "",
        f"Box: {box_in_words(weak.box)}.",
        "",
        "## Steps",
        "",
        *steps,
        "",
        "Broken:",
        "",
        *(f"* {sentence}" for sentence in sorted(violation.sentences)),
        "",
        "## Program",
        "",
        "```python",
        as_program(violation.path, f"weak {name}").rstrip(),
        "```",
        "",
        f"Written by `lorafsm explore --weak {name}`; a test says when this page is out of date.",
        "",
    ]
    return "\n".join(lines)


def box_in_words(box: SystemBox) -> str:
    """The sizes of a box and its budgets."""
    sizes = [
        _count(box.engines, "engine"),
        _count(box.versions, "version"),
        _count(box.sessions, "session"),
        _count(box.buckets, "bucket"),
    ]
    if box.published:
        sizes.append(f"{box.published} published before the search")
    budgets = [f"{kind} {times}" for kind, times in sorted(box.budgets.items())]
    return ", ".join(sizes) + (f"; budgets: {', '.join(budgets)}" if budgets else "; no faults")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
