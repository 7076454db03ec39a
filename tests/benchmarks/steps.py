"""What one step costs with few and with many live sessions, and how much of that the maps cost by themselves.

Worlds of every size take turns in one run.  In each turn new sessions open and bind, as many random ones close, so
the size stays; random live ones are asked whether they may dispatch.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from immutables import Map

from lorafsm import events as ev
from lorafsm.holders import BLOCK_BITS
from lorafsm.registry import step
from lorafsm.registry.view import may_dispatch
from tests.benchmarks.figures import Figure, Goal
from tests.benchmarks.fleet import (
    COMMIT_NEXT,
    OWNERS,
    START,
    accepted,
    published_registry,
    session_key,
)
from tests.benchmarks.sizes import Sizes
from tests.benchmarks.timing import Stopwatch, gc_frozen

OPERATIONS = ("open", "bind_first", "may_dispatch", "begin_close", "close", "commit")
_OF_SESSIONS = "open bind_first may_dispatch begin_close close".split()
_A_TURN = 16  # sessions that come and go, one per owner

GOALS = {
    "step.bind_first.us": Goal(15),
    "step.close.us": Goal(15),
    "step.may_dispatch.us": Goal(3),
    **{f"step.{operation}.flatness": Goal(1.5) for operation in OPERATIONS},
}


class World:
    """A registry with `live` bound sessions; of each owner, `gaps` sequences were passed over and never used."""

    def __init__(self, live: int, random: Random, gaps: int = 0) -> None:
        self.registry = published_registry()
        first = 2 * gaps * OWNERS
        self.live = list(range(first, first + live))
        self.next = first + live
        self._random = random
        for number in range(first):
            if number // OWNERS % 2:
                self.registry = accepted(self.registry, ev.CloseAndRelease(session=session_key(number), now=START))
        for number in self.live:
            self.registry = accepted(self.registry, ev.BindFirst(session=session_key(number), now=START + number // 10))

    def take_turn(self, watch: Stopwatch, size: object) -> None:
        """Sessions come, ask and go."""
        now = START + self.next // 10
        new = range(self.next, self.next + _A_TURN)
        self.next += _A_TURN
        old = [self._leave() for _ in range(_A_TURN)]
        asked = [session_key(number) for number in self._random.choices(self.live, k=_A_TURN)]
        self.live += new
        come, go = [session_key(number) for number in new], [session_key(number) for number in old]
        watch.time(("open", size), self._step, [ev.Open(session=key, now=now) for key in come])
        watch.time(("bind_first", size), self._step, [ev.BindFirst(session=key, now=now) for key in come])
        watch.time(("may_dispatch", size), self._ask, asked)
        watch.time(("begin_close", size), self._step, [ev.BeginClose(session=key, now=now) for key in go])
        watch.time(("close", size), self._step, [ev.CloseAndRelease(session=key, now=now) for key in go])
        watch.time(("commit", size), self._step_without_effect, [COMMIT_NEXT] * _A_TURN)

    def check(self) -> None:
        """The turns did what they were to do: nothing was refused on the way."""
        assert self.registry.versions[self.registry.default].session_refs == len(self.live)
        assert all(may_dispatch(self.registry, session_key(number)).ok for number in self.live[-3:])
        assert step(self.registry, COMMIT_NEXT).outcome.ok

    def _leave(self) -> int:
        place = self._random.randrange(len(self.live))
        self.live[place], self.live[-1] = self.live[-1], self.live[place]
        return self.live.pop()

    def _step(self, event: ev.Event) -> None:
        self.registry = step(self.registry, event).registry

    def _step_without_effect(self, event: ev.Event) -> None:
        step(self.registry, event)

    def _ask(self, key: object) -> None:
        may_dispatch(self.registry, key)


class BareMaps:
    """The same changes to maps of the same sizes as a World's, and nothing else: what any record in a map costs."""

    def __init__(self, live: int, random: Random) -> None:
        each = live // OWNERS + 1
        self.sessions = [Map((sequence, (sequence,)) for sequence in range(each)) for _ in range(OWNERS)]
        self.blocks = [Map((block, (block,)) for block in range((each >> BLOCK_BITS) + 1)) for _ in range(OWNERS)]
        self.next = [each] * OWNERS
        self.live = [list(range(each)) for _ in range(OWNERS)]
        self._random = random

    def take_turn(self, watch: Stopwatch, size: object) -> None:
        """As many entries come and go as sessions in a turn of a World."""
        owners = range(OWNERS)
        new = [(owner, self.next[owner]) for owner in owners]
        old = [(owner, self._leave(owner)) for owner in owners]
        asked = [(owner, self._random.choice(self.live[owner] or [0])) for owner in owners]
        for owner, sequence in new:
            self.live[owner].append(sequence)
            self.next[owner] += 1
        watch.time(("open", size), self._put, new)
        watch.time(("bind_first", size), self._bind, new)
        watch.time(("may_dispatch", size), self._ask, asked)
        watch.time(("begin_close", size), self._put, old)
        watch.time(("close", size), self._close, old)
        watch.time(("commit", size), self._nothing, new)

    def _leave(self, owner: int) -> int:
        live = self.live[owner]
        place = self._random.randrange(len(live))
        live[place], live[-1] = live[-1], live[place]
        return live.pop()

    def _put(self, entry: tuple[int, int]) -> None:
        owner, sequence = entry
        sessions = self.sessions[owner]
        sessions.get(sequence)
        self.sessions[owner] = sessions.set(sequence, entry)

    def _bind(self, entry: tuple[int, int]) -> None:
        owner, sequence = entry
        sessions, blocks, block = self.sessions[owner], self.blocks[owner], sequence >> BLOCK_BITS
        sessions.get(sequence)
        blocks.get(block)
        self.sessions[owner], self.blocks[owner] = sessions.set(sequence, entry), blocks.set(block, entry)

    def _ask(self, entry: tuple[int, int]) -> None:
        self.sessions[entry[0]].get(entry[1])

    def _close(self, entry: tuple[int, int]) -> None:
        owner, sequence = entry
        sessions, blocks, block = self.sessions[owner], self.blocks[owner], sequence >> BLOCK_BITS
        sessions.get(sequence)
        blocks.get(block)
        self.sessions[owner], self.blocks[owner] = sessions.delete(sequence), blocks.set(block, entry)

    def _nothing(self, entry: tuple[int, int]) -> None:
        """A commit changes no map that grows with the sessions."""


