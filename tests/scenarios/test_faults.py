"""Scenarios E: engine restart, fleet, registry crash.  Each test is named by the scenario's number and title."""

from __future__ import annotations

from lorafsm.records import new_registry
from lorafsm.registry import step
from tests.core.story import World


def test_S54_engine_restart_after_commit():
    w = World(capacity=2).boot("A")
    w.bind_first("s_a")
    w.publish("B")
    w.bind_first("s_b")
    assert w.engine_up("E1", inc=2) == "OK"
    assert (w.routable("A"), w.routable("B"), w.engine("E1")) == ({"E0"}, {"E0"}, "REPAIRING")
    assert (w.may_dispatch("s_a"), w.may_dispatch("s_b")) == ("A", "B")
    w.repair("A", "E1")
    assert (w.routable("A"), w.routable("B"), w.engine("E1")) == ({"E0", "E1"}, {"E0"}, "REPAIRING")
    w.repair("B", "E1")
    assert (w.routable("A"), w.routable("B"), w.engine("E1")) == ({"E0", "E1"}, {"E0", "E1"}, "UP")
    assert (w.default, w.revision) == ("B", 2)


def test_S54_a_pending_reclaim_is_satisfied_by_the_death():
    w = World(capacity=2).boot("A")
    w.publish("B")
    w.claim_reclaim("A", "r1")
    w.unloaded("E0", "r1")
    assert w.version("A") == "RECLAIMING"
    assert w.engine_up("E1", inc=2) == "OK"
    assert (w.version("A"), w.unload("A", "E1"), w.used) == ("RECLAIMED", "UNLOADED", 1)


def test_S55_recovered_engine_gets_traffic_too_early():
    w = World().boot("A")
    w.publish("B")
    assert w.engine_up("E1", inc=2) == "OK"
    assert w.routable("B") == {"E0"}
    assert w.order_repair("B", "E1") == "OK"
    number = w.said.number
    assert w.routable("B") == {"E0"}
    assert w.repair_ready("E1", number, inc=1) == "ENGINE_RESTARTED"
    assert w.routable("B") == {"E0"}
    assert w.repair_ready("E1", number, inc=2) == "OK"
    assert w.routable("B") == {"E0", "E1"}


def test_S56_strays_after_a_registry_restart():
    old = "relax_policy_lora@e1-4-0123456789ab"
    w = World(engines=[], epoch="e2")
    assert w.join("E0", foreign=[old]) == "OK"
    assert w.strays("E0") == {old}
    w.boot("A")
    assert (w.routable("A"), w.strays("E0")) == ({"E0"}, {old})
    foreign = World(epoch="e1").boot("A").resident("A")
    assert w.engine_up("E0", holds=[w.resident("A"), foreign]) == "OK"
    assert len(w.strays("E0")) == 1  # the other epoch's adapter, listed with number and digest: no proof either
    assert w.engine_up("E0", holds=[w.resident("A")]) == "OK"
    assert w.strays("E0") == set()


def test_S57_crash_at_every_journal_point_the_registrys_part():
    """Replaying any prefix of S23 and S43 gives that prefix's state, and from each the life goes on."""
    w = World(capacity=2)
    w.boot("A")
    w.bind_first("S_old")
    w.begin("B")
    w.ready("E0")
    w.bind_first("S_mid")
    w.ready("E1")
    w.commit("B")
    w.bind_first("S_new")
    w.close_and_release("S_old")
    w.close_and_release("S_mid")
    w.claim_reclaim("A", "r1")
    w.unloaded("E1", "r1")
    w.unloaded("E0", "r1")
    prefixes = [new_registry("e1", w.r.config)]
    for event, _ in w.log:
        prefixes.append(step(prefixes[-1], event).registry)
    assert prefixes[-1] == w.r
    for cut in range(len(w.log) + 1):
        r = new_registry("e1", w.r.config)
        for event, outcome in w.log[:cut]:
            done = step(r, event)
            assert done.outcome == outcome
            r = done.registry
        assert r == prefixes[cut]
        for event, outcome in w.log[:cut]:  # what was acknowledged is acknowledged the same again
            if event.name in ("commit", "claim_reclaim"):
                again = step(r, event)
                assert (again.outcome, again.registry) == (outcome, r)
        for event, _ in w.log[cut:]:  # what was not is there wholly once it is said again
            r = step(r, event).registry
        assert r == w.r
