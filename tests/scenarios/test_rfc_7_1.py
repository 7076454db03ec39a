"""RFC 7.1, row by row, on the registry and, for row 6, the engine agent.  Each test quotes its row, translated."""

from __future__ import annotations

import pytest

from lorafsm import publisher, reclaimer
from lorafsm.orders import Cleanup
from tests.core.agent_story import Desk
from tests.core.story import World


def test_row_1_only_one_engine_ready_then_both_and_commit():
    """ "B is READY on E0 only; then READY on E0 and E1, and committed."  Should be seen: "with only E0 READY,
    S_mid = A and the default is unchanged; after commit S_new = B, and continuation, retry and resume of old
    sessions are still A."
    """
    w = World().boot("A")
    assert w.bind_first("S_old") == "A"
    w.begin("B")
    assert w.ready("E0") == "OK"
    assert w.bind_first("S_mid") == "A"
    assert (w.default, w.revision) == ("A", 1)
    assert w.commit("B") == "NOT_READY"
    assert w.ready("E1") == "OK"
    assert w.commit("B") == "OK"
    assert w.bind_first("S_new") == "B"
    for s in ("S_old", "S_mid"):
        assert w.bind_first(s) == "A"  # a retry of the bind
        assert w.may_dispatch(s) == "A"  # continuation and resume
    assert (w.default, w.revision, w.refs("A"), w.refs("B")) == ("B", 2, 2, 1)


def test_row_2_repeated_publication_and_content_conflict():
    """ "Repeated publication and content conflict."  Should be seen: "the same version with the same content is
    not loaded again, takes no further slot and does not switch the default again; the same version with other
    content always returns conflict."
    """
    w = World().boot("A")
    w.begin("B")
    orders = publisher.next_orders(w.r, w.tokens["B"], w.now)
    assert w.reserve("B", token="another") == "OK"
    assert (w.used, w.number("B")) == (2, 2)
    assert publisher.next_orders(w.r, w.tokens["B"], w.now) == orders
    assert publisher.next_orders(w.r, "another", w.now) == ()
    assert w.reserve("B", bytes_of="B*") == "VERSION_CONFLICT"
    w.ready("E0")
    w.ready("E1")
    w.commit("B")
    assert w.reserve("B", token="again") == "OK"
    assert w.commit("B") == "OK"
    assert (w.used, w.revision, w.default) == (2, 2, "B")
    assert w.reserve("B", bytes_of="B*") == "VERSION_CONFLICT"


@pytest.mark.parametrize("fault", ["one engine fails", "the manifest is wrong", "the ACK is lost"])
def test_row_3_one_engine_fails_manifest_error_lost_ack(fault: str):
    """ "One engine fails, manifest error, lost ACK."  Should be seen: "the old default is unchanged; B is not
    cleaned up while the commit's result is not confirmed; the candidate's capacity is released only after both
    sides are clean."
    """
    w = World(capacity=2).boot("A")
    w.begin("B")
    w.ready("E0")
    if fault == "one engine fails":
        w.failed("E1", reason="no memory")
    elif fault == "the manifest is wrong":
        w.failed("E1", reason="MANIFEST_MISMATCH")
    else:
        w.unknown("E1")
    assert (w.default, w.revision) == ("A", 1)
    assert w.cleaned("E0") == "NOT_ABORTED"
    assert not [o for o in publisher.next_orders(w.r, w.tokens["B"], w.now) if isinstance(o, Cleanup)]
    assert w.abort("B", reason=fault) == "OK"
    assert w.used == 2
    w.cleaned("E0")
    assert (w.version("B"), w.used) == ("ABORTED", 2)
    w.cleaned("E1")
    assert (w.version("B"), w.used, w.default, w.revision) == ("FAILED_CLEAN", 1, "A", 1)


def test_row_3_a_commit_whose_result_is_not_confirmed():
    """The same row: "B is not cleaned up while the commit's result is not confirmed." """
    w = World().boot("A")
    w.make_ready("B")
    assert w.commit("B") == "OK"  # the ACK is lost
    assert w.cleaned("E0", n=2) == "STALE_ATTEMPT"
    assert w.abort("B") == "ALREADY_COMMITTED"
    assert w.commit("B") == "OK"
    assert (w.default, w.revision, w.routable("B")) == ("B", 2, {"E0", "E1"})


def test_row_4_late_control_requests_and_cleanup_race():
    """ "Late control requests, and races with cleanup."  Should be seen: "when cleanup comes first and Begin, READY
    or receive of the old attempt come late, none may create resources again; a repeated receive must not cause one
    more collective."
    """
    w = World().boot("A")
    w.reserve("B", buckets=1)
    w.prepared("E0")
    w.prepared("E1")
    assert w.authorize(0) == "OK"
    assert w.bucket_done("E0", 0) == "OK"
    assert w.bucket_done("E0", 0) == "OK"  # repeated
    assert w.authorize(0) == "ALREADY_AUTHORIZED"
    old = w.number("B")
    w.abort("B")
    w.cleaned("E0")
    registry = w.r
    for late in (w.prepared, w.ready):
        assert late("E0", n=old) == "STALE_ATTEMPT"
    assert w.bucket_done("E0", 0, n=old) == "STALE_ATTEMPT"
    assert w.r is registry
    w.cleaned("E1")
    assert w.version("B") == "FAILED_CLEAN"
    w.reserve("B")
    registry = w.r
    for late in (w.prepared, w.ready):
        assert late("E0", n=old) == "STALE_ATTEMPT"
    assert w.r is registry
    assert w.target("B", "E0") == "RESERVED"


