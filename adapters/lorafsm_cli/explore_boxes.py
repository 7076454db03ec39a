"""`lorafsm explore`: search the boxes of the core and say what was seen in each."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from time import monotonic
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lorafsm import invariants
from lorafsm.box import Box, registry_moves
from lorafsm.boxes import BOXES
from lorafsm.explore import Path, Violation, as_program, explore, registry_step
from lorafsm.records import new_registry
from lorafsm_cli.one_line import CliError


def chosen(name: str) -> dict[str, Box]:
    """The box of this name, or all for an empty name; raises CliError for a name that none has."""
    if not name:
        return dict(BOXES)
    if name in BOXES:
        return {name: BOXES[name]}
    near = get_close_matches(name, BOXES, 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise CliError(f"--box: there is no box {name!r}; {hint}`lorafsm explore --list` names them all")


def search(boxes: dict[str, Box], max_states: int) -> Iterator[dict[str, Any]]:
    """What was seen in each box, as plain JSON types; one that broke no invariant and was seen to its end is ok."""
    for name, box in boxes.items():
        started = monotonic()
        seen = explore(
            box.start(),
            registry_moves(box),
            invariants.check,
            step=registry_step,
            check_change=invariants.check_change,
            max_states=max_states,
        )
        yield {
            "box": name,
            "ok": seen.complete and not seen.violations,
            "states": seen.states,
            "transitions": seen.transitions,
            "changes": seen.changes,
            "depth": seen.depth,
            "complete": seen.complete,
            "seconds": round(monotonic() - started, 3),
            "events": dict(sorted(seen.events().items())),
            "outcomes": {str(code): times for code, times in sorted(seen.outcomes().items())},
            "violations": [_violation(v, box) for v in seen.violations],
        }


def _violation(violation: Violation[Any, Any], box: Box) -> dict[str, Any]:
    """The sentences, and a program that starts from nothing: the box's story, then the events of the path."""
    path = Path(new_registry(box.epoch, box.config), (*box.story, *violation.path.events))
    return {
        "sentences": list(violation.sentences),
        "events": len(violation.path.events),
        "program": as_program(path),
    }


def show(results: list[dict[str, Any]], console: Console) -> None:
    """A table of the boxes, then every broken invariant with the program that breaks it."""
    table = Table("box", "states", "steps", "depth", "time", "")
    for column in table.columns[1:5]:
        column.justify = "right"
    for result in results:
        end = Text("all seen", "green") if result["ok"] else Text("stopped at the limit", "yellow")
        if result["violations"]:
            end = Text("BROKEN", "bold red")
        numbers = (f"{result['states']:,}", f"{result['transitions']:,}", str(result["depth"]))
        table.add_row(Text(result["box"]), *numbers, f"{result['seconds']:.1f} s", end)
    console.print(table)
    for result in results:
        for violation in result["violations"]:
            console.print(Text(f"{result['box']}, after {violation['events']} events:", "bold red"), soft_wrap=True)
            console.print(Text("\n".join(violation["sentences"])), soft_wrap=True)
            console.print(Text(violation["program"], "dim"), soft_wrap=True)
