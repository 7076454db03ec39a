"""The boxes of tla/models/session_refs on the side of the core: the same constants, read from the same .cfg, and every
call that may come in them, with every argument.

A cache changes in place, so a state is kept as the calls that lead to it.  A call that is refused must change nothing.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

from attrs import field, frozen

from lorafsm.identity import SessionKey, VersionKey
from lorafsm.kv import CacheConfig, Lock, Node, SessionCache
from lorafsm.kv.invariants import check
from lorafsm.lifecycle import VersionState as V
from lorafsm_tla.cache_state import EPOCH, CacheNames, Facts, Name, cache_as_tla, facts_of, nodes_of
from lorafsm_tla.values import Graph, State, read_value, state_of

TEXTS: Mapping[str, tuple[tuple[int, ...], ...]] = {
    "Growing": ((1,), (1, 1)),
    "Parting": ((1, 1), (1, 2)),
    "Forking": ((1,), (1, 1), (1, 2)),
    "Apart": ((1,), (2,)),
    "Single": ((1,),),
}
SAID: Mapping[str, tuple[tuple[V, int], ...]] = {
    "Serve": ((V.PUBLISHED, 0), (V.RETIRED, 1)),
    "Retire": ((V.RETIRED, 0), (V.RECLAIMING, 1)),
    "Discard": ((V.ABORTED, 0), (V.FAILED_CLEAN, 0)),
    "Reclaim": ((V.RECLAIMED, 0),),
}
"""What a registry may say of a version and its session refs."""

ASKED_AGAIN = 3
"""One in so many states is asked again by another way."""

NAMING_A_NODE = ("Lock", "Register", "Aborted")
TAKING_NODES = ("Unlock", "Evict", "Flush", "Discard", "Reclaim")

Call: TypeAlias = tuple[Any, ...]
"""The specification's name of an action, and the arguments."""


class TwoFaced(AssertionError):
    """Two caches have one image and different futures: the map drops something that a guard reads."""


@frozen
class CacheBox:
    """The constants of one model."""

    name: str
    constants: Mapping[str, Any]
    names: CacheNames = field(init=False)

    @names.default
    def _names(self) -> CacheNames:
        c = self.constants
        return CacheNames(tuple(c["Owner"]), tuple(c["Sequence"]), tuple(c["Version"]), tuple(c["Pin"]))

    @property
    def happens(self) -> list[str]:
        """Names of the calls of this box."""
        return list(self.constants["Happens"])

    @property
    def texts(self) -> tuple[tuple[int, ...], ...]:
        """What requests ask for."""
        return TEXTS[self.constants["Text"]]

    def config(self) -> CacheConfig:
        """One tick is one ms."""
        return CacheConfig(ttl=self.constants["TTL"], branches=self.constants["Branches"])


def read_cache_box(path: Path) -> CacheBox:
    """The box of one .cfg."""
    text = path.read_text()
    constants = {key: read_value(value) for key, value in re.findall(r"^    (\w+) = (.*)$", text, re.MULTILINE)}
    constants.update(re.findall(r"^    (Text) <- (\w+)$", text, re.MULTILINE))
    return CacheBox(path.stem, constants)


