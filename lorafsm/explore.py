"""Breadth-first search through every state that a pure step function can reach (protocol section 4).

`explore` knows nothing of the registry: any hashable state, any event and any `step` will do, so that a composed
system (registry, agents, policies, network) is searched by the same function.  `lorafsm.box` says which events
may happen to a registry.  A violation comes with a shortest path to it, and `as_program` prints that path as a
program to paste.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from attrs import fields, frozen, has
from immutables import Map

from lorafsm import registry
from lorafsm.events import Event
from lorafsm.records import Registry, new_registry

S = TypeVar("S", bound=Hashable)
E = TypeVar("E")


@frozen
class Path(Generic[S, E]):
    """A way through the states: `initial`, and the events taken from there."""

    initial: S
    events: tuple[E, ...]


@frozen
class Violation(Generic[S, E]):
    """What does not hold after the last event of `path`; no shorter path leads to that state."""

    sentences: tuple[str, ...]
    path: Path[S, E]


@frozen
class Exploration(Generic[S, E]):
    """What a search has seen."""

    states: int  # distinct
    transitions: int  # steps taken, refusals included
    changes: int  # steps that led to another state
    depth: int  # events on the longest of the shortest paths
    frontier: int  # states that were seen and not expanded; 0: the search is complete
    violations: tuple[Violation[S, E], ...]
    taken: Mapping[tuple[str, str], int]  # (name of the event, outcome code): how often

    @property
    def complete(self) -> bool:
        """Whether every reachable state was expanded."""
        return self.frontier == 0

    def events(self) -> Counter[str]:
        """How often each event was taken, by its name."""
        return _summed(self.taken, 0)

    def outcomes(self) -> Counter[str]:
        """How often each outcome code was answered."""
        return _summed(self.taken, 1)


def _summed(taken: Mapping[tuple[str, str], int], part: int) -> Counter[str]:
    total: Counter[str] = Counter()
    for pair, times in taken.items():
        total[pair[part]] += times
    return total


def registry_step(state: Registry, event: Event) -> tuple[Registry, str]:
    """The core's `step`, in the form that `explore` takes: the state after the event, and the outcome's code."""
    done = registry.step(state, event)
    return done.registry, done.outcome.code


def name_of(event: object) -> str:
    """The event's own name, or its class's."""
    return str(getattr(event, "name", type(event).__name__))


def explore(
    initial: S,
    moves: Callable[[S], Iterable[E]],
    check: Callable[[S], tuple[str, ...]],
    *,
    step: Callable[[S, E], tuple[S, str]],
    max_states: int,
    check_change: Callable[[S, E, S], tuple[str, ...]] | None = None,
    observe: Callable[[S, E, S, str], None] | None = None,
    stop_after: int = 1,
    rests: Callable[[S], bool] | None = None,
    is_fair: Callable[[S, S], bool] | None = None,
) -> Exploration[S, E]:
    """Take every move from every state, nearest states first, until `max_states` are known or none is left.

    `step` answers the state after an event and the outcome's code; a state that it does not change should come
    back as the same object.  `check` is asked once per state, `check_change` once per step that changed
    something, `observe` is told of every step.  The search ends early once `stop_after` violations are found.

    With `rests`, a complete search without a violation also asks whether every state can still come to rest: by steps
    that `is_fair` (asked of the states before and after) allows, to a state that `rests` accepts.  The nearest state
    that cannot is a violation.
    """
    earlier: dict[S, list[S]] | None = None if rests is None else {}
    origins: dict[S, tuple[S, E] | None] = {initial: None}
    taken: Counter[tuple[str, str]] = Counter()
    violations: list[Violation[S, E]] = []
    if wrong := check(initial):
        violations.append(Violation(wrong, Path(initial, ())))
    level, depth, transitions, changes, expanded = [initial], 0, 0, 0, 0
    while level and len(violations) < stop_after:
        following: list[S] = []
        for state in level:
            if len(origins) >= max_states or len(violations) >= stop_after:
                break
            expanded += 1
            for event in moves(state):
                after, code = step(state, event)
                transitions += 1
                taken[name_of(event), code] += 1
                if observe is not None:
                    observe(state, event, after, code)
                if after is state:
                    continue
                changes += 1
                if earlier is not None and (is_fair is None or is_fair(state, after)):
                    earlier.setdefault(after, []).append(state)
                known = len(origins)
                origins.setdefault(after, (state, event))
                wrong = check_change(state, event, after) if check_change is not None else ()
                if len(origins) > known:
                    following.append(after)
                    wrong += check(after)
                if wrong:
                    violations.append(Violation(wrong, _path_to(origins, state, event)))
        depth += bool(following)
        level = following
    frontier = len(origins) - expanded
    if rests is not None and earlier is not None and not violations and not frontier:
        violations += _dead_end(origins, earlier, rests)
    return Exploration(len(origins), transitions, changes, depth, frontier, tuple(violations), taken)


def _dead_end(
    origins: Mapping[S, tuple[S, E] | None], earlier: Mapping[S, list[S]], rests: Callable[[S], bool]
) -> list[Violation[S, E]]:
    """The nearest state from which no state at rest can be reached."""
    reached = {state for state in origins if rests(state)}
    level = list(reached)
    while level:
        before = [was for state in level for was in earlier.get(state, ()) if was not in reached]
        level = list(dict.fromkeys(before))
        reached.update(level)
    stuck = next((state for state in origins if state not in reached), None)
    if stuck is None:
        return []
    return [Violation(("liveness: without a further fault nothing leads to rest from here",), _path_to(origins, stuck))]


def _path_to(origins: Mapping[S, tuple[S, E] | None], state: S, *last: E) -> Path[S, E]:
    events = list(last)
    while (origin := origins[state]) is not None:
        state, event = origin
        events.append(event)
    return Path(state, tuple(reversed(events)))


def simulate(
    initial: S,
    moves: Callable[[S], Iterable[E]],
    check: Callable[[S], tuple[str, ...]],
    *,
    step: Callable[[S, E], tuple[S, str]],
    choose: Callable[[int], int],
    walks: int,
    length: int,
) -> Exploration[S, E]:
    """Random walks instead of a search: nothing is proved, but larger worlds are seen.

    `choose(n)` draws one of 0 .. n-1.  `frontier` is 1, since a simulation is never complete; `depth` is the longest
    walk.  Ends at the first violation, whose path is the walk and not a shortest one.
    """
    seen, taken, transitions, changes, depth = {initial}, Counter[tuple[str, str]](), 0, 0, 0
    for _ in range(walks):
        state, events = initial, list[E]()
        for _ in range(length):
            possible = list(moves(state))
            if not possible:
                break
            event = possible[choose(len(possible))]
            after, code = step(state, event)
            transitions += 1
            taken[name_of(event), code] += 1
            if after is state:
                continue
            changes += 1
            events.append(event)
            state = after
            if state not in seen:
                seen.add(state)
                if wrong := check(state):
                    broken = Violation(wrong, Path(initial, tuple(events)))
                    return Exploration(len(seen), transitions, changes, max(depth, len(events)), 1, (broken,), taken)
        depth = max(depth, len(events))
    return Exploration(len(seen), transitions, changes, depth, 1, (), taken)


def as_program(path: Path[Any, Any], *, step: str = "lorafsm.registry:step") -> str:
    """The path as a program that prints each outcome and ends with `state` after the last event.

    `step` names the function as "module:name"; what it returns must have `.registry` and `.outcome`.
    """
    module, name = step.split(":")
    start, imported = _start(path.initial)
    lines = [f"from {module} import {name}"]
    if start.startswith("new_registry"):
        lines.append("from lorafsm.records import new_registry")
    if "immutables.Map(" in start + repr(path.events):
        lines.insert(0, "import immutables")
    lines += imports_of((path.events, imported))
    lines += ["", f"state = {start}", "for event in ("]
    lines += [f"    {event!r}," for event in path.events]
    lines += ["):", f"    done = {name}(state, event)", "    state = done.registry"]
    lines += ["    print(event.name, done.outcome)", ""]
    return "\n".join(lines)


def imports_of(value: object) -> list[str]:
    """The import lines that the repr of these records needs."""
    modules: dict[str, set[str]] = {}
    for kind in {*_kinds(value)}:
        modules.setdefault(kind.__module__, set()).add(kind.__name__)
    return [f"from {key} import {', '.join(sorted(names))}" for key, names in sorted(modules.items())]


def _start(initial: object) -> tuple[str, object]:
    if isinstance(initial, Registry) and initial == new_registry(initial.epoch, initial.config):
        return f"new_registry({initial.epoch!r}, {initial.config!r})", initial.config
    return repr(initial), initial


def _kinds(value: object) -> Iterable[type]:
    kind: type[Any] = type(value)
    if has(kind):
        yield kind
        for field in fields(kind):
            yield from _kinds(getattr(value, field.name))
    elif isinstance(value, tuple | frozenset):
        for item in value:
            yield from _kinds(item)
    elif isinstance(value, Map):
        for key, item in value.items():
            yield from _kinds((key, item))
