"""Random turns, lost replies, settles and closes of one owner, against an engine's agent that admits or seals.

What is checked is the promise of rule 10: a session never has two requests that run or may still start.
"""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lorafsm.dispatch import dispatch_invariants, dispatch_step, may_dispatch, new_guard
from lorafsm.dispatch import records as d
from lorafsm.identity import SessionKey
from lorafsm.outcomes import Binding
from tests.core.agent_story import Desk, digest_of, key_of, name_of

SESSIONS = [SessionKey("e1", "o1", n) for n in range(3)]
session_keys = st.sampled_from(SESSIONS)


class DispatchMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.engine = Desk()
        self.engine.boot("A", 1)
        self.guard = new_guard("e1", "o1", margin=10)
        self.now = 0
        self.rids = 0
        self.underway: dict[str, SessionKey] = {}  # requests that the network may still deliver
        self.sessions: dict[str, SessionKey] = {}  # rid -> its session

    def give(self, event: Any) -> bool:
        before = self.guard
        done = dispatch_step(before, event)
        assert dispatch_step(before, event) == done
        if not done.outcome.ok:
            assert done.guard is before
            assert done.actions == ()
        self.guard = done.guard
        for action in done.actions:
            if isinstance(action, d.SealRid):
                assert self.engine.acquire(action.rid, "A") in ("RID_SEALED", "VERSION_CLOSED")
        return done.outcome.ok

    def doubted(self) -> list[tuple[SessionKey, str]]:
        attempts = [(SESSIONS[n], s.attempt) for n, s in self.guard.sessions.items() if s.attempt is not None]
        return [(session, a.rid) for session, a in attempts if a.admission is d.Admission.UNKNOWN]

    @rule(passed=st.integers(0, 60))
    def time_passes(self, passed: int) -> None:
        self.now += passed

    @rule(late=st.integers(0, 20))
    def heartbeat(self, late: int) -> None:
        self.give(d.LeaseRenewed(sent=max(0, self.now - late), lease=100))

    @rule(session=session_keys)
    def open_and_bind(self, session: SessionKey) -> None:
        if self.give(d.Opened(session=session)):
            self.give(d.Bound(session=session, binding=Binding(session, key_of("A"), name_of("A"), digest_of("A"))))

    @rule(session=session_keys, skew=st.sampled_from([0, 0, 0, 1]))
    def start(self, session: SessionKey, skew: int) -> None:
        allowed = may_dispatch(self.guard, session, self.now)
        known = self.guard.sessions.get(session.sequence)
        rid = f"r{self.rids}"
        number = (known.attempts if known else 0) + 1 + skew
        started = self.give(d.StartAttempt(session=session, rid=rid, attempt=number, now=self.now))
        assert started == (allowed.ok and not skew)
        if started:
            assert known is not None
            assert not known.finalizing
            assert self.now < self.guard.lease_until
            self.rids += 1
            self.underway[rid] = session
            self.sessions[rid] = session

    @precondition(lambda self: self.underway)
    @rule(data=st.data(), reply=st.booleans(), loses=st.booleans())
    def network_delivers(self, data: st.DataObject, reply: bool, loses: bool) -> None:
        rid = data.draw(st.sampled_from(sorted(self.underway)))
        session = self.underway.pop(rid)
        if loses:
            return
        admitted = self.engine.acquire(rid, "A") == "Acquired"
        if reply:
            self.give((d.Admitted if admitted else d.Finished)(session=session, rid=rid))

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), reply=st.booleans())
    def engine_finishes(self, data: st.DataObject, reply: bool) -> None:
        rid = data.draw(st.sampled_from(sorted(self.sessions)))
        if self.engine.release(rid) and reply:
            self.give(d.Finished(session=self.sessions[rid], rid=rid))

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def reply_is_missed(self, data: st.DataObject) -> None:
        rid = data.draw(st.sampled_from(sorted(self.sessions)))
        self.give(d.AdmissionUnknown(session=self.sessions[rid], rid=rid))

    @precondition(lambda self: self.doubted())
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        session, rid = data.draw(st.sampled_from(self.doubted()))
        verdict = d.Verdict[self.engine.settle(rid, "A")]
        assert self.give(d.Settled(session=session, rid=rid, verdict=verdict))

    @rule(session=session_keys)
    def begin_close(self, session: SessionKey) -> None:
        self.give(d.BeginClose(session=session))

    @rule(session=session_keys)
    def drop(self, session: SessionKey) -> None:
        if self.give(d.Drop(session=session)):
            assert not may_dispatch(self.guard, session, self.now).ok
            assert not self.give(d.Opened(session=session))

    @invariant()
    def at_most_one_request_of_a_session_runs_or_may_start(self) -> None:
        alive = [self.sessions[rid] for rid in self.engine.agent.requests]
        alive += [s for rid, s in self.underway.items() if rid not in self.engine.agent.sealed]
        assert len(alive) == len(set(alive))

    @invariant()
    def the_guard_is_sound(self) -> None:
        assert dispatch_invariants(self.guard) == ()


TestDispatchMachine = DispatchMachine.TestCase
