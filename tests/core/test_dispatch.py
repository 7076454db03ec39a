"""The dispatch guard of one owner (rule 10): tables of state and event, and the scenarios that it takes part in."""

from typing import Any

import pytest

from lorafsm.dispatch import Guard, dispatch_invariants, dispatch_step, may_dispatch, new_guard
from lorafsm.dispatch import records as d
from lorafsm.errors import InvalidField
from lorafsm.identity import SessionKey, VersionKey, lora_name
from lorafsm.outcomes import Binding

A, B = VersionKey("e1", 1), VersionKey("e1", 2)
DIGEST = "ab" * 32


def session_of(sequence: int) -> SessionKey:
    return SessionKey("e1", "o1", sequence)


def binding_of(sequence: int, key: VersionKey = A) -> Binding:
    return Binding(session_of(sequence), key, lora_name(key, DIGEST), DIGEST)


class Owner:
    """A guard with one session, 0, and verbs; each answers the outcome's code."""

    def __init__(self, *, lease: int = 1_000, margin: int = 100) -> None:
        self.g: Guard = new_guard("e1", "o1", margin=margin)
        self.actions: list[d.Action] = []
        self.now = 0
        if lease:
            self.give(d.LeaseRenewed(sent=0, lease=lease))
        self.give(d.Opened(session=session_of(0)))

    def give(self, event: Any) -> str:
        done = dispatch_step(self.g, event)
        assert done.outcome.ok or (done.guard is self.g and not done.actions)
        assert dispatch_invariants(done.guard) == ()
        self.g = done.guard
        self.actions += done.actions
        return str(done.outcome.code)

    def bind(self, sequence: int = 0, key: VersionKey = A) -> str:
        return self.give(d.Bound(session=session_of(sequence), binding=binding_of(sequence, key)))

    def start(self, rid: str, attempt: int, sequence: int = 0) -> str:
        return self.give(d.StartAttempt(session=session_of(sequence), rid=rid, attempt=attempt, now=self.now))

    def news(self, kind: type[Any], rid: str, sequence: int = 0, **words: Any) -> str:
        return self.give(kind(session=session_of(sequence), rid=rid, **words))

    def settle(self, rid: str, verdict: d.Verdict) -> str:
        return self.news(d.Settled, rid, verdict=verdict)

    def close(self, sequence: int = 0) -> str:
        return self.give(d.BeginClose(session=session_of(sequence)))

    def drop(self, sequence: int = 0) -> str:
        return self.give(d.Drop(session=session_of(sequence)))

    def may(self, sequence: int = 0) -> str:
        return str(may_dispatch(self.g, session_of(sequence), self.now).code)


def bound() -> Owner:
    o = Owner()
    o.bind()
    return o


def sent() -> Owner:
    o = bound()
    o.start("r1", 1)
    return o


def running() -> Owner:
    o = sent()
    o.news(d.Admitted, "r1")
    return o


def in_doubt() -> Owner:
    o = sent()
    o.news(d.AdmissionUnknown, "r1")
    return o


def closing() -> Owner:
    o = bound()
    o.close()
    return o


def closed() -> Owner:
    o = closing()
    o.drop()
    return o


def revoked() -> Owner:
    o = bound()
    o.give(d.LeaseRenewed(sent=1, lease=1_000, revoked=frozenset({A})))
    return o


def lost() -> Owner:
    o = bound()
    o.give(d.LeaseLost())
    return o


def stale() -> Owner:
    o = bound()
    o.now = 900
    return o


