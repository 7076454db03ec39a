"""Questions one may ask of a registry; none changes it, none scans the sessions."""

from __future__ import annotations

from bisect import bisect_right

from lorafsm.holders import Holder
from lorafsm.identity import LARGEST_INT, SessionKey, VersionKey
from lorafsm.lifecycle import ALIVE, SERVES, EngineState, OwnerState, SessionState, TargetState, VersionState
from lorafsm.outcomes import Aborted, Binding, Blocker, Code, Committed, Refusal
from lorafsm.records import Attempt, Engine, Owner, Registry, Target, Version


def members(r: Registry) -> tuple[Engine, ...]:
    """The fleet in the order of engine ids, dead members included, removed ones not."""
    return tuple(e for _, e in sorted(r.engines.items()) if e.state is not EngineState.REMOVED)


def doomed_targets(r: Registry, attempt: Attempt) -> tuple[str, ...]:
    """Targets whose frozen incarnation is dead: the attempt cannot be committed any more (rule 3)."""
    return tuple(sorted(t.engine for t in attempt.targets.values() if is_doomed(r, t)))


def is_doomed(r: Registry, target: Target) -> bool:
    """Whether the incarnation that this target was frozen with is dead."""
    engine = r.engines[target.engine]
    return engine.incarnation != target.incarnation or engine.state in (EngineState.DEAD, EngineState.REMOVED)


def unready_targets(r: Registry, attempt: Attempt) -> tuple[str, ...]:
    """Targets whose READY does not count now: not given, or its engine is not alive (rule 3)."""
    return tuple(
        sorted(
            t.engine
            for t in attempt.targets.values()
            if t.state is not TargetState.READY or r.engines[t.engine].state not in ALIVE
        )
    )


def attempt_outcome(r: Registry, number: int) -> Committed | Aborted | None:
    """How an attempt ended, the same for whoever asks and for ever; None: it is open, or there is none (RFC 6).

    Training ranks that wait for one outcome read this: it does not say who asked or who decided.
    """
    stored = r.receipts.get(("commit", str(number))) or r.receipts.get(("abort", str(number)))
    return stored if isinstance(stored, Committed | Aborted) else None


def routable(r: Registry, key: VersionKey) -> tuple[str, ...]:
    """Engines that proved exactly this version under their live incarnation and may serve it (rule 15)."""
    version = r.versions.get(key)
    if version is None or version.state not in SERVES or version.revoked:
        return ()
    return tuple(m.engine for m in members(r) if m.state in ALIVE and key in m.residents)


def lacks(engine: Engine, r: Registry) -> tuple[VersionKey, ...]:
    """Versions that sessions may need and this engine did not prove: PUBLISHED, and RETIRED with refs (rule 15)."""
    return tuple(key for key in r.slots if is_needed(r.versions[key]) and key not in engine.residents)


def is_needed(version: Version) -> bool:
    """Whether every member must hold the version (rule 15)."""
    return version.state is VersionState.PUBLISHED or (
        version.state is VersionState.RETIRED and version.session_refs > 0
    )


def is_unseen(owner: Owner, sequence: int) -> bool:
    """Whether nothing was ever said about this sequence."""
    return sequence >= owner.next_sequence or gap_of(owner, sequence) is not None


def gap_of(owner: Owner, sequence: int) -> int | None:
    """The place in `owner.gaps` of the range that holds this sequence; it is searched for by halving."""
    place = bisect_right(owner.gaps, (sequence, LARGEST_INT)) - 1
    return place if place >= 0 and sequence <= owner.gaps[place][1] else None


def session_state(r: Registry, session: SessionKey) -> SessionState | None:
    """Where a session stands; None: never heard of."""
    owner = r.owners.get(session.owner)
    if owner is None or session.epoch != r.epoch:
        return None
    live = owner.sessions.get(session.sequence)
    if live is not None:
        return live.state if owner.state is OwnerState.LIVE else SessionState.EXPIRED
    if not is_unseen(owner, session.sequence):
        return SessionState.CLOSED
    return None if owner.state is OwnerState.LIVE else SessionState.EXPIRED


def may_dispatch(r: Registry, session: SessionKey) -> Binding | Refusal:
    """Whether a request of this session may be sent, and under which exact name (rule 10, I7).

    The owner's process judges by its own copy of this rule (`lorafsm.dispatch`); this is the registry's word.
    """
    state = session_state(r, session)
    if state is SessionState.CLOSED or state is SessionState.FINALIZING:
        return Refusal(Code.SESSION_CLOSED, f"session {session} is {state}")
    if state is SessionState.EXPIRED:
        return Refusal(Code.SESSION_EXPIRED, f"session {session} ended with its owner; open a new one")
    live = r.owners[session.owner].sessions[session.sequence] if state is not None else None
    if live is None or live.binding is None:
        return Refusal(Code.NO_BINDING, f"session {session} is not bound; bind it first")
    return binding_of(r, session, r.versions[live.binding])


def binding_of(r: Registry, session: SessionKey, version: Version) -> Binding | Refusal:
    """The binding to answer, unless the version is gone or was revoked."""
    if version.revoked:
        return Refusal(Code.VERSION_RETIRED_BY_POLICY, f"{version.key} was taken from its sessions; open a new session")
    if version.state not in SERVES:
        return Refusal(Code.VERSION_GONE, f"{version.key} is {version.state}; nothing else may stand in for it")
    return Binding(session, version.key, version.lora_name, version.digest)


def oldest_holder(r: Registry, key: VersionKey) -> tuple[SessionKey, int] | None:
    """The session that has held this version longest, and since when.  Looks at owners, never at their sessions."""
    best: tuple[Holder, str] | None = None
    for name, owner in r.owners.items():
        holders = owner.held.get(key) if owner.state is OwnerState.LIVE else None
        first = holders.oldest() if holders is not None else None
        if first is not None and (best is None or (first[2], name) < (best[0][2], best[1])):
            best = first, name
    return None if best is None else (SessionKey(r.epoch, best[1], best[0][1]), best[0][2])


def blocker(r: Registry, key: VersionKey, now: int) -> Blocker:
    """Why this version still holds its slot."""
    version = r.versions[key]
    oldest = oldest_holder(r, key) if version.session_refs else None
    return Blocker(
        key,
        version.state,
        version.session_refs,
        _waits_for(r, version),
        None if oldest is None else oldest[0],
        0 if oldest is None else max(0, now - oldest[1]),
    )


def blockers(r: Registry, now: int) -> tuple[Blocker, ...]:
    """Every version that holds a slot, in the order of their reserve."""
    return tuple(blocker(r, key, now) for key in r.slots)


def _waits_for(r: Registry, version: Version) -> str:
    match version.state:
        case VersionState.PUBLISHED:
            return "it is the default; the next commit retires it"
        case VersionState.RETIRED if version.session_refs:
            return f"{version.session_refs} session(s) hold it until they close"
        case VersionState.RETIRED:
            return "nobody holds it; a reclaim may be claimed"
        case VersionState.RECLAIMING:
            unloads = r.reclaims[version.reclaim_id].unloads.values()
            waiting = sorted(u.engine for u in unloads if u.state != "UNLOADED")
            return f"unload not confirmed by {', '.join(waiting)}; a receipt or a dead incarnation frees it"
        case VersionState.ABORTED:
            targets = r.attempts[version.number].targets.values()
            waiting = sorted(t.engine for t in targets if t.state is not TargetState.CLEANED)
            return f"cleanup not confirmed by {', '.join(waiting)}; a receipt or a dead incarnation frees it"
        case _:
            return "its publication is under way; commit or abort ends it"
