"""Scenarios D: reclaim.  Each test is named by the scenario's number and title."""

from __future__ import annotations

from lorafsm import reclaimer, repairer
from lorafsm.orders import Unload, UnloadStray
from tests.core.story import World


def two() -> World:
    w = World(capacity=2).boot("A")
    w.publish("B")
    return w


def test_S43_in_flight_request_blocks_unload():
    w = two()
    assert w.claim_reclaim("A", "r1") == "OK"
    assert w.unloaded("E1", "r1") == "OK"
    assert (w.version("A"), w.used, w.unload("A", "E0")) == ("RECLAIMING", 2, "ORDERED")  # r_long runs on E0
    assert w.reserve("C") == "CAPACITY_ERROR"
    assert w.unloaded("E0", "r1") == "OK"  # r_long ended
    assert (w.version("A"), w.used) == ("RECLAIMED", 1)
    registry = w.r
    for e in ("E0", "E1"):
        assert w.unloaded(e, "r1") == "OK"
    assert w.r is registry
    assert reclaimer.next_orders(w.r, w.now) == ()  # nothing more is ordered: one unload per engine
    assert w.reserve("C") == "OK"


def test_S44_leaked_engine_ref():
    w = two()
    w.claim_reclaim("A", "r1")
    w.unloaded("E1", "r1")
    w.wait(60_000)
    assert w.reclaim_unknown("E0", "r1") == "OK"
    (alarm,) = [effect for effect in w.effects if hasattr(effect, "text")]
    assert (alarm.code, "60000 ms" in alarm.text, "E0" in alarm.text) == ("RECLAIM_STUCK", True, True)
    assert (w.version("A"), w.unload("A", "E0"), w.used) == ("RECLAIMING", "UNKNOWN", 2)
    assert w.unloaded("E0", "r1", absent=False) == "NOT_ABSENT"
    assert w.reserve("C") == "CAPACITY_ERROR"
    assert "E0" in w.said.blockers[0].waits_for
    assert w.engine_up("E0", inc=1, holds=[w.resident("A"), w.resident("B")]) == "OK"
    assert w.version("A") == "RECLAIMING"
    assert w.engine_up("E0", inc=2) == "OK"
    assert (w.version("A"), w.used) == ("RECLAIMED", 1)


def test_S47_claim_reply_lost():
    w = two()
    assert w.claim_reclaim("A", "r1") == "OK"  # the reply is lost, or the reclaimer dies
    assert w.claim_reclaim("A", "r1") == "OK"
    assert w.said.reclaim_id == "r1"
    assert w.claim_reclaim("A", "a-new-reclaimers-id") == "OK"
    assert w.said.reclaim_id == "r1"
    orders = reclaimer.next_orders(w.r, w.now)
    assert [(type(o), o.engine, o.reclaim_id) for o in orders] == [(Unload, "E0", "r1"), (Unload, "E1", "r1")]
    assert reclaimer.next_orders(w.r, w.now) == orders


def test_S48_one_engine_cannot_confirm_the_unload():
    w = two()
    w.bind_first("s")
    w.claim_reclaim("A", "r1")
    assert w.unloaded("E0", "r1") == "OK"
    assert w.reclaim_unknown("E1", "r1") == "OK"
    assert (w.version("A"), w.unload("A", "E0"), w.unload("A", "E1")) == ("RECLAIMING", "UNLOADED", "UNKNOWN")
    assert (w.routable("B"), w.may_dispatch("s")) == ({"E0", "E1"}, "B")
    assert {(o.engine, o.reclaim_id) for o in reclaimer.next_orders(w.r, w.now) if isinstance(o, Unload)} <= {
        ("E1", "r1")
    }
    assert w.engine_up("E1", inc=2) == "OK"
    assert (w.version("A"), w.used) == ("RECLAIMED", 1)


def test_S50_late_request_revives_a_reclaimed_version():
    w = two()
    name = w.r.versions[w.key("A")].lora_name
    w.bind_first("old client")
    w.close_and_release("old client")
    w.reclaim("A")
    assert w.may_dispatch("old client") == "SESSION_CLOSED"
    assert w.routable("A") == set()
    assert w.engine_up("E0", holds=[w.resident("A"), w.resident("B")]) == "OK"
    assert w.strays("E0") == {name}
    assert (w.version("A"), w.routable("A")) == ("RECLAIMED", set())
    orders = [o for o in repairer.next_orders(w.r, w.now) if isinstance(o, UnloadStray)]
    assert [(o.engine, o.lora_name) for o in orders] == [("E0", name)]
    assert [o for o in repairer.next_orders(w.r, w.now) if isinstance(o, UnloadStray)] == orders  # under one key
    assert w.engine_up("E0", holds=[w.resident("B")]) == "OK"
    assert w.strays("E0") == set()


def test_S52_managed_version_evicted_by_someone_else():
    w = World().boot("A")
    w.bind_first("s")
    assert w.engine_up("E0", holds=[]) == "OK"
    assert (w.engine("E0"), w.routable("A")) == ("REPAIRING", {"E1"})
    assert (w.may_dispatch("s"), w.default, w.revision) == ("A", "A", 1)
    assert w.order_repair("A", "E0") == "OK"
    assert w.said.number == 2  # a number of its own, from the artifact
    assert w.repair_ready("E0", 2) == "OK"
    assert (w.engine("E0"), w.routable("A"), w.default, w.revision) == ("UP", {"E0", "E1"}, "A", 1)