STATES = [Owner, bound, sent, running, in_doubt, closing, closed, revoked, lost, stale]
ROWS: dict[str, tuple[Any, list[str]]] = {
    "may": (
        lambda o: o.may(),
        "NO_BINDING OK ATTEMPT_IN_FLIGHT ATTEMPT_IN_FLIGHT RETRY_UNSAFE SESSION_CLOSED "
        "SESSION_CLOSED VERSION_RETIRED_BY_POLICY SESSION_EXPIRED LEASE_STALE".split(),
    ),
    "start": (
        lambda o: o.start("r2", 2 if o.g.sessions and o.g.sessions[0].attempt else 1),
        "NO_BINDING OK ATTEMPT_IN_FLIGHT ATTEMPT_IN_FLIGHT RETRY_UNSAFE SESSION_CLOSED "
        "SESSION_CLOSED VERSION_RETIRED_BY_POLICY SESSION_EXPIRED LEASE_STALE".split(),
    ),
    "start out of order": (
        lambda o: o.start("r9", 9),
        "NO_BINDING OUT_OF_ORDER ATTEMPT_IN_FLIGHT ATTEMPT_IN_FLIGHT "
        "RETRY_UNSAFE SESSION_CLOSED SESSION_CLOSED VERSION_RETIRED_BY_POLICY SESSION_EXPIRED "
        "LEASE_STALE".split(),
    ),
    "bind again": (lambda o: o.bind(), "OK OK OK OK OK OK SESSION_CLOSED OK OK OK".split()),
    "bind to another": (
        lambda o: o.bind(key=B),
        "OK OPERATION_CONFLICT OPERATION_CONFLICT OPERATION_CONFLICT "
        "OPERATION_CONFLICT OPERATION_CONFLICT SESSION_CLOSED OPERATION_CONFLICT OPERATION_CONFLICT "
        "OPERATION_CONFLICT".split(),
    ),
    "admitted": (
        lambda o: o.news(d.Admitted, "r1"),
        "STALE_ATTEMPT STALE_ATTEMPT OK OK OK STALE_ATTEMPT "
        "SESSION_CLOSED STALE_ATTEMPT STALE_ATTEMPT STALE_ATTEMPT".split(),
    ),
    "finished": (
        lambda o: o.news(d.Finished, "r1"),
        "STALE_ATTEMPT STALE_ATTEMPT OK OK OK STALE_ATTEMPT "
        "SESSION_CLOSED STALE_ATTEMPT STALE_ATTEMPT STALE_ATTEMPT".split(),
    ),
    "unknown": (
        lambda o: o.news(d.AdmissionUnknown, "r1"),
        "STALE_ATTEMPT STALE_ATTEMPT OK OK OK STALE_ATTEMPT "
        "SESSION_CLOSED STALE_ATTEMPT STALE_ATTEMPT STALE_ATTEMPT".split(),
    ),
    "settled": (
        lambda o: o.settle("r1", d.Verdict.ABSENT),
        "STALE_ATTEMPT STALE_ATTEMPT OUT_OF_ORDER OUT_OF_ORDER OK "
        "STALE_ATTEMPT SESSION_CLOSED STALE_ATTEMPT STALE_ATTEMPT STALE_ATTEMPT".split(),
    ),
    "begin_close": (lambda o: o.close(), "OK OK OK OK OK OK SESSION_CLOSED OK OK OK".split()),
    "drop": (
        lambda o: o.drop(),
        "OUT_OF_ORDER OUT_OF_ORDER OUT_OF_ORDER OUT_OF_ORDER OUT_OF_ORDER OK SESSION_CLOSED "
        "OUT_OF_ORDER OUT_OF_ORDER OUT_OF_ORDER".split(),
    ),
    "open again": (
        lambda o: o.give(d.Opened(session=session_of(0))),
        "OK OK OK OK OK OK SESSION_CLOSED OK OK OK".split(),
    ),
    "renew": (lambda o: o.give(d.LeaseRenewed(sent=5, lease=10)), "OK OK OK OK OK OK OK OK SESSION_EXPIRED OK".split()),
}


@pytest.mark.parametrize("verb", ROWS)
def test_every_event_in_every_state(verb: str):
    act, codes = ROWS[verb]
    assert [act(state()) for state in STATES] == codes


def test_s35_unknown_admission():
    o = sent()
    assert o.news(d.AdmissionUnknown, "r1") == "OK"
    assert o.start("r2", 2) == "RETRY_UNSAFE"
    assert o.settle("r1", d.Verdict.RUNNING) == "OK"
    assert o.start("r2", 2) == "ATTEMPT_IN_FLIGHT"
    assert o.news(d.AdmissionUnknown, "r1") == "OK"
    assert o.settle("r1", d.Verdict.ABSENT) == "OK"
    assert o.actions == [d.SealRid("r1", A)]
    assert o.start("r2", 2) == "OK"
    assert [o.news(d.Admitted, "r1"), o.news(d.Finished, "r1")] == ["STALE_ATTEMPT"] * 2  # late news of the old one
    assert o.may() == "ATTEMPT_IN_FLIGHT"


def test_a_settle_that_finds_a_terminal_seals_nothing():
    o = in_doubt()
    assert o.settle("r1", d.Verdict.TERMINAL) == "OK"
    assert o.actions == []
    assert o.start("r2", 2) == "OK"


def test_a_late_answer_settles_the_doubt():
    o = in_doubt()
    assert o.news(d.Finished, "r1") == "OK"
    assert o.may() == "OK"


def test_the_same_start_twice_sends_once():
    o = sent()
    o.news(d.Finished, "r1")
    assert o.start("r1", 1) == "OUT_OF_ORDER"
    assert o.start("r2", 2) == "OK"


