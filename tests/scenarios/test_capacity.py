"""Scenarios C: capacity.  Each test is named by the scenario's number and title."""

from __future__ import annotations

import pytest

from lorafsm import publisher, reclaimer
from lorafsm.errors import InvalidField
from lorafsm.orders import Unload
from lorafsm.records import Config
from tests.core.story import World


def test_S36_third_version():
    w = World(capacity=2).boot("A")
    w.bind_first("s")
    w.publish("B")
    registry = w.r
    assert w.reserve("C", token="third") == "CAPACITY_ERROR"
    assert w.effects == ()
    assert w.r is registry
    assert publisher.next_orders(w.r, "third", w.now) == ()
    assert (w.version("C"), w.used, w.default) == (None, 2, "B")


def test_S37_load_before_unload_needs_a_spare_slot():
    with pytest.raises(InvalidField) as caught:
        Config(capacity=2, engine_slots=2)
    assert caught.value.field == "engine_slots"
    assert Config(capacity=2, engine_slots=3).engine_slots == 3


def test_S39_base_traffic_takes_a_slot_the_registrys_part():
    with pytest.raises(InvalidField) as caught:
        Config(capacity=2, engine_slots=2)
    assert "capacity + 1" in caught.value.message
    assert "base model" in caught.value.message


def test_S40_accumulation():
    w = World(capacity=2, owner_lease=10**9)
    resident: dict[str, set[str]] = {"E0": set(), "E1": set()}
    unloads = {"E0": 0, "E1": 0}
    sizes = []
    for n in range(1, 501):
        v = f"v{n}"
        w.checked = n % 25 == 0  # they look at every version that ever was
        if n > 2:  # the version before the default: its session has ended
            old = f"v{n - 2}"
            w.close_and_release(f"s{n - 2}")
            assert w.claim_reclaim(old, f"r{n}") == "OK"
            for order in reclaimer.next_orders(w.r, w.now):
                assert isinstance(order, Unload)
                unloads[order.engine] += 1
                resident[order.engine].remove(old)
                assert w.unloaded(order.engine, f"r{n}") == "OK"
            assert w.version(old) == "RECLAIMED"
        w.reserve(v)
        w.store(v)
        for e in ("E0", "E1"):
            w.prepared(e)
            w.ready(e)
            resident[e].add(v)
            assert len(resident[e]) <= 2
            assert len(w.r.engines[e].residents) <= 2
        assert w.commit(v) == "OK"
        assert w.bind_first(f"s{n}") == v
        w.names.clear()
        owner = w.r.owners["o1"]
        sizes.append((len(owner.sessions), len(owner.held), len(owner.gaps), w.used, len(w.r.repairs)))
    assert unloads == {"E0": 498, "E1": 498}
    assert resident["E0"] == {"v499", "v500"}
    assert max(sizes[10:]) == max(sizes[:10])  # only what an epoch must remember of a version grows


def test_S42_capacity_refusal_is_not_a_failure():
    w = World(capacity=2).boot("A")
    w.bind_first("s")
    w.publish("B")
    registry = w.r
    answers = set()
    for _rank in range(10):
        assert w.reserve("C") == "CAPACITY_ERROR"
        answers.add((w.said.code, w.said.reason))
    assert len(answers) == 1  # every rank gets the same
    assert w.r is registry
    w.close_and_release("s")
    w.reclaim("A")
    w.publish("C")
    assert w.default == "C"
