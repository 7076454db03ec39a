"""Garbage: never an exception, malformed input is refused by the name of its field, and a refusal changes nothing."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from attrs import evolve

from lorafsm.events import Reserve
from lorafsm.identity import SessionKey, VersionKey
from lorafsm.manifest import Plan
from lorafsm.outcomes import Code, Refusal
from lorafsm.records import Registry, Resident, new_registry
from lorafsm.registry import step
from tests.core.canonical import canonical
from tests.core.likely import KINDS, at, field_names, filler, likely, wrong_values
from tests.core.story import EPOCH, digest_of
from tests.core.test_stateful import TIMES, random_run

MALFORMED_EVENTS = 150_000
STRANGE_EVENTS = 150_000


class Text(str):
    """A subclass may lie about anything."""


class Number(int):
    def __lt__(self, other: object) -> bool:
        raise AssertionError("asked a foreign number")


class Hostile:
    """Raises whatever is asked of it."""

    def _no(self, *args: object) -> Any:
        raise AssertionError("asked a foreign object")

    __eq__ = __hash__ = __lt__ = __len__ = __iter__ = __bool__ = __getitem__ = __str__ = __repr__ = _no


class LaterReserve(Reserve):
    """Not one of the protocol's events, though it looks like one."""


BAD_TEXT = ["a\nb", "\x00", "x" * 100_000, "\ud800", "\u202e", Text("e1"), b"e1"]
FOREIGN = [None, [], {}, set(), object(), Hostile(), Reserve, lambda: None, 1.5, float("nan"), 1j, ("e1", 1), ...]
BAD_NUMBERS = [-1, -(2**70), 2**63, 2**5_000, True, Number(1), "1", 1.0]
BAD_KEYS = [VersionKey(e, n) for e, n in (("", 1), ("e/1", 1), (None, 1), ("e1", -1), ("e1", 2**64), ("e1", []))]
BAD_SESSIONS = [SessionKey(*p) for p in (("e1", "", 0), ("e1", "o/1", 0), ([], "o1", 0), ("e1", "o1", -1))]
GOOD_DIGEST = digest_of("A")
BAD_PLANS = [Plan(-1, GOOD_DIGEST), Plan(0, ""), Plan(True, GOOD_DIGEST), Plan(1, None), Plan([], {})]
BAD_RESIDENTS = [
    frozenset({Resident(VersionKey("e1", -1), GOOD_DIGEST, 1)}),
    frozenset({Resident(VersionKey("e1", 1), "A", 1)}),
    frozenset({Resident(VersionKey("e1", 1), GOOD_DIGEST, -1)}),
    frozenset({Resident(None, None, None)}),
    frozenset({"relax_policy_lora@e1-1-0123456789ab"}),
    {Resident(VersionKey("e1", 1), GOOD_DIGEST, 1)},
]
NO_NUMBER = [*FOREIGN, *BAD_NUMBERS, *BAD_TEXT]
NO_ID = [*FOREIGN, *BAD_TEXT, "", "a/b", "a b", "-a", 1]
NO_TEXT = [*FOREIGN, *BAD_TEXT, 1]
NO_FLAG = [*FOREIGN, 0, 1, "true", ""]
NO_KEY = [*FOREIGN, *BAD_TEXT, *BAD_KEYS, *BAD_SESSIONS]
MALFORMED: dict[str, list[Any]] = {
    **dict.fromkeys("now number incarnation seq bucket expected_revision tensors nbytes".split(), NO_NUMBER),
    **dict.fromkeys("token engine operation_id owner reclaim_id".split(), NO_ID),
    **dict.fromkeys("reason label evidence base_fingerprint".split(), NO_TEXT),
    **dict.fromkeys("probe_ok observed_absent".split(), NO_FLAG),
    **dict.fromkeys(("key", "session"), NO_KEY),
    "handover": [*(value for value in FOREIGN if not isinstance(value, Hostile)), *BAD_TEXT, "a/b", "-a", 0],
    "digest": [*FOREIGN, *BAD_TEXT, "", "0" * 63, "A" * 64, "g" * 64, GOOD_DIGEST + "\n", 1],
    "plan": [*FOREIGN, *BAD_PLANS, 3],
    "residents": [*FOREIGN, *BAD_RESIDENTS, frozenset({None}), frozenset({1})],
    "foreign": [*FOREIGN, frozenset({"a\nb"}), frozenset({1, "a"}), frozenset({None}), {"a"}, ["a"], "a"],
}


