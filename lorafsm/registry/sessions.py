"""Owners and their sessions: open, bind once, close once (RFC 4, protocol rules 7-9).

The hot path of the library: no transition here looks at more than one session, and records are built
directly rather than evolved.
"""

from __future__ import annotations

from attrs import evolve
from immutables import Map

from lorafsm.effects import Alarm, Effect, Wake
from lorafsm.events import (
    BeginClose,
    BindFirst,
    CloseAndRelease,
    Heartbeat,
    Open,
    OwnerExpired,
    OwnerGone,
    OwnerUp,
    Recovered,
)
from lorafsm.holders import Holders
from lorafsm.identity import SessionKey, VersionKey
from lorafsm.lifecycle import OwnerState, SessionState, VersionState
from lorafsm.outcomes import Binding, Closed, Code, Done, Lease, Refusal, SessionStatus
from lorafsm.records import Owner, Registry, Session, Version
from lorafsm.registry.answer import Step, refuse
from lorafsm.registry.settle import with_serving_states
from lorafsm.registry.view import binding_of, gap_of, is_unseen

_WAKE_RECLAIMER: tuple[Effect, ...] = (Wake("reclaimer"),)
_NONE_HELD = Holders()


def owner_up(r: Registry, e: OwnerUp, now: int) -> Step:
    """A new process may hold sessions; asked again, it keeps the lease it has (rule 9)."""
    owner = r.owners.get(e.owner)
    if owner is None:
        owner = Owner(e.owner, OwnerState.LIVE, now + r.config.owner_lease)
        return Step(evolve(r, owners=r.owners.set(e.owner, owner)), Lease(e.owner, owner.lease_until))
    if owner.state is not OwnerState.LIVE:
        return refuse(
            r,
            Code.SESSION_EXPIRED,
            f"owner {e.owner} is {owner.state}; a restarted process takes a new id",
            field="owner",
        )
    return Step(r, Lease(e.owner, owner.lease_until, _revoked(r, owner)))


def heartbeat(r: Registry, e: Heartbeat, now: int) -> Step:
    """Renew the lease; say which versions policy took from this owner's sessions (rule 10)."""
    owner = r.owners.get(e.owner)
    if owner is None:
        return refuse(r, Code.UNKNOWN_OWNER, f"owner {e.owner} never registered", field="owner")
    if owner.state is not OwnerState.LIVE:
        return refuse(
            r, Code.SESSION_EXPIRED, f"owner {e.owner} is {owner.state}; its sessions are not revived", field="owner"
        )
    until = now + r.config.owner_lease
    answer = Lease(e.owner, until, _revoked(r, owner))
    if until == owner.lease_until:
        return Step(r, answer)
    return Step(evolve(r, owners=r.owners.set(e.owner, evolve(owner, lease_until=until))), answer)


def _revoked(r: Registry, owner: Owner) -> tuple[VersionKey, ...]:
    return tuple(sorted(key for key in owner.held if r.versions[key].revoked))


def owner_expired(r: Registry, e: OwnerExpired, now: int) -> Step:
    """The lease ran out: the owner's refs leave at once, whatever the number of its sessions (rule 9)."""
    owner = r.owners.get(e.owner)
    if owner is None:
        return refuse(r, Code.UNKNOWN_OWNER, f"owner {e.owner} never registered", field="owner")
    if owner.state is not OwnerState.LIVE:
        return Step(r, Done())
    if now <= owner.lease_until:
        return refuse(r, Code.OWNER_ALIVE, f"the lease runs for {owner.lease_until - now} ms more", field="owner")
    alarm = Alarm("OWNER_EXPIRED", f"owner {e.owner}: {len(owner.sessions)} live session(s) expired")
    return Step(_end_owner(r, owner, OwnerState.EXPIRED, now), Done(), (*_WAKE_RECLAIMER, alarm))


def owner_gone(r: Registry, e: OwnerGone, now: int) -> Step:
    """The owner's process has ended; no lease needs to be waited for (rule 9)."""
    owner = r.owners.get(e.owner)
    if owner is None:
        return refuse(r, Code.UNKNOWN_OWNER, f"owner {e.owner} never registered", field="owner")
    if owner.state is OwnerState.GONE:
        return Step(r, Done())
    return Step(_end_owner(r, owner, OwnerState.GONE, now), Done(), _WAKE_RECLAIMER)


