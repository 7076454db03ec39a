"""Stories of one engine.  Those named after a scenario tell the part of it that the engine's agent sees."""

import pytest
from immutables import Map

from lorafsm.engine import actions, agent_step, new_agent
from lorafsm.engine.orders import Listed, LoadFinished
from lorafsm.engine.report import as_event
from lorafsm.errors import InvalidField
from lorafsm.orders import Begin
from lorafsm.records import Resident
from tests.core.agent_story import BASE, Desk, addressed, digest_of, key_of, name_of, plan_of


def count_of(desk: Desk, kind: type) -> int:
    return sum(isinstance(action, kind) for action in desk.asked)


def test_a_publication_by_buckets():
    e = Desk()
    assert e.begin(1, "A", buckets=2) == "Prepared"
    assert e.receive(1, 0) == "OUT_OF_ORDER"  # not armed: nobody would join the broadcast
    assert e.arm(1, 1) == "OUT_OF_ORDER"
    assert [e.arm(1, 0), e.arm(1, 0)] == ["Armed", "Armed"]
    assert e.end(1, "A") == "OUT_OF_ORDER"
    assert [e.receive(1, 0), e.receive(1, 1)] == ["Pending", "OUT_OF_ORDER"]
    assert e.do() == "PostReceive"
    assert e.receive(1, 0) == "BucketDone"
    assert e.end(1, "A") == "OUT_OF_ORDER"
    assert e.arm(1, 1) == "Armed"
    assert e.do() == "PostReceive"
    assert e.arm(1, 2) == "OUT_OF_ORDER"  # the plan has two
    assert e.acquire("r", "A") == "VERSION_MISSING"  # not proved yet
    assert e.end(1, "A") == "Pending"
    assert e.todo == [actions.StartLoad(1, name_of("A"), key_of("A"), digest_of("A"), "stash")]
    assert e.do_all() == ("StartLoad", "DropStash", "Probe")
    assert e.end(1, "A") == "Ready"
    assert (e.said.key, e.said.digest, e.said.base_fingerprint) == (key_of("A"), digest_of("A"), BASE)
    assert e.held() == ("A1",)
    assert e.acquire("r", "A") == "Acquired"


def test_without_buckets_the_engine_reads_the_store():
    e = Desk()
    assert e.begin(1, "A") == "Prepared"
    assert e.end(1, "A") == "Pending"
    assert e.todo == [actions.StartLoad(1, name_of("A"), key_of("A"), digest_of("A"), "store")]
    assert e.end(1, "A") == "Pending"  # joins; one load
    assert e.do_all() == ("StartLoad", "Probe")
    assert e.status(1) == "Ready"


def test_s08_load_call_times_out_engine_did_load():
    e = Desk()
    e.begin(1, "A")
    assert e.end(1, "A") == "Pending"  # this answer is lost
    e.do_all()
    assert e.end(1, "A") == "Ready"  # the retry, under the same number
    assert e.status(1) == "Ready"  # the query
    assert count_of(e, actions.StartLoad) == 1


def test_s10_late_ready_of_an_old_attempt():
    e = Desk()
    e.begin(1, "B", buckets=1)
    e.arm(1, 0)
    e.do()
    assert e.cleanup(1, "B") == "Cleaned"
    assert e.begin(2, "B", buckets=1) == "Prepared"
    mine = e.agent
    for late in (e.begin(1, "B", buckets=1), e.arm(1, 0), e.receive(1, 0), e.end(1, "B")):
        assert late == "STALE_ATTEMPT"
    assert e.agent is mine
    assert as_event(e.said, "E0", 0).name == "target_failed"  # which the registry refuses as STALE_ATTEMPT


def test_cleanup_before_begin_tombstones():
    e = Desk()
    assert e.status(1) == "Unseen"
    assert e.cleanup(1, "A") == "Cleaned"
    assert e.begin(1, "A") == "STALE_ATTEMPT"
    assert e.end(1, "A") == "STALE_ATTEMPT"
    assert e.held() == ()
    assert e.status(1) == "Cleaned"
    assert e.asked == []


def test_s15_duplicate_bucket():
    e = Desk()
    e.begin(1, "A", buckets=6)
    for k in range(4):
        e.arm(1, k)
        e.do()
    mine = e.agent
    assert [e.receive(1, 3), e.receive(1, 3), e.arm(1, 3)] == ["BucketDone", "BucketDone", "Armed"]
    assert e.arm(1, 5) == "OUT_OF_ORDER"
    assert e.receive(1, 5) == "OUT_OF_ORDER"
    assert e.agent is mine
    assert count_of(e, actions.PostReceive) == 4
    assert (e.begin(1, "A", buckets=6), e.said.bucket) == ("BucketDone", 3)


