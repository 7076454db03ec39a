"""Rollback: a resident RETIRED version is the default again, without a transfer (protocol rule 17)."""

from __future__ import annotations

from lorafsm.outcomes import RolledBack
from lorafsm.registry.view import routable
from tests.core.story import World


def two() -> World:
    w = World().boot("A")
    w.publish("B")
    return w


def test_a_rollback_is_a_switch_and_a_new_revision():
    w = two()
    w.bind_first("s")
    assert w.rollback("A", rev=2) == "OK"
    assert w.said == RolledBack(w.key("A"), 3, w.key("B"))
    assert (w.version("A"), w.version("B"), w.default, w.revision) == ("PUBLISHED", "RETIRED", "A", 3)
    assert w.wakes() == {"publisher", "reclaimer"}
    assert w.bind_first("s") == "B"
    assert w.bind_first("t") == "A"


def test_a_rollback_is_answered_the_same_for_ever():
    w = two()
    w.rollback("A", rev=2, op="op1")
    receipt = w.said
    w.rollback("B", rev=3, op="op2")
    w.claim_reclaim("A")
    registry = w.r
    assert w.rollback("A", rev=2, op="op1") == "OK"
    assert w.said == receipt
    assert w.r is registry
    assert (w.default, w.revision) == ("B", 4)
    assert w.rollback("B", rev=2, op="op1") == "OPERATION_CONFLICT"
    assert w.said.field == "operation_id"


def test_a_rollback_expects_the_revision_that_its_caller_saw():
    w = two()
    for rev in (1, 3):
        assert w.rollback("A", rev=rev) == "REVISION_CONFLICT"
        assert (w.said.default, w.said.revision) == (w.key("B"), 2)
    assert w.rollback("A", rev=2) == "OK"


def test_a_member_that_is_not_up_need_not_hold_it():
    w = two()
    w.bind_first("s")
    assert w.engine_dead("E1") == "OK"
    assert w.rollback("A") == "OK"
    assert routable(w.r, w.key("A")) == ("E0",)
    assert routable(w.r, w.key("C")) == ()  # nobody ever heard of it


def test_only_a_retired_version_is_rolled_back_to():
    w = two()
    assert w.rollback("C") == "UNKNOWN_VERSION"
    assert w.rollback("B") == "NOT_RETIRED"
    w.claim_reclaim("A")
    assert w.rollback("A") == "VERSION_GONE"
    w.unloaded("E0", "reclaim-A")
    w.unloaded("E1", "reclaim-A")
    assert w.rollback("A") == "VERSION_GONE"
    w.make_ready("C")
    assert w.rollback("C") == "NOT_RETIRED"
    w.abort("C")
    assert w.rollback("C") == "NOT_RETIRED"


def test_every_up_member_must_have_proved_it():
    w = two()
    w.engine_up("E1", holds=[w.resident("B")])  # A, which nobody holds, is gone there
    assert w.engine("E1") == "UP"
    assert w.rollback("A") == "NOT_RESIDENT"
    assert w.said.engines == ("E1",)
    assert (w.default, w.revision) == ("B", 2)


def test_a_silent_member_does_not_stand_in_the_way_and_is_repaired_later():
    w = two()
    w.engine_lost("E1")
    assert w.rollback("A") == "OK"
    w.engine_up("E1", holds=[w.resident("B")])
    assert w.engine("E1") == "REPAIRING"
    w.repair("A", "E1")
    assert w.engine("E1") == "UP"


def test_a_fleet_without_an_up_member_proves_nothing():
    w = two()
    w.engine_lost("E0")
    w.engine_lost("E1")
    assert w.rollback("A") == "NOT_RESIDENT"


def test_the_version_that_was_replaced_can_be_reclaimed_or_rolled_forward_to():
    w = two()
    w.rollback("A", op="op1")
    assert w.rollback("B", op="op2") == "OK"
    assert (w.default, w.revision) == ("B", 4)
    w.rollback("A", op="op3")
    w.reclaim("B")
    assert (w.used, w.default) == (1, "A")


def test_an_engine_that_lacks_only_the_replaced_version_is_up_again():
    w = two()
    w.engine_up("E1", holds=[w.resident("A")])
    assert w.engine("E1") == "REPAIRING"
    assert w.rollback("A") == "OK"
    assert w.engine("E1") == "UP"