def test_s26_request_without_a_version():
    o = Owner()
    assert [o.may(), o.start("r1", 1)] == ["NO_BINDING", "NO_BINDING"]
    assert o.may(7) == "UNKNOWN_SESSION"
    o.bind()
    assert may_dispatch(o.g, session_of(0), 0) == binding_of(0)


def test_s28_close_before_bind():
    o = Owner()
    assert o.close() == "OK"
    assert o.bind() == "SESSION_CLOSED"
    assert o.drop() == "OK"
    assert [o.bind(), o.may(), o.give(d.Opened(session=session_of(0)))] == ["SESSION_CLOSED"] * 3


def test_s30_close_during_a_turn():
    o = running()
    assert o.close() == "OK"
    assert o.actions == [d.AbortRequest("r1")]
    assert o.may() == "SESSION_CLOSED"
    assert o.drop() == "ATTEMPT_IN_FLIGHT"
    assert o.close() == "OK"
    assert o.actions == [d.AbortRequest("r1")]
    assert o.news(d.AdmissionUnknown, "r1") == "OK"
    assert o.drop() == "RETRY_UNSAFE"
    assert o.settle("r1", d.Verdict.ABSENT) == "OK"
    assert o.drop() == "OK"


def test_the_lease_counts_from_when_the_heartbeat_was_sent_less_the_margin():
    o = Owner(lease=0, margin=100)
    o.bind()
    assert o.may() == "LEASE_STALE"
    o.now = 5_000  # the reply to the heartbeat of 4,000 arrives
    o.give(d.LeaseRenewed(sent=4_000, lease=2_000))
    o.now = 5_899
    assert o.may() == "OK"
    o.now = 5_900
    assert o.may() == "LEASE_STALE"
    o.give(d.LeaseRenewed(sent=3_000, lease=2_000))  # an older reply takes nothing away
    o.now = 5_899
    assert o.may() == "OK"


def test_s32_one_long_session_blocks_every_publication_until_policy_takes_its_version():
    o = bound()
    assert o.give(d.LeaseRenewed(sent=10, lease=1_000, revoked=frozenset({A}))) == "OK"
    assert o.may() == "VERSION_RETIRED_BY_POLICY"
    o.give(d.LeaseRenewed(sent=20, lease=1_000))
    assert o.may() == "VERSION_RETIRED_BY_POLICY"  # a revocation is for ever
    o.give(d.Opened(session=session_of(1)))
    o.bind(1, B)
    assert o.may(1) == "OK"


def test_sequences_are_opened_in_order_and_never_twice():
    o = Owner()
    assert o.give(d.Opened(session=session_of(4))) == "OK"
    assert o.give(d.Opened(session=session_of(2))) == "SESSION_CLOSED"
    assert o.give(d.Opened(session=SessionKey("e1", "o2", 9))) == "UNKNOWN_SESSION"
    assert o.give(d.Opened(session=SessionKey("e2", "o1", 9))) == "UNKNOWN_SESSION"


@pytest.mark.parametrize(
    "event, field",
    [
        (None, "event"),
        (d.Opened(session="s"), "session"),
        (d.LeaseRenewed(sent=-1, lease=1), "sent"),
        (d.LeaseRenewed(sent=1, lease=True), "lease"),
        (d.LeaseRenewed(sent=1, lease=1, revoked=frozenset({"A"})), "revoked"),
        (d.Bound(session=session_of(0), binding=None), "binding"),
        (d.Bound(session=session_of(0), binding=binding_of(1)), "binding"),
        (d.StartAttempt(session=session_of(0), rid="", attempt=1, now=0), "rid"),
        (d.StartAttempt(session=session_of(0), rid="r", attempt="1", now=0), "attempt"),
        (d.StartAttempt(session=session_of(0), rid="r", attempt=1, now=-1), "now"),
        (d.Settled(session=session_of(0), rid="r", verdict="ABSENT"), "verdict"),
    ],
)
def test_malformed_events_are_refused_and_name_the_field(event: Any, field: str):
    o = Owner()
    done = dispatch_step(o.g, event)
    assert (done.outcome.code, done.outcome.field, done.guard) == ("BAD_INPUT", field, o.g)


@pytest.mark.parametrize(
    "field, words", [("epoch", {"epoch": "-"}), ("owner", {"owner": ""}), ("margin", {"margin": -1})]
)
def test_a_new_guard_says_which_argument_is_wrong(field: str, words: dict):
    with pytest.raises(InvalidField) as caught:
        new_guard(**{"epoch": "e1", "owner": "o1", **words})
    assert caught.value.field == field
