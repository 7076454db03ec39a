"""`step` is a function: the same for the same events, in any process, without a trace on what went in."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from immutables import Map

from lorafsm.identity import SessionKey
from lorafsm.records import Config, Registry, new_registry
from lorafsm.registry import step
from lorafsm.registry.view import blockers, routable
from tests.core.canonical import canonical
from tests.core.likely import KINDS, at, field_names, filler, likely, wrong_values
from tests.core.story import EPOCH, World
from tests.core.test_stateful import GENTLE, TIMES, random_run

ROOT = Path(__file__).parents[2]
SEEDS = range(1, 7)
STEPS = 150


def walk(seed: int, steps: int) -> Iterator[tuple[Registry, Any]]:
    """A registry and the event that comes to it, again and again."""
    rng = random.Random(seed)
    r = random_run(seed, 60).r
    for fresh in range(10_000, 10_000 + steps):
        kind = rng.choice([*KINDS, *GENTLE])
        event = at(rng.choice(likely(r, kind, fresh) or [filler(kind)]), r.now + rng.choice(TIMES))
        if rng.random() < 0.2:
            name = rng.choice(field_names(event))
            event = evolve(event, **{name: rng.choice(wrong_values(r, fresh)[name])})
        yield r, event
        r = step(r, event).registry


def fingerprint() -> str:
    """Everything that these walks see, as one digest."""
    h = hashlib.sha256()
    for seed in SEEDS:
        for r, event in walk(seed, STEPS):
            done = step(r, event)
            h.update(canonical((event, done.outcome, done.effects, str(done.outcome))).encode())
        h.update(canonical(done.registry).encode())
        h.update(canonical((blockers(done.registry, 10**9), [routable(r, key) for key in sorted(r.versions)])).encode())
    return h.hexdigest()


def test_processes_that_hash_differently_agree():
    program = "from tests.core.test_determinism import fingerprint; print(fingerprint())"
    seen = set()
    for hash_seed in ("1", "2", "4294967295"):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        assert done.returncode == 0, done.stderr
        seen.add(done.stdout.strip())
    assert len(seen) == 1
    assert len(seen.pop()) == 64


@pytest.mark.parametrize("seed", SEEDS)
def test_a_step_leaves_what_went_in_as_it_was(seed: int):
    for r, event in walk(seed, STEPS):
        before = canonical(r), canonical(event)
        done = step(r, event)
        assert (canonical(r), canonical(event)) == before
        again = step(r, event)
        assert again == done
        assert canonical(again.registry) == canonical(done.registry)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_replay_of_the_log_gives_the_same_registry(seed: int):
    story = list(walk(seed, STEPS))
    r = story[0][0]
    for before, event in story:
        assert r == before
        r = step(r, event).registry


def test_refusals_play_no_part():
    w = World().boot("A")
    w.bind_first("s")
    w.reserve("A", bytes_of="other")
    w.wait(500)
    w.claim_reclaim("A")
    w.publish("B")
    w.commit("B", token="nobodys")
    w.close_and_release("s")
    r = new_registry(EPOCH, Config())
    for event, outcome in w.log:
        if outcome.ok:
            r = step(r, event).registry
    assert r == w.r


class CountedSessions:
    """Stands in for an owner's map of sessions: answers like it, and counts every walk over it."""

    walks = 0

    def __init__(self, inner: Map) -> None:
        self.inner = inner

    def get(self, *args: Any) -> Any:
        return self.inner.get(*args)

    def __getitem__(self, key: int) -> Any:
        return self.inner[key]

    def __contains__(self, key: int) -> bool:
        return key in self.inner

    def __len__(self) -> int:
        return len(self.inner)

    def set(self, key: int, value: Any) -> CountedSessions:
        return CountedSessions(self.inner.set(key, value))

    def delete(self, key: int) -> CountedSessions:
        return CountedSessions(self.inner.delete(key))

    def _walk(self, walk: Any) -> Any:
        CountedSessions.walks += 1
        return walk

    def __iter__(self) -> Iterator[int]:
        return self._walk(iter(self.inner))

    def items(self) -> Any:
        return self._walk(self.inner.items())

    def values(self) -> Any:
        return self._walk(self.inner.values())

    def keys(self) -> Any:
        return self._walk(self.inner.keys())

    def __eq__(self, other: object) -> bool:
        return self._walk(isinstance(other, CountedSessions) and self.inner == other.inner)

    __hash__ = None  # type: ignore[assignment]


def with_counted_sessions(r: Registry) -> Registry:
    owners = r.owners
    for name, owner in r.owners.items():
        owners = owners.set(name, evolve(owner, sessions=CountedSessions(owner.sessions)))
    return evolve(r, owners=owners)


def crowd() -> Iterator[Registry]:
    """States of one life in which many sessions hold A and B; between them every kind of event changes something."""
    w = World(capacity=3, engine_slots=4, owners=["o1", "o2"], max_version_lag=2, owner_lease=10, driver_lease=10)
    w.boot("A")
    for owner in ("o1", "o2"):
        for n in range(40):
            w.bind_first(f"s{n}", owner)
    w.publish("B")
    for n in range(40, 80):
        w.bind_first(f"s{n}", "o1")
    yield w.r
    w.owner_up("o3")
    w.reserve("C", buckets=1)
    yield w.r  # RESERVED, the artifact not stored, o3 without sessions
    w.prepared("E0")
    w.prepared("E1")
    yield w.r
    w.authorize(0)
    yield w.r
    w.store("C")
    w.bucket_done("E0", 0)
    w.bucket_done("E1", 0)
    yield w.r
    w.ready("E0")
    w.ready("E1")
    yield w.r
    w.engine_dead("E1")
    yield w.r
    w.abort("C")
    yield w.r  # E0 is not clean yet
    w.engine_remove("E1")
    w.cleaned("E0")
    w.join("E1", inc=2)
    yield w.r  # E1 lacks A and B
    w.order_repair("A", "E1")
    yield w.r
    w.repair("B", "E1")
    w.publish("D")  # A is two behind: revoked
    yield w.r
    w.claim_reclaim("A")
    w.wait(50)
    yield w.r


@pytest.mark.parametrize("kind", KINDS)
def test_no_step_walks_over_the_sessions(kind: str):
    CountedSessions.walks = 0
    changed = 0
    for r in map(with_counted_sessions, crowd()):
        for event in likely(r, kind, 5_000):
            done = step(r, at(event, r.now + 50))
            changed += done.registry is not r
    assert CountedSessions.walks == 0
    assert changed


def test_the_stand_in_does_count():
    r = with_counted_sessions(next(crowd()))
    CountedSessions.walks = 0
    assert list(r.owners["o1"].sessions.items())
    assert SessionKey(EPOCH, "o1", 0).sequence in r.owners["o1"].sessions
    assert CountedSessions.walks == 1