def test_row_5_bind_and_close_cancelled_and_complete_at_once():
    """ "bind/close, cancel/complete concurrently."  Should be seen: "a session has one binding and one ref; [...]
    CLOSED is not reopened by a late open, bind or response."
    """
    w = World().boot("A")
    assert w.bind_first("s") == "A"
    w.publish("B")
    assert w.bind_first("s") == "A"
    assert (w.refs("A"), w.refs("B")) == (1, 0)
    assert w.begin_close("s") == "OK"
    assert w.bind_first("s") == "SESSION_CLOSED"
    assert w.close_and_release("s") == "OK"
    registry = w.r
    assert w.open("s") == "SESSION_CLOSED"
    assert w.bind_first("s") == "SESSION_CLOSED"
    assert w.close_and_release("s") == "ALREADY_CLOSED"
    assert w.r is registry
    assert (w.refs("A"), w.session("s")) == (0, "CLOSED")
    assert w.close_and_release("t") == "OK"  # close comes first
    assert w.open("t") == "SESSION_CLOSED"
    assert w.bind_first("t") == "SESSION_CLOSED"
    assert (w.refs("A"), w.refs("B")) == (0, 0)


def test_row_6_native_request_refcount():
    """ "SGLang's native request refcount."  Should be seen: "r1 and r2 use A at once; when r1 ends by 500/503 the
    count goes from 2 to 1; failure before dispatch, disconnect, abort and a repeated terminal release only once."
    On real parts: tests/adapters/test_guard_tokenizer.py, tests/engines/guard/test_guarded_requests.py.
    """
    desk = Desk()
    desk.boot("A", 1)
    assert (desk.acquire("r1", "A"), desk.acquire("r2", "A")) == ("Acquired", "Acquired")
    assert desk.refs("A") == 2
    assert desk.release("r1") is True  # 500 or 503
    assert desk.refs("A") == 1
    assert desk.release("r1") is False  # abort, its echo, disconnect: whatever terminal is reported after the first
    assert desk.refs("A") == 1
    assert desk.acquire("r3", "A") == "Acquired"
    assert desk.release("r3") is True  # refused before dispatch
    assert desk.release("r3") is False
    assert desk.refs("A") == 1
    assert desk.unload("A") == "Pending"
    assert desk.do() == "Unregister"
    assert desk.todo == [], "r2 still runs"
    assert desk.release("r2") is True
    assert desk.do_all() == ("CountRequests", "PhysicalUnload")


def test_row_7_no_session_refs_but_requests_in_the_backend():
    """ "Session refs = 0, but backend refs > 0."  Should be seen: "A stays pinned, the physical unload cannot
    complete; it unloads only when the request in flight has really ended."
    """
    w = World(capacity=2).boot("A")
    w.bind_first("s")
    w.publish("B")
    w.close_and_release("s")
    assert w.claim_reclaim("A", "r1") == "OK"
    w.unloaded("E1", "r1")
    assert w.unloaded("E0", "r1", absent=False) == "NOT_ABSENT"  # the engine still counts a request
    w.reclaim_unknown("E0", "r1")
    assert (w.version("A"), w.unload("A", "E0"), w.used) == ("RECLAIMING", "UNKNOWN", 2)
    assert w.unloaded("E0", "r1") == "OK"
    assert (w.version("A"), w.used) == ("RECLAIMED", 1)


def test_row_8_capacity_two_repeated_reclaim_late_unload_receipts():
    """ "capacity=2, repeated reclaim, late unload receipts."  Should be seen: "C is refused before Begin/NCCL; each
    engine unloads once; C can be reserved again only after E0 and E1 both confirmed."
    """
    w = World(capacity=2).boot("A")
    w.publish("B")
    assert w.reserve("C") == "CAPACITY_ERROR"
    assert w.effects == ()
    assert w.claim_reclaim("A", "r1") == "OK"
    orders = reclaimer.next_orders(w.r, w.now)
    assert w.claim_reclaim("A", "r2") == "OK"
    assert w.said.reclaim_id == "r1"
    assert reclaimer.next_orders(w.r, w.now) == orders
    assert {(o.engine, o.reclaim_id) for o in orders} == {("E0", "r1"), ("E1", "r1")}
    assert w.unloaded("E0", "r1") == "OK"
    assert w.reserve("C") == "CAPACITY_ERROR"
    assert [o.engine for o in reclaimer.next_orders(w.r, w.now)] == ["E1"]
    assert w.unloaded("E0", "r1") == "OK"  # a late duplicate
    assert w.reserve("C") == "CAPACITY_ERROR"
    assert w.unloaded("E1", "r1") == "OK"
    assert (w.version("A"), w.used) == ("RECLAIMED", 1)
    assert reclaimer.next_orders(w.r, w.now) == ()
    assert w.reserve("C") == "OK"
    assert w.default == "B"


def test_row_9_exact_version_missing_and_management_past_the_registry():
    """ "Exact version missing, management by the side, compatibility."  Should be seen: "what is missing is an error,
    no fallback to base or latest and no implicit reload; ordinary unload/LRU cannot remove a protected version".
    """
    w = World().boot("A")
    w.bind_first("s")
    w.publish("B")
    assert w.engine_up("E0", holds=[w.resident("B")]) == "OK"  # somebody removed A from E0
    assert (w.routable("A"), w.may_dispatch("s"), w.bind_first("s")) == ({"E1"}, "A", "A")
    w.engine_lost("E1")
    assert (w.routable("A"), w.may_dispatch("s")) == (set(), "A")  # no engine for A: an error, never B or base
    assert w.open("unbound") == "OK"
    assert w.may_dispatch("unbound") == "NO_BINDING"