def test_a_late_copy_of_an_order_is_answered_with_the_latest_fact():
    """The answer carries the current seq; an older fact under that seq would make the latest one look like old news."""
    e = Desk()
    e.begin(1, "A", buckets=2)
    e.arm(1, 0)
    e.do()
    assert e.begin(1, "A", buckets=2) == "BucketDone"
    e.arm(1, 1)
    e.do()
    assert [e.receive(1, 0), e.receive(1, 1)] == ["BucketDone", "BucketDone"]
    e.end(1, "A")
    e.do_all()
    assert [e.begin(1, "A", buckets=2), e.receive(1, 0), e.end(1, "A")] == ["Ready"] * 3


def test_a_bucket_that_fails_ends_the_attempt_here():
    e = Desk()
    e.begin(1, "A", buckets=2)
    e.arm(1, 0)
    e.do(ok=False)
    assert [e.receive(1, 0), e.arm(1, 0), e.end(1, "A"), e.begin(1, "A", buckets=2)] == ["Failed"] * 4
    assert e.do_all() == ("DropStash",)
    assert e.cleanup(1, "A") == "Cleaned"
    assert e.todo == []  # the stash is gone already


def test_cleanup_of_a_prepared_attempt_drops_its_stash():
    e = Desk()
    e.begin(1, "A", buckets=1)
    assert e.cleanup(1, "A") == "Cleaned"
    assert e.todo == [actions.DropStash(1)]


def test_cleanup_while_a_receive_is_posted_aborts_the_communicator():
    e = Desk()
    e.begin(1, "A", buckets=1)
    e.arm(1, 0)
    assert e.cleanup(1, "A") == "Pending"
    assert e.cleanup(1, "A") == "Pending"
    assert e.todo == [actions.PostReceive(1, 0), actions.AbortCommunicator(1)]
    assert e.status(1) == "Pending"
    assert e.do(ok=False) == "PostReceive"
    assert e.todo == [actions.AbortCommunicator(1), actions.DropStash(1)]
    assert e.cleanup(1, "A") == "Cleaned"


@pytest.mark.parametrize("proved", [False, True])
def test_cleanup_waits_for_its_running_load(proved: bool):
    e = Desk()
    e.begin(1, "A")
    e.end(1, "A")
    if proved:
        e.do()
    assert e.cleanup(1, "A") == "Pending"
    assert e.begin(1, "A") == "STALE_ATTEMPT"
    e.do()
    assert e.held() == ("A1",)
    assert e.cleanup(1, "A") == "Pending"
    assert e.do_all() == ("Unregister", "CountRequests", "PhysicalUnload")
    assert e.cleanup(1, "A") == "Cleaned"
    assert e.held() == ()


def test_cleanup_leaves_another_numbers_resident_of_the_same_name():
    e = Desk()
    e.begin(1, "A")
    assert e.cleanup(1, "A") == "Cleaned"
    e.boot("A", 2)
    assert e.cleanup(1, "A") == "Cleaned"  # repeated late
    assert e.held() == ("A2",)
    assert e.acquire("r", "A") == "Acquired"


def test_a_failed_load_leaves_nothing_and_a_failed_probe_leaves_a_stray():
    e = Desk()
    e.load(1, "A")
    e.do(ok=False)
    assert e.load(1, "A") == "Failed"
    assert e.held() == ()
    assert e.load(2, "A") == "Pending"  # the next repair
    assert e.load(1, "A") == "STALE_ATTEMPT"
    e.do()
    e.do(ok=False)
    assert e.load(2, "A") == "Failed"
    assert e.held() == ("A2",)
    assert e.acquire("r", "A") == "VERSION_MISSING"
    assert e.load(3, "A") == "NOT_ABSENT"
    assert e.unload_stray("A", 2) == "Pending"
    assert e.do_all() == ("Unregister", "CountRequests", "PhysicalUnload")
    assert e.unload_stray("A", 2) == "StrayGone"
    assert e.load(2, "A") == "STALE_ATTEMPT"
    assert e.load(3, "A") == "Pending"