def _end_owner(r: Registry, owner: Owner, state: OwnerState, now: int) -> Registry:
    versions = r.versions
    for key, holders in sorted(owner.held.items()):
        version = versions[key]
        if not version.revoked:
            versions = versions.set(key, evolve(version, session_refs=version.session_refs - holders.count))
    ended = evolve(owner, state=state, held=Map())
    return with_serving_states(evolve(r, versions=versions, owners=r.owners.set(owner.owner, ended)), now)


def recovered(r: Registry, e: Recovered, now: int) -> Step:
    """After a recovery nobody is late: every lease runs anew from `now` (protocol section 1)."""
    owners = r.owners
    for name, owner in sorted(r.owners.items()):
        until = now + r.config.owner_lease
        if owner.state is OwnerState.LIVE and until != owner.lease_until:
            owners = owners.set(name, evolve(owner, lease_until=until))
    attempts = r.attempts
    if r.unresolved:
        attempt = attempts[r.unresolved]
        until = now + r.config.driver_lease
        if until != attempt.driver_until:
            attempts = attempts.set(r.unresolved, evolve(attempt, driver_until=until))
    wakes: tuple[Effect, ...] = (Wake("publisher"), Wake("reclaimer"), Wake("repairer"))
    changed = owners is not r.owners or attempts is not r.attempts
    return Step(evolve(r, owners=owners, attempts=attempts) if changed else r, Done(), wakes)


def open_session(r: Registry, e: Open, now: int) -> Step:
    """Register a session; it binds at its first generation, not here (RFC 4.1)."""
    key = e.session
    owner = r.owners.get(key.owner)
    refusal = _late(owner, key)
    if refusal is not None:
        return Step(r, refusal)
    assert owner is not None
    live = owner.sessions.get(key.sequence)
    if live is not None:
        return Step(r, SessionStatus(key, live.state))
    opened = Session(SessionState.OPEN, e.label, now)
    return Step(_put(r, now, _with_session(owner, key.sequence, opened)), SessionStatus(key, SessionState.OPEN))


def bind_first(r: Registry, e: BindFirst, now: int) -> Step:
    """Bind to the default, once; asked again, answer what was bound (RFC 4.1, rule 7)."""
    key = e.session
    owner = r.owners.get(key.owner)
    refusal = _late(owner, key)
    if refusal is not None:
        return Step(r, refusal)
    assert owner is not None
    live = owner.sessions.get(key.sequence)
    if live is not None and live.binding is not None:
        return Step(r, binding_of(r, key, r.versions[live.binding]))
    if r.default is None:
        return refuse(r, Code.NO_PUBLISHED_VERSION, "no version is published yet; wait for the first commit")
    version = r.versions[r.default]
    holders = owner.held.get(version.key, _NONE_HELD)
    bound = Session(SessionState.BOUND, live.label if live is not None else "", now, version.key, holders.appended)
    held = owner.held.set(version.key, holders.append(key.sequence, now))
    after = _put(r, now, _with_session(owner, key.sequence, bound, held), _with_refs(version, version.session_refs + 1))
    return Step(after, Binding(key, version.key, version.lora_name, version.digest))


def begin_close(r: Registry, e: BeginClose, now: int) -> Step:
    """No new dispatch, no late open or bind; the ref is held until it is released (RFC 4.3)."""
    key = e.session
    owner = r.owners.get(key.owner)
    if owner is None:
        return refuse(r, Code.UNKNOWN_OWNER, f"owner {key.owner} never registered", field="session")
    live = owner.sessions.get(key.sequence)
    if owner.state is not OwnerState.LIVE or (live is None and not is_unseen(owner, key.sequence)):
        return Step(r, Closed(key, Code.ALREADY_CLOSED))
    if live is None:
        live = Session(SessionState.FINALIZING, "", now)
    elif live.state is SessionState.FINALIZING:
        return Step(r, SessionStatus(key, SessionState.FINALIZING))
    else:
        live = Session(SessionState.FINALIZING, live.label, now, live.binding, live.position)
    return Step(_put(r, now, _with_session(owner, key.sequence, live)), SessionStatus(key, SessionState.FINALIZING))


def close_and_release(r: Registry, e: CloseAndRelease, now: int) -> Step:
    """The end of a session: its ref is dropped once, CLOSED is for ever (RFC 4.3, rule 8)."""
    key = e.session
    owner = r.owners.get(key.owner)
    if owner is None:
        return refuse(r, Code.UNKNOWN_OWNER, f"owner {key.owner} never registered", field="session")
    live = owner.sessions.get(key.sequence)
    if owner.state is not OwnerState.LIVE or (live is None and not is_unseen(owner, key.sequence)):
        return Step(r, Closed(key, Code.ALREADY_CLOSED))
    if live is None:
        return Step(_put(r, now, _mark_seen(owner, key.sequence)), Closed(key))
    sessions = owner.sessions.delete(key.sequence)
    if live.binding is None:
        ended = Owner(
            owner.owner, owner.state, owner.lease_until, sessions, owner.next_sequence, owner.gaps, owner.held
        )
        return Step(_put(r, now, ended), Closed(key))
    return _release(r, owner, live, live.binding, sessions, key, now)


