"""`lorafsm explore`: search the boxes of the core and of the composed system, and say what was seen in each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from random import Random
from time import monotonic
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lorafsm import invariants
from lorafsm.box import Box, registry_moves
from lorafsm.boxes import BOXES
from lorafsm.explore import Exploration, Path, Violation, as_program, explore, registry_step, simulate
from lorafsm.records import new_registry
from lorafsm.system import Model, SystemBox
from lorafsm.system.boxes import BOXES as SYSTEM_BOXES
from lorafsm.system.boxes import LARGE
from lorafsm.system.counterexample import as_page, shortest
from lorafsm.system.weak import WEAK
from lorafsm.system.words import as_program as as_system_program
from lorafsm_cli.one_line import CliError

AnyBox = Box | SystemBox
WALK_LENGTH = 200


def chosen(name: str) -> dict[str, AnyBox]:
    """The box of this name, or all that are searched to their end; raises CliError for a name that none has."""
    boxes: dict[str, AnyBox] = {**BOXES, **SYSTEM_BOXES}
    return boxes if not name else {name: _named("box", name, {**boxes, **LARGE})}


def _named(option: str, name: str, known: Mapping[str, Any]) -> Any:
    if name in known:
        return known[name]
    near = get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    all_names = "`lorafsm explore --list` names them all" if option == "box" else f"take one of {', '.join(known)}"
    raise CliError(f"--{option}: there is no {option} {name!r}; {hint}{all_names}")


def names() -> list[str]:
    """Every box: those of the registry, those of the composed system, and those that are too large for a search."""
    return [*BOXES, *SYSTEM_BOXES, *LARGE]


def search(boxes: dict[str, AnyBox], max_states: int) -> Iterator[dict[str, Any]]:
    """What was seen in each box, as plain JSON types; one that broke no invariant and was seen to its end is ok."""
    for name, box in boxes.items():
        started = monotonic()
        if isinstance(box, SystemBox):
            yield _seen(name, "system", box, Model(box).search(max_states), started)
        else:
            yield _seen(name, "registry", box, _of_registry(box, max_states), started)


def _of_registry(box: Box, max_states: int) -> Exploration[Any, Any]:
    return explore(
        box.start(),
        registry_moves(box),
        invariants.check,
        step=registry_step,
        check_change=invariants.check_change,
        max_states=max_states,
    )


def wander(boxes: dict[str, AnyBox], walks: int, seed: int) -> Iterator[dict[str, Any]]:
    """The same for random walks through boxes of the composed system: a simulation, which proves nothing."""
    for name, box in boxes.items():
        if not isinstance(box, SystemBox):
            raise CliError(f"--simulate: {name!r} is a box of the registry, which is searched to its end")
        started = monotonic()
        model = Model(box)
        seen = simulate(
            model.start(),
            model.moves,
            model.check,
            step=model.explored,
            choose=Random(seed).randrange,  # noqa: S311  # reproducible, not secret
            walks=walks,
            length=WALK_LENGTH,
        )
        yield {**_seen(name, "system", box, seen, started), "ok": not seen.violations, "simulated": walks, "seed": seed}


def _seen(name: str, of: str, box: AnyBox, seen: Exploration[Any, Any], started: float) -> dict[str, Any]:
    seconds = monotonic() - started
    taken: dict[str, dict[str, int]] = {}
    for (event, code), times in sorted(seen.taken.items()):
        taken.setdefault(event, {})[str(code)] = times
    return {
        "box": name,
        "of": of,
        "ok": seen.complete and not seen.violations,
        "states": seen.states,
        "transitions": seen.transitions,
        "changes": seen.changes,
        "depth": seen.depth,
        "frontier": seen.frontier,
        "seconds": round(seconds, 3),
        "states_per_s": round(seen.states / max(seconds, 1e-9)),
        "taken": taken,
        "violations": [_violation(v, box, name) for v in seen.violations],
    }


def _violation(violation: Violation[Any, Any], box: AnyBox, name: str) -> dict[str, Any]:
    """The sentences, and a program that starts from nothing: the box's story, then the events of the path."""
    if isinstance(box, SystemBox):
        program = as_system_program(violation.path, f"box {name}")
    else:
        program = as_program(Path(new_registry(box.epoch, box.config), (*box.story, *violation.path.events)))
    return {"sentences": list(violation.sentences), "events": len(violation.path.events), "program": program}


def weakened(name: str) -> dict[str, Any]:
    """The shortest counterexample of a weak variant, as the page that spec/counterexamples keeps."""
    weak = _named("weak", name, WEAK)
    found = shortest(weak)
    if found is None:
        return {"weak": name, "caught": False, "page": ""}
    sentences, length = sorted(found.sentences), len(found.path.events)
    return {"weak": name, "caught": True, "steps": length, "sentences": sentences, "page": as_page(name, found)}


def show(results: list[dict[str, Any]], console: Console) -> None:
    """A table of the boxes, then every broken invariant with the program that breaks it."""
    table = Table("box", "states", "steps", "depth", "time", "")
    for column in table.columns[1:5]:
        column.justify = "right"
    for result in results:
        end = Text("all seen", "green") if result["ok"] else Text("stopped at the limit", "yellow")
        if "simulated" in result:
            end = Text(f"simulation, {result['simulated']} walks, seed {result['seed']}", "yellow")
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