def test_one_number_means_one_thing():
    e = Desk()
    e.begin(1, "A", buckets=1)
    assert e.begin(1, "B", buckets=1) == "OPERATION_CONFLICT"
    assert e.begin(1, "A", buckets=2) == "OPERATION_CONFLICT"
    assert e.load(1, "A") == "OPERATION_CONFLICT"
    assert e.end(1, "B") == "OPERATION_CONFLICT"
    assert e.cleanup(1, "B") == "OPERATION_CONFLICT"
    assert e.unload_stray("B", 1) == "OPERATION_CONFLICT"
    e.load(2, "B")
    assert [e.cleanup(2, "B"), e.arm(2, 0), e.end(2, "B")] == ["OPERATION_CONFLICT"] * 3
    assert e.unload("C", "rc") == "Unloaded"
    assert [e.unload("C", "other"), e.unload("D", "rc")] == ["OPERATION_CONFLICT"] * 2
    assert e.unload_stray("D", 0, "op") == "StrayGone"
    assert e.unload_stray("D", 9, "op") == "OPERATION_CONFLICT"


def test_begin_counts_strays_and_strangers_against_the_slots():
    e = Desk(slots=3)
    e.boot("A", 1)
    assert e.listed(name_of("A"), "side-door") == "Noted"
    assert e.begin(2, "B") == "Prepared"
    assert e.begin(3, "C") == "NO_RESOURCES"
    assert as_event(e.said, "E0", 5).name == "target_failed"
    assert e.load(4, "C") == "NO_RESOURCES"
    assert as_event(e.said, "E0", 5).name == "repair_failed"
    assert e.cleanup(2, "B") == "Cleaned"
    assert e.begin(3, "C") == "Prepared"


def test_s35_unknown_admission():
    e = Desk()
    e.boot("A", 1)
    # the generate of r1 is lost on its way; the query finds nothing and seals the rid in the same step
    assert e.settle("r1", "A") == "ABSENT"
    assert e.acquire("r1", "A") == "RID_SEALED"  # the late original
    assert e.acquire("r2", "A") == "Acquired"  # the next attempt
    assert e.settle("r2", "A") == "RUNNING"
    assert e.release("r2")
    assert e.settle("r2", "A") == "ABSENT"


def test_s43_in_flight_request_blocks_unload():
    e = Desk()
    e.boot("A", 1)
    e.boot("B", 2)
    e.acquire("r_long", "A")
    assert e.unload("A") == "Pending"
    assert e.do() == "Unregister"
    assert e.todo == []
    assert e.acquire("r_late", "A") == "VERSION_CLOSED"
    assert e.acquire("r_b", "B") == "Acquired"  # reclaim of one version disturbs no other
    assert e.unload("A") == "Pending"
    assert "1 request" in e.said.waits_for
    assert e.held() == ("A1", "B2")
    assert e.release("r_long")
    assert e.do_all() == ("CountRequests", "PhysicalUnload")
    assert [e.unload("A"), e.unload("A")] == ["Unloaded", "Unloaded"]
    assert e.held() == ("B2",)
    assert count_of(e, actions.PhysicalUnload) == 1


def test_s44_leaked_engine_ref():
    e = Desk()
    e.boot("A", 1)
    e.unload("A")
    e.do()
    e.do(count=1)  # the engine counts a request that this agent does not know
    for _ in range(3):
        assert e.unload("A") == "Pending"
        assert e.do(count=1) == "CountRequests"
    assert e.held() == ("A1",)
    assert count_of(e, actions.PhysicalUnload) == 0
    restarted = Desk(incarnation=2)  # only a new process frees it
    assert restarted.agent.adapters == Map()
    assert restarted.unload("A") == "STALE_INCARNATION"


@pytest.mark.parametrize("count", [-1, None])
def test_a_negative_or_unreadable_count_is_unknown_not_zero(count: int | None):
    e = Desk()
    e.boot("A", 1)
    e.unload("A")
    e.do()
    e.do(count=count)
    [ask] = e.todo
    assert as_event(ask, "E0", 7).name == "quarantine"
    e.todo.clear()
    assert e.unload("A") == "Unknown"
    assert as_event(e.said, "E0", 7).name == "reclaim_unknown"
    assert (e.said.number, e.said.reclaim_id) == (0, "reclaim-A")
    assert count_of(e, actions.PhysicalUnload) == 0
    assert e.do_all() == ("CountRequests", "PhysicalUnload")  # the repeat looked again, and now it reads zero
    assert e.unload("A") == "Unloaded"


