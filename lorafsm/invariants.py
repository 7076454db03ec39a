"""The invariants of the protocol, recomputed from nothing (protocol section 4).

`check` looks at one registry, `check_change` at one step.  Both answer the broken invariants as sentences that
start with their number; an empty tuple means that all hold.  They scan everything and are for tests, the
explorer and the curious, not for production paths.  What only an engine or a whole system can show (I8 on the
engine, I13, I14) is checked where it can be seen: `lorafsm.engine.invariants` and the explorer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from lorafsm import lifecycle
from lorafsm.events import Commit, Event, Rollback
from lorafsm.identity import SessionKey, VersionKey
from lorafsm.lifecycle import (
    HOLDS_A_SLOT,
    SERVES,
    AttemptState,
    EngineState,
    OwnerState,
    ReclaimState,
    RepairState,
    SessionState,
    TargetState,
    UnloadState,
    VersionState,
)
from lorafsm.outcomes import Binding
from lorafsm.records import Attempt, Owner, Registry
from lorafsm.registry.view import is_unseen, may_dispatch, routable, session_state


def check(r: Registry) -> tuple[str, ...]:
    """Every broken invariant of this registry."""
    return tuple(
        sentence
        for part in (_default, _sessions, _refs, _capacity, _attempts, _reclaims, _repairs, _dispatch, _clock)
        for sentence in part(r)
    )


def check_change(before: Registry, event: Event, after: Registry) -> tuple[str, ...]:
    """Every invariant that this step broke: what may move, what is for ever, and the lifecycle tables."""
    return tuple(
        sentence
        for part in (_default_moves, _write_once, _final_sessions, _table_rows)
        for sentence in part(before, event, after)
    )


def _default(r: Registry) -> Iterator[str]:
    published = [v.key for v in r.versions.values() if v.state is VersionState.PUBLISHED]
    if published != ([] if r.default is None else [r.default]):
        yield f"I1: the default is {r.default}, PUBLISHED are {published}"
    if (r.default is None) != (r.default_revision == 0):
        yield f"I1: revision {r.default_revision} with default {r.default}"


def _sessions(r: Registry) -> Iterator[str]:
    for name, owner in r.owners.items():
        for sequence, session in owner.sessions.items():
            where = f"{name}/{sequence}"
            if is_unseen(owner, sequence):
                yield f"I10: live session {where} counts as unseen"
            if session.state not in (SessionState.OPEN, SessionState.BOUND, SessionState.FINALIZING):
                yield f"I10: {where} is kept as {session.state}"
            if (session.binding is None) != (session.position < 0):
                yield f"I4: {where} has binding {session.binding} and position {session.position}"
            if session.state is SessionState.BOUND and session.binding is None:
                yield f"I3: {where} is BOUND to nothing"
            if session.state is SessionState.OPEN and session.binding is not None:
                yield f"I3: {where} is OPEN with a binding"
        yield from _gaps(name, owner)


def _gaps(name: str, owner: Owner) -> Iterator[str]:
    end = -2
    for low, high in owner.gaps:
        if low > high or low < end + 1 or high >= owner.next_sequence:
            yield f"I10: gaps of {name} are not sorted ranges below {owner.next_sequence}: {owner.gaps}"
        end = high


def _refs(r: Registry) -> Iterator[str]:
    held: Counter[VersionKey] = Counter()
    for name, owner in r.owners.items():
        per_owner = Counter(s.binding for s in owner.sessions.values() if s.binding is not None)
        counted = {key: holders.count for key, holders in owner.held.items()}
        if owner.state is OwnerState.LIVE:
            held.update(per_owner)
            if counted != dict(per_owner):
                yield f"I4: {name} counts {counted}, its sessions hold {dict(per_owner)}"
            for key, holders in owner.held.items():
                entries = sorted(entry for block in holders.blocks.values() for entry in block)
                if len(entries) != holders.count or holders.oldest() != (entries[0] if entries else None):
                    yield f"I4: holders of {key} at {name} are out of step"
        elif counted:
            yield f"I4: {name} is {owner.state} and still counts {counted}"
    for version in r.versions.values():
        expected = 0 if version.revoked else held[version.key]
        if version.session_refs != expected:
            yield f"I4: {version.key} counts {version.session_refs} refs, live sessions hold {expected}"
        if version.session_refs and version.state not in SERVES:
            yield f"I4: {version.key} is {version.state} with {version.session_refs} refs"


def _capacity(r: Registry) -> Iterator[str]:
    holding = {v.key for v in r.versions.values() if v.state in HOLDS_A_SLOT}
    if set(r.slots) != holding or len(set(r.slots)) != len(r.slots):
        yield f"I5: slots are {r.slots}, holders are {sorted(holding)}"
    if len(r.slots) > r.config.capacity:
        yield f"I5: {len(r.slots)} slots used of {r.config.capacity}"


def _attempts(r: Registry) -> Iterator[str]:
    unresolved = [a.number for a in r.attempts.values() if a.state in (AttemptState.OPEN, AttemptState.ABORTED)]
    if unresolved != ([r.unresolved] if r.unresolved else []):
        yield f"I5: unresolved attempts are {unresolved}, the registry says {r.unresolved}"
    state_of_version = {AttemptState.OPEN: VersionState.LOADING, AttemptState.ABORTED: VersionState.ABORTED}
    for number in unresolved:
        attempt = r.attempts[number]
        version = r.versions[attempt.key]
        if version.state is not state_of_version[attempt.state] or version.number != number:
            yield f"I11: attempt {number} is {attempt.state}, {version.key} is {version.state}"
        yield from _targets(r, attempt)
    for attempt in r.attempts.values():
        dirty = [t.engine for t in attempt.targets.values() if t.state is not TargetState.CLEANED]
        if attempt.state is AttemptState.CLEAN and dirty:
            yield f"I11: attempt {attempt.number} is CLEAN with {dirty} not clean"
        if attempt.number >= r.next_number or attempt.token not in r.tokens:
            yield f"I12: attempt {attempt.number} has an unknown number or token"


def _targets(r: Registry, attempt: Attempt) -> Iterator[str]:
    for target in attempt.targets.values():
        if target.buckets_done > attempt.authorized or attempt.authorized > attempt.plan.buckets:
            yield f"I8: {target.engine} completed {target.buckets_done} of {attempt.authorized} authorised buckets"
        if target.state is TargetState.READY and target.buckets_done != attempt.plan.buckets:
            yield f"I8: {target.engine} is READY with {target.buckets_done} of {attempt.plan.buckets} buckets"


def _reclaims(r: Registry) -> Iterator[str]:
    for reclaim in r.reclaims.values():
        open_on = [u.engine for u in reclaim.unloads.values() if u.state is not UnloadState.UNLOADED]
        version = r.versions[reclaim.key]
        expected = VersionState.RECLAIMED if reclaim.state is ReclaimState.DONE else VersionState.RECLAIMING
        if version.state is not expected or version.reclaim_id != reclaim.reclaim_id:
            yield f"I6: reclaim {reclaim.reclaim_id} is {reclaim.state}, {version.key} is {version.state}"
        if (reclaim.state is ReclaimState.DONE) != (not open_on):
            yield f"I11: reclaim {reclaim.reclaim_id} is {reclaim.state} with {open_on} not unloaded"


def _repairs(r: Registry) -> Iterator[str]:
    ordered = {(p.engine, p.key): p.number for p in r.repairs.values() if p.state is RepairState.ORDERED}
    listed = {(e.engine, key): number for e in r.engines.values() for key, number in e.repairs.items()}
    if ordered != listed:
        yield f"I12: ORDERED repairs are {ordered}, the engines list {listed}"
    for engine in r.engines.values():
        if engine.state in (EngineState.DEAD,) and (engine.residents or engine.repairs):
            yield f"I11: {engine.engine} is DEAD and holds {sorted(engine.residents)}"
        for key, resident in engine.residents.items():
            if resident.digest != r.versions[key].digest or resident.key != key:
                yield f"I9: {engine.engine} is proved to hold {key} with another digest"


def _dispatch(r: Registry) -> Iterator[str]:
    for name, owner in r.owners.items():
        for sequence, session in owner.sessions.items():
            answer = may_dispatch(r, SessionKey(r.epoch, name, sequence))
            allowed = (
                owner.state is OwnerState.LIVE
                and session.state is SessionState.BOUND
                and session.binding is not None
                and r.versions[session.binding].state in SERVES
                and not r.versions[session.binding].revoked
            )
            if isinstance(answer, Binding) is not allowed:
                yield f"I7: dispatch of {name}/{sequence} is answered {answer}"
    for version in r.versions.values():
        for engine in routable(r, version.key):
            if version.state not in SERVES or version.key not in r.engines[engine].residents:
                yield f"I7: {version.key} is routed to {engine}, which did not prove it"


def _clock(r: Registry) -> Iterator[str]:
    if r.highest != max((key.version_id for key in r.versions), default=-1):
        yield f"I12: the highest version is {r.highest}, there are {sorted(r.versions)}"
    latest = max((v.since for v in r.versions.values()), default=0)
    if latest > r.now:
        yield f"I12: a version entered its state at {latest}, the clock says {r.now}"


def _default_moves(before: Registry, event: Event, after: Registry) -> Iterator[str]:
    if (before.default, before.default_revision) == (after.default, after.default_revision):
        return
    if not isinstance(event, Commit | Rollback):
        yield f"I2: {event.name} moved the default"
    if after.default_revision != before.default_revision + 1:
        yield f"I2: the revision went from {before.default_revision} to {after.default_revision}"


def _write_once(before: Registry, event: Event, after: Registry) -> Iterator[str]:
    for key, version in before.versions.items():
        if key not in after.versions or after.versions[key].digest != version.digest:
            yield f"I9: {key} changed its digest"
        if version.revoked and key in after.versions and not after.versions[key].revoked:
            yield f"I4: the revocation of {key} was taken back"
    for name, owner in before.owners.items():
        now = after.owners[name]
        for sequence, session in owner.sessions.items():
            later = now.sessions.get(sequence)
            if later is not None and session.binding is not None and later.binding != session.binding:
                yield f"I3: {name}/{sequence} was bound to {session.binding}, now to {later.binding}"
    for operation, receipt in before.receipts.items():
        if after.receipts.get(operation) != receipt:
            yield f"I12: the receipt of {operation} changed"
    if after.next_number < before.next_number or after.now < before.now:
        yield "I12: a counter or the clock ran backwards"
    known = max((key.version_id for key in before.versions), default=-1)
    for key in after.versions:
        if key not in before.versions and key.version_id < known:
            yield f"I12: {key} is new, and {known} was reserved before"


def _final_sessions(before: Registry, event: Event, after: Registry) -> Iterator[str]:
    for name, owner in before.owners.items():
        known = set(owner.sessions) | {edge + d for low, high in owner.gaps for edge in (low, high) for d in (-1, 1)}
        known |= {0, owner.next_sequence - 1} | set(after.owners[name].sessions)
        for sequence in sorted(s for s in known if s >= 0):
            session = SessionKey(before.epoch, name, sequence)
            was, now = session_state(before, session), session_state(after, session)
            if was in (SessionState.CLOSED, SessionState.EXPIRED) and now is not was:
                yield f"I10: {session} was {was} and is {now}"


def _table_rows(before: Registry, event: Event, after: Registry) -> Iterator[str]:
    for table, what, was, now in changes(before, after):
        if now not in table.get(was, {}).get(event.name, ()):
            yield f"tables: {event.name} took {what} from {was} to {now}"


def changes(before: Registry, after: Registry) -> Iterator[tuple[Mapping[Any, Any], str, Any, Any]]:
    """Every record whose state differs: its table, its name, the state before (None: new) and after."""
    for key, version in after.versions.items():
        yield from _changed(lifecycle.VERSION, f"version {key}", before.versions.get(key), version)
    for number, attempt in after.attempts.items():
        known = before.attempts.get(number)
        yield from _changed(lifecycle.ATTEMPT, f"attempt {number}", known, attempt)
        for engine, target in attempt.targets.items():
            old = known.targets.get(engine) if known is not None else None
            yield from _changed(lifecycle.TARGET, f"target {number}/{engine}", old, target)
    for reclaim_id, reclaim in after.reclaims.items():
        was = before.reclaims.get(reclaim_id)
        yield from _changed(lifecycle.RECLAIM, f"reclaim {reclaim_id}", was, reclaim)
        for engine, unload in reclaim.unloads.items():
            before_unload = was.unloads.get(engine) if was is not None else None
            # A reclaim whose engines are all gone when it is claimed is born done.
            yield from _changed(lifecycle.UNLOAD, f"unload {reclaim_id}/{engine}", before_unload, unload)
    for number, repair in after.repairs.items():
        yield from _changed(lifecycle.REPAIR, f"repair {number}", before.repairs.get(number), repair)
    for name, engine_after in after.engines.items():
        yield from _changed(lifecycle.ENGINE, f"engine {name}", before.engines.get(name), engine_after)
    for name, owner in after.owners.items():
        yield from _changed(lifecycle.OWNER, f"owner {name}", before.owners.get(name), owner)
        yield from _session_changes(before, after, name, owner)


def _session_changes(
    before: Registry, after: Registry, name: str, owner: Owner
) -> Iterator[tuple[Mapping[Any, Any], str, Any, Any]]:
    old = before.owners.get(name)
    sequences = set(owner.sessions) | (set(old.sessions) if old is not None else set())
    if old is not None and old.next_sequence != owner.next_sequence:
        sequences.add(owner.next_sequence - 1)
    for sequence in sorted(sequences):
        session = SessionKey(after.epoch, name, sequence)
        was, now = session_state(before, session), session_state(after, session)
        if was is not now:
            yield lifecycle.SESSION, f"session {session}", was, now


def _changed(
    table: Mapping[Any, Any], what: str, was: Any, now: Any
) -> Iterator[tuple[Mapping[Any, Any], str, Any, Any]]:
    state = was.state if was is not None else None
    if state is not now.state:
        yield table, what, state, now.state