class World:
    """A cache, the time, and the locks of the requests that run."""

    def __init__(self, box: CacheBox, make: Callable[[CacheConfig], SessionCache]) -> None:
        self.box = box
        self.cache = make(box.config())
        self.now = 0
        self.pins: dict[str, Lock] = {}
        self.gone: Node | None = None  # a node that was here once

    def image(self, known: dict[Facts, State]) -> State:
        """The specification's state; `known` are those that were written down before."""
        facts = facts_of(self.cache, self.now, self.pins, self.box.names)
        found = known.get(facts)
        if found is None:
            found = known[facts] = state_of(cache_as_tla(facts, self.box.names))
        return found

    def calls(self) -> list[Call]:
        """Every call that may come now."""
        here, nodes = self.box, list(nodes_of(self.cache))
        found: list[Call] = []
        for name in here.happens:
            found += self._arguments(name, nodes)
        return found

    def _arguments(self, name: str, nodes: list[Name]) -> Iterator[Call]:
        names, spaces = self.box.names, self.box.constants["Spaces"]
        match name:
            case "Match" | "Insert":
                yield from product([name], spaces, self.box.texts)
            case "Lock":  # of what a match may find
                alive = [n for n in nodes if not n[0] or not self.cache.is_dead(VersionKey(EPOCH, n[0]))]
                yield from product([name], [p for p in names.pins if p not in self.pins], alive)
            case "Unlock":
                yield from product([name], self.pins)
            case "Open":
                yield from product([name], names.sessions, spaces)
            case "Register":
                yield from product([name], names.sessions, [*nodes, None])
            case "Aborted":
                yield from product([name], names.sessions, nodes, ["aborted", "streaming"])
            case "Close":
                yield from product([name], names.sessions)
            case "EndOwner":
                yield from product([name], names.owners)
            case "Tick":
                yield from product([name], range(1, self.box.constants["TTL"] + 1))
            case "Evict" | "Flush":
                yield (name,)
            case _:
                yield from ((name, VersionKey(EPOCH, v), *said) for v in names.versions for said in SAID[name])

    def do(self, call: Call) -> bool:
        """Carry it out; whether it was not refused."""
        before = nodes_of(self.cache) if call[0] in (*NAMING_A_NODE, *TAKING_NODES) else {}
        done = self._do(call, before)
        if call[0] in TAKING_NODES:
            self.gone = next((node for node in before.values() if node.parent is None), self.gone)
        return done

    def _do(self, call: Call, nodes: Mapping[Name, Node]) -> bool:
        cache = self.cache
        match call:
            case "Match", int(space), text:
                cache.match(text, self.box.names.version(space))
            case "Insert", int(space), text:
                return cache.insert(text, self.box.names.version(space)).ok
            case "Lock", str(pin), name:
                self.pins[pin] = cache.lock(nodes[name])
            case "Unlock", str(pin):
                cache.unlock(self.pins.pop(pin))
            case "Open", SessionKey() as session, int(space):
                return cache.open(session, self.box.names.version(space), self.now).ok
            case "Register", SessionKey() as session, name:
                node = self.gone if name is None else nodes[name]
                return node is not None and cache.register(session, node, self.now).ok
            case "Aborted", SessionKey() as session, name, str(why):
                return cache.register(session, nodes[name], self.now, **{why: True}).ok
            case "Close", SessionKey() as session:
                cache.close(session)
            case "EndOwner", str(owner):
                cache.end_owner(EPOCH, owner)
            case "Tick", int(ticks):
                self.now += ticks
                cache.tick(self.now)
            case ("Evict",):
                assert len(cache.evict(1).victims) <= 1
            case ("Flush",):
                cache.flush()
            case _, VersionKey() as version, V() as state, int(refs):
                cache.set_version(version, state, refs)
        return True


Future: TypeAlias = tuple[str, State]


def walk_cache(
    box: CacheBox, make: Callable[[CacheConfig], SessionCache] = SessionCache, max_states: int = 20_000
) -> Graph:
    """The cache's graph in the specification's terms: every state, and where each call leads.

    Raises TwoFaced when a cache that came to a state by another way goes on differently.
    """

    known: dict[Facts, State] = {}

    def at(calls: tuple[Call, ...]) -> World:
        world = World(box, make)
        for call in calls:
            world.do(call)
        return world

    def futures(state: State, way: tuple[Call, ...]) -> list[tuple[Call, State]]:
        world = at(way)
        assert world.image(known) == state
        assert check(world.cache) == [], way
        found = []
        for call in world.calls():
            done = world.do(call)
            target = world.image(known)
            if done:
                found.append((call, target))
            else:
                assert target == state, f"{call} was refused and changed something, after {way}"
            if target != state:
                world = at(way)
        return found

    first = at(()).image(known)
    ways: dict[State, tuple[Call, ...]] = {first: ()}
    other_ways: dict[State, tuple[Call, ...]] = {}
    steps: dict[State, frozenset[Future]] = {}
    todo = deque([first])
    while todo:
        state = todo.popleft()
        found = futures(state, ways[state])
        steps[state] = frozenset((call[0], target) for call, target in found if target != state)
        for call, target in found:
            if target not in ways:
                ways[target] = (*ways[state], call)
                todo.append(target)
                assert len(ways) <= max_states, f"{box.name} has more than {max_states} states"
            elif len(ways[state]) >= len(ways[target]):  # by another way, and a longer one
                other_ways[target] = (*ways[state], call)
    for state, way in list(other_ways.items())[::ASKED_AGAIN]:
        again = frozenset((call[0], target) for call, target in futures(state, way) if target != state)
        if again != steps[state]:
            raise TwoFaced(f"{box.name}: {ways[state]}\nand {way}\ndiffer by {sorted(again ^ steps[state])[0]}")
    return Graph(frozenset({first}), steps)
