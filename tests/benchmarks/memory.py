"""What sessions cost in memory, live and closed, as tracemalloc counts it.

Each is measured in a process of its own, with everything that the registry holds counted from its first event on.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from random import Random

from lorafsm import events as ev
from lorafsm.lifecycle import SessionState
from lorafsm.records import Registry
from lorafsm.registry.view import session_state
from tests.benchmarks.figures import Figure, Goal
from tests.benchmarks.fleet import OWNERS, START, accepted, published_registry, session_key
from tests.benchmarks.sizes import Sizes

GOALS = {name: Goal(2**20) for name in ("sessions.closed_1e6.bytes", "sessions.closed_1e6_gaps.bytes")}
_WINDOW = 1_000  # sessions alive at once
_GAP_EVERY = 1_000  # of each owner's sequences, one in this many is never used


def figures(sizes: Sizes) -> Iterator[Figure]:
    """Bytes of a registry after `closed` sessions have ended, and bytes per live session."""
    measured = (
        ("sessions.closed_1e6.bytes", after_closed, sizes.closed, 1, "B"),
        ("sessions.closed_1e6_gaps.bytes", after_gaps, sizes.closed, 1, "B"),
        ("sessions.live.bytes", with_live, sizes.held, sizes.held, "B/session"),
    )
    with ProcessPoolExecutor(2, mp_context=get_context("spawn"), max_tasks_per_child=1) as processes:
        running = [processes.submit(bytes_of, build, count) for _, build, count, _, _ in measured]
        for (name, _, _, per, unit), result in zip(measured, running, strict=True):
            yield Figure(name, result.result() / per, unit)


def bytes_of(build: Callable[[int], Registry], count: int) -> int:
    """Bytes that are held when nothing but the registry is left."""
    tracemalloc.start()
    registry = build(count)
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert registry.owners
    return held


def after_closed(count: int) -> Registry:
    """`count` sessions bound and closed, each owner's in any order; none is left."""
    registry = _come_and_go(published_registry(), range(count))
    assert session_state(registry, session_key(count - 1)) is SessionState.CLOSED
    assert not any(owner.sessions for owner in registry.owners.values())
    return registry


def after_gaps(count: int) -> Registry:
    """The same, but the first session of each owner stays, and one sequence in a thousand was never used."""
    registry = published_registry()
    for number in range(OWNERS):
        registry = accepted(registry, ev.BindFirst(session=session_key(number), now=START))
    every = min(_GAP_EVERY, max(2, count // OWNERS // 2))
    numbers = range(OWNERS, OWNERS + count * every // (every - 1))
    registry = _come_and_go(registry, (n for n in numbers if n // OWNERS % every != 1))
    assert all(owner.gaps and len(owner.sessions) == 1 for owner in registry.owners.values())
    return registry


def with_live(count: int) -> Registry:
    """`count` sessions bound, ten a millisecond."""
    registry = published_registry()
    for number in range(count):
        registry = accepted(registry, ev.BindFirst(session=session_key(number), now=START + number // 10))
    return registry


def _come_and_go(registry: Registry, numbers: Iterable[int]) -> Registry:
    random, live = Random(1), []
    for number in numbers:
        now = START + number // 10
        registry = accepted(registry, ev.BindFirst(session=session_key(number), now=now))
        live.append(number)
        if len(live) > _WINDOW:
            registry = accepted(registry, ev.CloseAndRelease(session=_taken(live, random), now=now))
    while live:
        registry = accepted(registry, ev.CloseAndRelease(session=_taken(live, random), now=registry.now))
    return registry


def _taken(live: list[int], random: Random):
    place = random.randrange(len(live))
    live[place], live[-1] = live[-1], live[place]
    return session_key(live.pop())