def _release(
    r: Registry,
    owner: Owner,
    live: Session,
    binding: VersionKey,
    sessions: Map[int, Session],
    key: SessionKey,
    now: int,
) -> Step:
    holders = owner.held[binding].remove(live.position)
    held = owner.held.set(binding, holders) if holders.count else owner.held.delete(binding)
    ended = Owner(owner.owner, owner.state, owner.lease_until, sessions, owner.next_sequence, owner.gaps, held)
    version = r.versions[binding]
    if version.revoked:  # its refs were dropped by policy, all at once
        return Step(_put(r, now, ended), Closed(key))
    after = _put(r, now, ended, _with_refs(version, version.session_refs - 1))
    answer = Closed(key, Code.OK, binding)
    if version.session_refs > 1 or version.state is not VersionState.RETIRED:
        return Step(after, answer)
    return Step(with_serving_states(after, now), answer, _WAKE_RECLAIMER)  # nobody needs it any more


def _late(owner: Owner | None, key: SessionKey) -> Refusal | None:
    """Why an open or a bind comes too late, or too early; None: it may go on."""
    if owner is None:
        return Refusal(Code.UNKNOWN_OWNER, f"owner {key.owner} never registered", field="session")
    live = owner.sessions.get(key.sequence)
    if live is None and not is_unseen(owner, key.sequence):
        return Refusal(Code.SESSION_CLOSED, f"session {key} is CLOSED; a reopened label takes a new sequence")
    if owner.state is not OwnerState.LIVE:
        return Refusal(Code.SESSION_EXPIRED, f"owner {key.owner} is {owner.state}; its sessions are not revived")
    if live is None:
        return None
    if live.state is SessionState.FINALIZING:
        return Refusal(Code.SESSION_CLOSED, f"session {key} is FINALIZING; a reopened label takes a new sequence")
    return None


def _with_session(owner: Owner, sequence: int, session: Session, held: Map[VersionKey, Holders] | None = None) -> Owner:
    frontier, gaps = _seen(owner, sequence)
    return Owner(
        owner.owner,
        owner.state,
        owner.lease_until,
        owner.sessions.set(sequence, session),
        frontier,
        gaps,
        owner.held if held is None else held,
    )


def _mark_seen(owner: Owner, sequence: int) -> Owner:
    frontier, gaps = _seen(owner, sequence)
    return Owner(owner.owner, owner.state, owner.lease_until, owner.sessions, frontier, gaps, owner.held)


def _seen(owner: Owner, sequence: int) -> tuple[int, tuple[tuple[int, int], ...]]:
    """Frontier and gaps once something is said about a sequence: it leaves its gap, or moves the frontier."""
    frontier, gaps = owner.next_sequence, owner.gaps
    if sequence >= frontier:
        return sequence + 1, (*gaps, (frontier, sequence - 1)) if sequence > frontier else gaps
    place = gap_of(owner, sequence)
    if place is None:
        return frontier, gaps
    low, high = gaps[place]
    parts = (low, sequence - 1), (sequence + 1, high)
    return frontier, (*gaps[:place], *(part for part in parts if part[0] <= part[1]), *gaps[place + 1 :])


def _with_refs(v: Version, refs: int) -> Version:
    return Version(
        v.key,
        v.digest,
        v.lora_name,
        v.state,
        v.number,
        v.since,
        refs,
        v.published_revision,
        v.reclaim_id,
        v.artifact,
        v.revoked,
        v.failure,
        v.tensors,
        v.nbytes,
    )


def _put(r: Registry, now: int, owner: Owner, version: Version | None = None) -> Registry:
    return Registry(
        r.config,
        r.epoch,
        now,
        r.versions if version is None else r.versions.set(version.key, version),
        r.slots,
        r.default,
        r.default_revision,
        r.owners.set(owner.owner, owner),
        r.engines,
        r.attempts,
        r.unresolved,
        r.reclaims,
        r.repairs,
        r.tokens,
        r.receipts,
        r.next_number,
        r.highest,
    )