def test_what_is_unknown_about_a_cleanup_is_told_of_its_attempt():
    e = Desk()
    e.boot("A", 1)
    e.cleanup(1, "A")
    e.do()
    e.do(count=None)
    assert e.cleanup(1, "A") == "Unknown"
    assert (e.said.number, e.said.reclaim_id) == (1, "")


def test_what_is_unknown_about_a_stray_is_not_told_of_an_attempt():
    e = Desk()
    e.boot("A", 1)
    e.unload_stray("A", 1)
    e.do()
    e.do(count=None)
    assert e.unload_stray("A", 1) == "Unknown"
    assert (e.said.number, e.said.reclaim_id) == (0, "")


def test_s46_double_abort_duplicate_terminal():
    e = Desk()
    e.boot("A", 1)
    e.acquire("r1", "A")
    e.acquire("r2", "A")
    assert e.acquire("r1", "A") == "DUPLICATE_RID"
    assert e.refs("A") == 2
    assert [e.release("r1"), e.release("r1"), e.release("r1")] == [True, False, False]  # 503, abort, abort echo
    assert e.refs("A") == 1
    assert e.release("r2")
    assert e.refs("A") == 0
    assert not e.release("never-seen")


def test_s48_one_engine_cannot_confirm_the_unload():
    e = Desk()
    e.boot("A", 1)
    e.unload("A", "rc")
    e.do()
    e.do()
    e.do(absent=False)  # the unload returned, and the adapter is still there
    assert e.unload("A", "rc") == "Unknown"
    assert e.do(absent=False) == "TakeListing"
    assert e.unload("A", "rc") == "Unknown"
    assert e.held() == ("A1",)
    assert e.do(absent=True) == "TakeListing"
    assert e.unload("A", "rc") == "Unloaded"
    assert count_of(e, actions.PhysicalUnload) == 1


def test_s50_late_request_revives_a_reclaimed_version():
    e = Desk()
    e.boot("A", 1)
    e.unload("A")
    e.do_all()
    assert e.acquire("old-client", "A") == "VERSION_CLOSED"
    assert [e.begin(2, "A"), e.load(3, "A"), e.end(1, "A")] == ["VERSION_CLOSED"] * 3
    assert e.asked[-1] == actions.PhysicalUnload(name_of("A"), 1)
    assert e.listed(name_of("A")) == "Noted"  # an implicit reload put it back all the same
    assert e.held() == (name_of("A"),)
    assert e.acquire("old-client", "A") == "VERSION_CLOSED"
    assert e.unload_stray("A", 0) == "Pending"
    e.do_all()
    assert e.unload_stray("A", 0) == "StrayGone"
    assert e.held() == ()


def test_s52_managed_version_evicted_by_someone_else():
    e = Desk()
    e.boot("B", 1)
    e.acquire("r", "B")
    assert e.listed() == "Noted"
    assert e.held() == ()
    assert e.acquire("r2", "B") == "VERSION_MISSING"
    assert not e.release("r")  # what it held is gone with the adapter
    assert e.status(1) == "Failed"
    assert e.load(2, "B") == "Pending"
    e.do_all()
    assert e.load(2, "B") == "Ready"
    assert e.refs("B") == 0
    assert e.end(1, "B") == "STALE_ATTEMPT"


def test_unload_removes_what_somebody_else_put_under_the_name():
    e = Desk()
    e.listed(name_of("A"))
    assert e.begin(1, "A") == "NOT_ABSENT"
    assert e.unload("A") == "Pending"
    e.do_all()
    assert e.unload("A") == "Unloaded"
    assert e.held() == ()


def test_a_stranger_that_comes_after_begin_stops_the_load():
    e = Desk()
    e.begin(1, "A")
    e.listed(name_of("A"))
    assert e.end(1, "A") == "NOT_ABSENT"
    assert e.unload_stray("A", 0) == "Pending"
    e.do_all()
    assert e.end(1, "A") == "Pending"


def test_a_stray_order_makes_its_number_over():
    e = Desk()
    assert e.arm(7, 0) == "OUT_OF_ORDER"
    assert e.unload_stray("A", 7) == "StrayGone"
    assert [e.arm(7, 0), e.load(7, "A"), e.begin(7, "A")] == ["STALE_ATTEMPT"] * 3
    assert e.status(7) == "Cleaned"