def registries() -> list[Registry]:
    """Registries in many states, the empty one first."""
    return [new_registry(EPOCH), *(random_run(seed, 40 + 10 * seed).r for seed in range(1, 15))]


def samples(r: Registry) -> list[Any]:
    """Well-formed events of every kind."""
    return [event for kind in KINDS for event in [*likely(r, kind, 20_000), filler(kind)]]


def refused(r: Registry, event: Any, code: Code, field: str) -> None:
    done = step(r, event)
    assert isinstance(done.outcome, Refusal)
    assert (done.outcome.code, done.outcome.field) == (code, field)
    assert done.outcome.reason
    assert done.registry is r
    assert done.effects == ()


def test_every_field_of_every_event_has_malformed_values():
    assert {name for kind in KINDS for name in field_names(filler(kind))} == set(MALFORMED)


@pytest.mark.slow
def test_a_malformed_field_is_refused_by_name():
    rng = random.Random(20)
    pool = [(r, samples(r)) for r in registries()]
    before = [canonical(r) for r, _ in pool]
    seen: Counter[tuple[str, str]] = Counter()
    for _ in range(MALFORMED_EVENTS):
        r, events = rng.choice(pool)
        event = rng.choice(events)
        name = rng.choice(field_names(event))
        refused(r, evolve(event, **{name: rng.choice(MALFORMED[name])}), Code.BAD_INPUT, name)
        seen[event.name, name] += 1
    assert set(seen) == {(kind, name) for kind in KINDS for name in field_names(filler(kind))}
    assert [canonical(r) for r, _ in pool] == before


def test_a_handover_of_a_foreign_type_is_not_asked():
    refused(new_registry(EPOCH), evolve(filler("takeover"), handover=Hostile()), Code.BAD_INPUT, "handover")


@pytest.mark.slow
def test_strange_events_are_answered_and_a_refusal_changes_nothing():
    """Unknown ids, other epochs, tokens of others, old numbers and incarnations, up to four at once."""
    rng = random.Random(21)
    codes: Counter[Code] = Counter()
    pool = registries()
    for start in range(0, STRANGE_EVENTS, 100):
        r = pool[start // 100 % len(pool)]
        events, wrong, known = samples(r), wrong_values(r, 20_000), canonical(r)
        first = r
        for _ in range(100):
            event = at(rng.choice(events), r.now + rng.choice(TIMES))
            names = rng.sample(field_names(event), k=rng.randint(0, min(4, len(field_names(event)))))
            event = evolve(event, **{name: rng.choice(wrong[name]) for name in names})
            done = step(r, event)
            codes[done.outcome.code] += 1
            if isinstance(done.outcome, Refusal):
                assert done.registry is r
                assert done.effects == ()
            r = done.registry
        assert canonical(first) == known
    assert len(codes) > 30
    assert codes[Code.OTHER_EPOCH]


@pytest.mark.parametrize("name", ["key", "session"])
def test_another_epoch_is_refused_by_name(name: str):
    foreign = {"key": VersionKey("e2", 1), "session": SessionKey("e2", "o1", 0)}[name]
    seen = set()
    for r in registries():
        for event in samples(r):
            if name in field_names(event):
                refused(r, evolve(event, **{name: foreign}), Code.OTHER_EPOCH, "epoch")
                seen.add(event.name)
    assert seen == {kind for kind in KINDS if name in field_names(filler(kind))}


def test_what_is_no_event_is_refused():
    later = LaterReserve(key=VersionKey(EPOCH, 1), digest=GOOD_DIGEST, plan=Plan(0, GOOD_DIGEST), token="t")
    nothing = [
        None,
        "",
        "reserve",
        b"x",
        0,
        1.5,
        [],
        {},
        {"name": "reserve"},
        object(),
        Hostile(),
        Reserve,
        later,
        step,
    ]
    for r in registries():
        for thing in nothing:
            refused(r, thing, Code.BAD_INPUT, "event")


def test_numbers_at_the_edge_of_their_range_are_numbers():
    for r in registries():
        for event in samples(r):
            for name in {"now", "number", "incarnation", "seq", "bucket", "expected_revision"} & {*field_names(event)}:
                for value in (0, 2**63 - 1):
                    done = step(r, evolve(event, **{name: value}))
                    assert done.outcome.code != Code.BAD_INPUT or done.outcome.field != name or name == "bucket"