def figures(sizes: Sizes) -> Iterator[Figure]:
    """Medians at the largest size, at every size, and the growth between the smallest and the largest."""
    steps, maps = Stopwatch(), Stopwatch()
    worlds = {live: World(live, Random(live)) for live in sizes.live}
    bare = {live: BareMaps(live, Random(live)) for live in sizes.live}
    gapped = World(sizes.live[0], Random(0), sizes.gaps)
    with gc_frozen():
        for _ in range(sizes.rounds):
            gapped.take_turn(steps, "gapped")
            for size in sizes.live:
                worlds[size].take_turn(steps, size)
                bare[size].take_turn(maps, size)
    for world in (*worlds.values(), gapped):
        world.check()
    smallest, largest = sizes.live[0], sizes.live[-1]
    for operation in OPERATIONS:
        yield Figure(f"step.{operation}.us", steps.median_us((operation, largest)), "µs")
        for size in sizes.live:
            yield Figure(f"step.{operation}.live_{size}.us", steps.median_us((operation, size)), "µs")
    for operation in _OF_SESSIONS:
        without, gaps = (steps.median_us((operation, world)) for world in (smallest, "gapped"))
        yield Figure(f"step.{operation}.gaps_1000.us", gaps, "µs", "no gaps", without)
    for operation in OPERATIONS:
        few, many = steps.median_us((operation, smallest)), steps.median_us((operation, largest))
        map_few, map_many = maps.median_us((operation, smallest)), maps.median_us((operation, largest))
        growth = max(0.0, map_many - map_few)
        yield Figure(f"step.{operation}.growth", many / few, "×", "bare Map", map_many / map_few)
        yield Figure(f"step.{operation}.map_growth.us", growth, "µs")
        yield Figure(f"step.{operation}.flatness", (many - growth) / few, "×")
