"""The worlds of tla/models/protocol on the side of the core: `lorafsm.system` with the constants of the same .cfg."""

from __future__ import annotations

import re
from collections import deque
from pathlib import Path
from typing import Any

from lorafsm.records import Config
from lorafsm.system import actions as do
from lorafsm.system.box import SystemBox
from lorafsm.system.model import Model
from lorafsm.system.records import System
from lorafsm.system.rules import REAL, Rules
from lorafsm_tla.system_state import SystemNames, system_as_tla
from lorafsm_tla.values import Graph, State, read_value, state_of

NAMED_OTHERWISE = {
    do.Reserve: "ReserveNext",
    do.Takeover: "TakeOver",
    do.Open: "OpenSession",
    do.Bind: "BindNext",
    do.Settle: "SettleRequest",
    do.BeginClose: "BeginToClose",
    do.EndOwner: "LoseOwner",
}
"""Actions whose name is the registry's for its own part of them."""


def read_system_box(path: Path) -> tuple[SystemBox, int]:
    """The box of one .cfg, and how many numbers its model has."""
    text = path.read_text()
    c: dict[str, Any] = {key: read_value(value) for key, value in re.findall(r"^    (\w+) = (.*)$", text, re.MULTILINE)}
    box = SystemBox(
        engines=len(c["Engine"]),
        versions=len(c["Version"]),
        sessions=len(c["Sequence"]),
        requests=c["Requests"],
        buckets=c["Buckets"],
        published=c["Published"],
        bound=int(c["BoundBefore"]),
        budgets={**dict.fromkeys(c["Once"], 1), **dict.fromkeys(c["Twice"], 2)},
        config=Config(
            capacity=c["Capacity"],
            engine_slots=c["EngineSlots"],
            base_fingerprint=c["OurBase"],
            owner_lease=c["OwnerLease"],
            driver_lease=c["DriverLease"],
            repair_backoff=c["RepairBackoff"],
            repair_limit=c["RepairLimit"],
        ),
        stored_late=True,
        opens_first=c["OpensFirst"],
    )
    return box, len(c["Number"])


class TwoFaced(AssertionError):
    """Two systems have one image and different futures: the map drops something that a guard reads."""


def walk_system(box: SystemBox, numbers: int, rules: Rules = REAL, max_states: int = 100_000) -> Graph:
    """The composed system's graph in the specification's terms: every state, and where each action leads.

    Raises TwoFaced when a field that the map drops matters, and ValueError when the box is larger than `max_states`.
    """
    model = Model(box, rules)
    names = SystemNames(model.world, numbers)
    first = model.start()
    images: dict[System, State] = {first: state_of(system_as_tla(first, names))}
    steps: dict[State, frozenset[tuple[str, State]]] = {}
    todo = deque([first])
    while todo:
        system = todo.popleft()
        out: set[tuple[str, State]] = set()
        for action in model.moves(system):
            after, _ = model.explored(system, action)
            if after is system:
                continue
            if after not in images:
                images[after] = state_of(system_as_tla(after, names))
                todo.append(after)
            out.add((name_of(action, system, after), images[after]))
        known = steps.setdefault(images[system], frozenset(out))
        if known != out:
            raise TwoFaced(f"{sorted(known ^ out)[0]}\nis a step of only one of the systems with one image")
        if len(images) > max_states:
            raise ValueError(f"the box has more than {max_states} states")
    return Graph(frozenset({images[first]}), steps)


def name_of(action: do.Action, before: System, after: System) -> str:
    """The specification's name of a step: a result that is a fault, and spends its budget, need not come."""
    if isinstance(action, do.Finish):
        return "FinishesWell" if after.left == before.left else "FinishesBadly"
    return NAMED_OTHERWISE.get(type(action), type(action).__name__)
