"""What it costs an owner's own guard to say that a request may be sent."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from random import Random

from lorafsm.dispatch import Guard, dispatch_step, may_dispatch, new_guard
from lorafsm.dispatch import records as d
from lorafsm.identity import SessionKey, VersionKey
from lorafsm.outcomes import Binding
from tests.benchmarks.figures import Figure, Goal
from tests.benchmarks.fleet import EPOCH, OWNERS, START, owner_name
from tests.benchmarks.sizes import Sizes
from tests.benchmarks.timing import Stopwatch, gc_frozen

GOALS = {"dispatch.may_dispatch.us": Goal(3)}
_LEASE = 30_000
_A_TURN = 20


def figures(sizes: Sizes) -> Iterator[Figure]:
    """The median, with one owner's share of the largest number of live sessions."""
    keys = [SessionKey(EPOCH, owner_name(0), sequence) for sequence in range(max(sizes.live) // OWNERS)]
    guard = _with_sessions(keys)
    random, watch = Random(0), Stopwatch()
    with gc_frozen():
        for _ in range(sizes.rounds):
            asked = random.choices(keys, k=_A_TURN)
            watch.time("ask", lambda key: may_dispatch(guard, key, START), asked)
    assert all(isinstance(may_dispatch(guard, key, START), Binding) for key in asked)
    yield Figure("dispatch.may_dispatch.us", watch.median_us("ask"), "µs")


def _with_sessions(keys: list[SessionKey]) -> Guard:
    version = VersionKey(EPOCH, 1)
    story: list[d.Event] = [d.LeaseRenewed(sent=START, lease=_LEASE)]
    for key in keys:
        binding = Binding(key, version, "relax_policy_lora@bench-1-aaaaaaaaaaaa", "a" * 64)
        story += [d.Opened(session=key), d.Bound(session=key, binding=binding)]
    return reduce(lambda g, event: dispatch_step(g, event).guard, story, new_guard(EPOCH, owner_name(0)))
