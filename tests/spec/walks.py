"""Each box searched once in a test run: what was acted out, what broke, and what a refusal changed."""

from functools import cache

from attrs import frozen

from lorafsm import invariants
from lorafsm.box import Box, registry_moves
from lorafsm.boxes import BOXES
from lorafsm.events import Event
from lorafsm.explore import Exploration, Path, as_program, explore, registry_step
from lorafsm.identity import SessionKey
from lorafsm.records import Registry, new_registry
from tests.spec.observer import ANSWERED, Seen, seen_in

MAX_STATES = 20_000


@frozen
class Walk:
    """What the search of one box saw."""

    exploration: Exploration[Registry, Event]
    seen: frozenset[Seen]
    changed_by_refusals: tuple[str, ...]


@cache
def walk(name: str) -> Walk:
    """Search the box of this name; every step is observed and every state and change is checked."""
    box = BOXES[name]
    sessions = [SessionKey(box.epoch, owner, sequence) for owner in box.owners for sequence in box.sequences]
    seen: set[Seen] = set()
    changed: list[str] = []

    def observe(before: Registry, event: Event, after: Registry, code: str) -> None:
        seen.update(seen_in(before, event, after, code, sessions))
        if code not in ANSWERED and after is not before:
            changed.append(f"{event} was refused with {code}")

    exploration = explore(
        box.start(),
        registry_moves(box),
        invariants.check,
        step=registry_step,
        check_change=invariants.check_change,
        observe=observe,
        max_states=MAX_STATES,
        stop_after=5,
    )
    return Walk(exploration, frozenset(seen), tuple(changed))


def program(box: Box, path: Path[Registry, Event]) -> str:
    """A path in a box as a program that starts from nothing."""
    return as_program(Path(new_registry(box.epoch, box.config), (*box.story, *path.events)))
