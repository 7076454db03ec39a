"""Takeover: a dead publisher never strands a slot (protocol rule 5)."""

from __future__ import annotations

import pytest

from lorafsm.outcomes import TakenOver
from tests.core.story import World


def begun() -> World:
    w = World(driver_lease=100).boot("A")
    w.begin("B")
    return w


def test_a_live_driver_is_not_taken_over():
    w = begun()
    assert w.takeover("B", token="t2") == "DRIVER_ALIVE"
    w.wait(99)
    assert w.takeover("B", token="t2") == "DRIVER_ALIVE"
    w.wait(1)
    assert w.takeover("B", token="t2") == "OK"


def test_progress_renews_the_drivers_lease():
    w = World(driver_lease=100).boot("A")
    w.reserve("B", buckets=1)
    for verb, args in ((w.prepared, ("E0",)), (w.prepared, ("E1",)), (w.authorize, (0,)), (w.bucket_done, ("E0", 0))):
        w.wait(90)
        assert verb(*args) == "OK"
        assert w.takeover("B", token="t2") == "DRIVER_ALIVE"
    w.wait(90)
    w.unknown("E1")  # silence is no progress
    w.wait(10)
    assert w.takeover("B", token="t2") == "OK"


def test_a_handover_needs_the_old_token_and_no_waiting():
    w = begun()
    assert w.takeover("B", token="t2", handover="not-it") == "DRIVER_ALIVE"
    assert w.takeover("B", token="t2", handover=w.tokens["B"]) == "OK"


def test_a_takeover_keeps_number_and_revision_and_fences_the_old_driver():
    w = begun()
    old = w.tokens["B"]
    w.wait(100)
    assert w.takeover("B", token="t2") == "OK"
    assert w.said == TakenOver(w.key("B"), 2, 1, all_ready=False)
    assert w.commit("B", token=old) == "BAD_TOKEN"
    assert w.abort("B", token=old) == "BAD_TOKEN"
    assert w.authorize(0, token=old) == "BAD_TOKEN"
    assert w.takeover("B", token="t3") == "DRIVER_ALIVE"  # the new driver has a lease of its own
    assert w.abort("B", token="t2") == "OK"
    assert w.version("B") == "ABORTED"
    assert w.abort("B", token=old) == "OK"  # the receipt of a finished attempt


@pytest.mark.parametrize("all_ready", [True, False])
def test_the_successor_commits_if_all_are_ready_and_else_aborts(all_ready: bool):
    w = begun()
    w.ready("E0")
    if all_ready:
        w.ready("E1")
    w.wait(100)
    assert w.takeover("B", token="t2") == "OK"
    assert w.said.all_ready is all_ready
    assert w.commit("B") == ("OK" if all_ready else "NOT_READY")
    if not all_ready:
        assert w.abort("B") == "OK"


def test_a_suspended_or_doomed_ready_is_not_all_ready():
    w = begun()
    w.ready("E0")
    w.ready("E1")
    w.engine_lost("E1")
    w.wait(100)
    w.takeover("B", token="t2")
    assert w.said.all_ready is False
    w.restart("E1")
    w.wait(100)
    w.takeover("B", token="t3")
    assert w.said.all_ready is False


def test_no_bucket_is_authorised_after_a_takeover():
    w = World(driver_lease=100).boot("A")
    w.reserve("B", buckets=2)
    w.prepared("E0")
    w.prepared("E1")
    w.authorize(0)
    w.takeover("B", token="t2", handover=w.tokens["B"])
    w.bucket_done("E0", 0)
    w.bucket_done("E1", 0)
    assert w.authorize(1) == "STALE_ATTEMPT"


def test_a_lost_reply_to_a_takeover_is_recovered():
    w = begun()
    w.wait(100)
    w.takeover("B", token="t2")
    receipt = w.said
    registry = w.r
    assert w.takeover("B", token="t2") == "OK"
    assert w.said == receipt
    assert w.r is registry
    w.abort("B")
    assert w.takeover("B", token="t2") == "OK"
    assert w.said == receipt


def test_there_is_nothing_to_take_over_but_an_open_attempt():
    w = World().boot("A")
    assert w.takeover("A", token="t2") == "STALE_ATTEMPT"
    assert w.takeover("B", token="t2") == "UNKNOWN_VERSION"
    w.fail("B")
    assert w.takeover("B", token="t2") == "STALE_ATTEMPT"


def test_a_token_of_an_operation_before_takes_nothing_over():
    w = begun()
    w.wait(100)
    assert w.takeover("B", token=w.tokens["A"]) == "OPERATION_CONFLICT"
    assert w.takeover("B", token=w.tokens["B"]) == "OPERATION_CONFLICT"
    assert w.said.field == "token"


def test_the_old_driver_still_reads_the_receipt_of_the_commit():
    w = begun()
    old = w.tokens["B"]
    w.ready("E0")
    w.ready("E1")
    w.takeover("B", token="t2", handover=old)
    w.commit("B")
    receipt = w.said
    assert w.commit("B", token=old) == "OK"
    assert w.said == receipt


def test_a_token_takes_one_attempt_over():
    w = begun()
    w.wait(100)
    assert w.takeover("B", token="t2") == "OK"
    w.abort("B")
    for engine in ("E0", "E1"):
        w.cleaned(engine)
    w.begin("C")
    w.wait(100)
    assert w.takeover("C", token="t2") == "OPERATION_CONFLICT"
    assert w.said.field == "token"
    assert w.takeover("C", token="t3") == "OK"


def test_a_permission_to_broadcast_renews_the_drivers_lease():
    w = World(driver_lease=100).boot("A")
    w.reserve("B", buckets=1)
    for engine in ("E0", "E1"):
        w.prepared(engine)
    w.wait(50)
    w.authorize(0)
    assert w.attempt("B").driver_until == w.now + 100


def test_a_first_answer_is_progress_also_after_a_silence():
    w = World(driver_lease=100).boot("A")
    w.reserve("B")
    w.unknown("E0")
    w.wait(50)
    assert (w.prepared("E0"), w.target("B", "E0")) == ("OK", "PREPARED")
    assert w.attempt("B").driver_until == w.now + 100