def test_a_closed_key_needs_no_seals():
    e = Desk()
    e.boot("A", 1)
    e.boot("B", 2)
    e.settle("r1", "A")
    e.settle("r2", "B")
    e.unload("A")
    assert dict(e.agent.sealed) == {"r2": key_of("B")}
    assert e.settle("r3", "A") == "ABSENT"
    assert dict(e.agent.sealed) == {"r2": key_of("B")}
    assert e.acquire("r1", "A") == "VERSION_CLOSED"


def test_a_listing_older_than_the_last_fact_is_refused():
    e = Desk()
    before = e.agent.seq
    e.boot("A", 1)
    assert e.code(Listed(names=frozenset(), seq=before)) == "STALE_SEQ"
    assert e.held() == ("A1",)


def test_unload_overtakes_a_repair_load():
    e = Desk()
    assert e.load(5, "A") == "Pending"
    assert e.unload("A") == "Pending"
    assert e.load(5, "A") == "VERSION_CLOSED"
    e.do_all()
    assert e.unload("A") == "Unloaded"
    assert e.held() == ()


def test_unload_before_a_late_repair_load():
    e = Desk()
    assert e.unload("A") == "Unloaded"
    assert e.load(5, "A") == "VERSION_CLOSED"
    assert e.asked == []


def test_cleanup_joins_the_removal_that_a_stray_order_started():
    e = Desk()
    e.boot("A", 1)
    assert e.unload_stray("A", 1) == "Pending"
    assert e.unload("A") == "Pending"
    assert e.cleanup(1, "A") == "Pending"
    e.do_all()
    assert [e.unload("A"), e.cleanup(1, "A"), e.unload_stray("A", 1)] == ["Unloaded", "Cleaned", "StrayGone"]
    assert count_of(e, actions.PhysicalUnload) == 1


@pytest.mark.parametrize(
    "words, code, field",
    [
        ({"epoch": "e2"}, "OTHER_EPOCH", "epoch"),
        ({"key": key_of("A", "e2")}, "OTHER_EPOCH", "key"),
        ({"engine": "E1"}, "UNKNOWN_ENGINE", "engine"),
        ({"incarnation": 2}, "STALE_INCARNATION", "incarnation"),
        ({"incarnation": 0}, "STALE_INCARNATION", "incarnation"),
        ({"number": -1}, "BAD_INPUT", "number"),
        ({"number": 0}, "BAD_INPUT", "number"),
        ({"number": True}, "BAD_INPUT", "number"),
        ({"digest": ""}, "BAD_INPUT", "digest"),
        ({"digest": digest_of("B")}, "BAD_INPUT", "lora_name"),
        ({"lora_name": "../../x"}, "BAD_INPUT", "lora_name"),
        ({"plan": None}, "BAD_INPUT", "plan"),
        ({"epoch": "e-1"}, "BAD_INPUT", "epoch"),
    ],
)
def test_an_order_for_another_addressee_or_without_form_is_refused(words: dict, code: str, field: str):
    e = Desk()
    mine = e.agent
    order = addressed(Begin, "A", **{"number": 1, "plan": plan_of(0), **words})
    assert e.code(order) == code
    assert e.said.field == field
    assert e.agent is mine


def test_foreign_objects_are_refused():
    e = Desk()
    for item in (None, 1, "begin", object(), Resident(key_of("A"), digest_of("A"), 1)):
        assert e.code(item) == "BAD_INPUT"


@pytest.mark.parametrize(
    "field, words",
    [
        ("engine", {"engine": ""}),
        ("incarnation", {"incarnation": -1}),
        ("epoch", {"epoch": "a-b"}),
        ("slots", {"slots": 0}),
        ("base_fingerprint", {"base_fingerprint": "\n"}),
    ],
)
def test_a_new_agent_says_which_argument_is_wrong(field: str, words: dict):
    with pytest.raises(InvalidField) as caught:
        new_agent(**{"engine": "E0", "incarnation": 1, "epoch": "e1", **words})
    assert caught.value.field == field


def test_answers_carry_the_seq_also_of_the_first_incarnation():
    agent = new_agent("E0", 0, "e1")
    done = agent_step(agent, addressed(Begin, "A", incarnation=0, number=1, plan=plan_of(0)))
    assert (type(done.answer).__name__, done.answer.seq, done.agent.seq) == ("Prepared", 1, 1)


def test_a_refused_result_is_about_no_number():
    e = Desk()
    assert e.code(LoadFinished(number=7, ok=True)) == "UNEXPECTED_RESULT"
    assert (e.said.number, e.said.seq) == (0, e.agent.seq)
