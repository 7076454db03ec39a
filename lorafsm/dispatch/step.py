"""`dispatch_step(guard, event)`: the one function through which a guard changes; `may_dispatch` only asks.

Total and deterministic; a refusal changes nothing; nothing is mutated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import evolve

from lorafsm.dispatch.records import (
    EVENTS,
    AbortRequest,
    Admission,
    AdmissionUnknown,
    Admitted,
    BackendAttempt,
    BeginClose,
    Bound,
    DispatchCode,
    DispatchStep,
    Drop,
    Event,
    Finished,
    Guard,
    GuardedSession,
    LeaseLost,
    LeaseRenewed,
    Noted,
    Opened,
    Refused,
    SealRid,
    Settled,
    StartAttempt,
    Verdict,
    fault_in,
)
from lorafsm.identity import SessionKey
from lorafsm.outcomes import Binding, Code


def may_dispatch(g: Guard, session: SessionKey, now: int) -> Binding | Refused:
    """Whether a request of this session may be sent, and under which exact name (rule 10, I7)."""
    if g.lost:
        return Refused(Code.SESSION_EXPIRED, f"owner {g.owner} was ended; open new sessions under a new owner")
    if now >= g.lease_until:
        return Refused(DispatchCode.LEASE_STALE, "renew the lease first; the registry may end this owner")
    known = _session(g, session)
    if isinstance(known, Refused):
        return known
    if known.finalizing:
        return Refused(Code.SESSION_CLOSED, f"session {session} is closing")
    if known.binding is None:
        return Refused(Code.NO_BINDING, f"session {session} is not bound; bind it first")
    if known.binding.key in g.revoked:
        return Refused(
            Code.VERSION_RETIRED_BY_POLICY, f"{known.binding.key} was taken from its sessions; open a new one"
        )
    return _blocked(known) or known.binding


def _blocked(known: GuardedSession) -> Refused | None:
    if known.attempt is None:
        return None
    if known.attempt.admission is Admission.UNKNOWN:
        return Refused(Code.RETRY_UNSAFE, f"request {known.attempt.rid} may be running; settle it first")
    return Refused(DispatchCode.ATTEMPT_IN_FLIGHT, f"request {known.attempt.rid} is {known.attempt.admission}")


def _session(g: Guard, session: SessionKey) -> GuardedSession | Refused:
    known = g.sessions.get(session.sequence) if _is_own(g, session) else None
    if known is not None:
        return known
    if _is_own(g, session) and session.sequence < g.next_sequence:
        return Refused(Code.SESSION_CLOSED, f"session {session} is closed")
    return Refused(DispatchCode.UNKNOWN_SESSION, f"session {session} was not opened here", field="session")


def _is_own(g: Guard, session: SessionKey) -> bool:
    return session.epoch == g.epoch and session.owner == g.owner


def _put(g: Guard, session: SessionKey, known: GuardedSession) -> Guard:
    return evolve(g, sessions=g.sessions.set(session.sequence, known))


def _renewed(g: Guard, e: LeaseRenewed) -> DispatchStep:
    if g.lost:
        return DispatchStep(g, Refused(Code.SESSION_EXPIRED, f"owner {g.owner} was ended"))
    until = max(g.lease_until, e.sent + e.lease - g.margin)
    return DispatchStep(evolve(g, lease_until=until, revoked=g.revoked | e.revoked), Noted())


def _lost(g: Guard, e: LeaseLost) -> DispatchStep:
    return DispatchStep(g if g.lost else evolve(g, lost=True), Noted())


def _opened(g: Guard, e: Opened) -> DispatchStep:
    if not _is_own(g, e.session):
        return DispatchStep(g, Refused(DispatchCode.UNKNOWN_SESSION, f"{e.session} is not of {g.owner}", "session"))
    if e.session.sequence in g.sessions:
        return DispatchStep(g, Noted())
    if e.session.sequence < g.next_sequence:
        return DispatchStep(g, Refused(Code.SESSION_CLOSED, f"session {e.session} is closed"))
    after = evolve(g, next_sequence=e.session.sequence + 1)
    return DispatchStep(_put(after, e.session, GuardedSession()), Noted())


def _bound(g: Guard, e: Bound, known: GuardedSession) -> DispatchStep:
    if e.binding.session != e.session:
        return DispatchStep(g, Refused(Code.BAD_INPUT, "must be this session's binding", "binding"))
    if known.binding is not None:
        if known.binding == e.binding:
            return DispatchStep(g, known.binding)
        return DispatchStep(g, Refused(Code.OPERATION_CONFLICT, f"{e.session} is bound to {known.binding.key}"))
    if known.finalizing:
        return DispatchStep(g, Refused(Code.SESSION_CLOSED, f"session {e.session} is closing"))
    return DispatchStep(_put(g, e.session, evolve(known, binding=e.binding)), e.binding)


def _start(g: Guard, e: StartAttempt, known: GuardedSession) -> DispatchStep:
    binding = may_dispatch(g, e.session, e.now)
    if isinstance(binding, Refused):
        return DispatchStep(g, binding)
    if e.attempt != known.attempts + 1:
        return DispatchStep(
            g, Refused(Code.OUT_OF_ORDER, f"the next attempt is number {known.attempts + 1}", "attempt")
        )
    started = evolve(known, attempt=BackendAttempt(e.rid), attempts=e.attempt)
    return DispatchStep(_put(g, e.session, started), binding)


def _admitted(g: Guard, e: Admitted, known: GuardedSession) -> DispatchStep:
    return _with_admission(g, e, known, Admission.RUNNING)


def _unknown(g: Guard, e: AdmissionUnknown, known: GuardedSession) -> DispatchStep:
    return _with_admission(g, e, known, Admission.UNKNOWN)


def _finished(g: Guard, e: Finished, known: GuardedSession) -> DispatchStep:
    return _with_admission(g, e, known, None)


def _settled(g: Guard, e: Settled, known: GuardedSession) -> DispatchStep:
    current = known.attempt
    if current is not None and current.rid == e.rid and current.admission is not Admission.UNKNOWN:
        return DispatchStep(g, Refused(Code.OUT_OF_ORDER, f"request {e.rid} is {current.admission}, not in doubt"))
    done = _with_admission(g, e, known, Admission.RUNNING if e.verdict is Verdict.RUNNING else None)
    if done.outcome.ok and e.verdict is Verdict.ABSENT and known.binding is not None:
        return evolve(done, actions=(SealRid(e.rid, known.binding.key),))
    return done


def _with_admission(
    g: Guard, e: Admitted | Finished | AdmissionUnknown | Settled, known: GuardedSession, admission: Admission | None
) -> DispatchStep:
    """Take in news of the current attempt; None: it is over.  News of another rid are late and change nothing."""
    if known.attempt is None or known.attempt.rid != e.rid:
        return DispatchStep(g, Refused(Code.STALE_ATTEMPT, f"request {e.rid} is not the one in flight", "rid"))
    attempt = None if admission is None else BackendAttempt(e.rid, admission)
    if attempt == known.attempt:
        return DispatchStep(g, Noted())
    return DispatchStep(_put(g, e.session, evolve(known, attempt=attempt)), Noted())


def _begin_close(g: Guard, e: BeginClose, known: GuardedSession) -> DispatchStep:
    if known.finalizing:
        return DispatchStep(g, Noted())
    stop = () if known.attempt is None else (AbortRequest(known.attempt.rid),)
    return DispatchStep(_put(g, e.session, evolve(known, finalizing=True)), Noted(), stop)


def _drop(g: Guard, e: Drop, known: GuardedSession) -> DispatchStep:
    if not known.finalizing:
        return DispatchStep(g, Refused(Code.OUT_OF_ORDER, f"begin to close session {e.session} first"))
    if blocked := _blocked(known):
        return DispatchStep(g, blocked)
    return DispatchStep(evolve(g, sessions=g.sessions.delete(e.session.sequence)), Noted())


_OF_OWNER: Mapping[type[Any], Callable[[Guard, Any], DispatchStep]] = {
    LeaseRenewed: _renewed,
    LeaseLost: _lost,
    Opened: _opened,
}
_OF_SESSION: Mapping[type[Any], Callable[[Guard, Any, GuardedSession], DispatchStep]] = {
    Bound: _bound,
    StartAttempt: _start,
    Admitted: _admitted,
    Finished: _finished,
    AdmissionUnknown: _unknown,
    Settled: _settled,
    BeginClose: _begin_close,
    Drop: _drop,
}
assert {*_OF_OWNER, *_OF_SESSION} == set(EVENTS)


def dispatch_step(guard: Guard, event: Event) -> DispatchStep:
    """The guard after `event`, the outcome, and what is to be done.  Refusals are outcomes; nothing is raised."""
    if type(event) not in EVENTS:
        return DispatchStep(guard, Refused(Code.BAD_INPUT, f"{type(event).__name__} is no event", "event"))
    if fault := fault_in(event):
        return DispatchStep(guard, Refused(Code.BAD_INPUT, fault[1], fault[0]))
    if isinstance(event, LeaseRenewed | LeaseLost | Opened):
        return _OF_OWNER[type(event)](guard, event)
    known = _session(guard, event.session)
    if isinstance(known, Refused):
        return DispatchStep(guard, known)
    return _OF_SESSION[type(event)](guard, event, known)


def dispatch_invariants(guard: Guard) -> tuple[str, ...]:
    """The invariants that this guard breaks; empty for every guard that `dispatch_step` can reach."""
    broken = []
    for sequence, known in guard.sessions.items():
        if sequence >= guard.next_sequence:
            broken.append(f"I10 session {sequence} is live at or above the frontier {guard.next_sequence}")
        if known.attempt is not None and (known.binding is None or not known.attempts):
            broken.append(f"I7 session {sequence} sent a request without a binding")
    return tuple(broken)
