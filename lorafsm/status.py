"""One call that says where everything stands: who holds what, what is under way, what the next reserve waits for.

`status` only looks.  It walks versions, engines and owners, never sessions.  Ages are in milliseconds, counted to
`now` (protocol rule 16: status names what would free a slot and who can say so).
"""

from __future__ import annotations

from enum import Enum
from itertools import count
from typing import Any

from attrs import asdict, frozen

from lorafsm.events import Reserve
from lorafsm.identity import SessionKey, VersionKey
from lorafsm.lifecycle import (
    AttemptState,
    EngineState,
    OwnerState,
    ReclaimState,
    TargetState,
    UnloadState,
    VersionState,
)
from lorafsm.manifest import store_plan
from lorafsm.outcomes import Blocker, Refusal
from lorafsm.records import Attempt, Engine, Reclaim, Registry, Stray, Version
from lorafsm.registry.step import step
from lorafsm.registry.view import blockers, doomed_targets, members, oldest_holder, routable, unready_targets


@frozen(kw_only=True)
class VersionLine:
    """One version: state and its age, who holds it, where it can be routed."""

    key: VersionKey
    lora_name: str
    digest: str
    state: VersionState
    age: int  # ms in this state
    attempt: int  # number of its latest attempt
    session_refs: int
    oldest: SessionKey | None  # the session that has held it longest
    oldest_age: int  # ms since that session was bound
    routable: tuple[str, ...]  # engines that proved it under their live incarnation (rule 15)
    holds_slot: bool
    artifact: bool
    revoked: bool
    reclaim_id: str
    failure: str
    tensors: int
    nbytes: int


@frozen(kw_only=True)
class RepairLine:
    """A repair that is ordered and not answered."""

    number: int
    key: VersionKey


@frozen(kw_only=True)
class EngineLine:
    """One engine: its incarnation, what it proved to hold, what should not be there, what it still lacks."""

    engine: str
    incarnation: int
    state: EngineState
    age: int  # ms in this state
    seq: int
    residents: tuple[VersionKey, ...]
    strays: tuple[Stray, ...]
    repairs: tuple[RepairLine, ...]
    repair_failures: int
    retry_in: int  # ms until the next repair may be ordered; 0: now
    reason: str


@frozen(kw_only=True)
class TargetLine:
    """One engine's share of the unresolved attempt."""

    engine: str
    incarnation: int
    state: TargetState
    buckets_done: int
    detail: str


@frozen(kw_only=True)
class AttemptLine:
    """The attempt that is OPEN, or ABORTED and not clean.  Its token is not shown: it is the driver's authority."""

    number: int
    key: VersionKey
    state: AttemptState
    revision: int  # the default revision seen at reserve
    buckets: int
    authorized: int
    driver_lease: int  # ms until another publisher may take over; 0: now
    taken_over: bool
    reason: str
    targets: tuple[TargetLine, ...]
    not_ready: tuple[str, ...]  # engines that a commit waits for
    doomed: tuple[str, ...]  # targets whose incarnation is dead: only an abort is left


@frozen(kw_only=True)
class UnloadLine:
    """One engine's share of an open reclaim."""

    engine: str
    incarnation: int
    state: UnloadState


@frozen(kw_only=True)
class ReclaimLine:
    """A reclaim that is not confirmed by every engine."""

    reclaim_id: str
    key: VersionKey
    age: int  # ms since it was claimed
    unloads: tuple[UnloadLine, ...]


@frozen(kw_only=True)
class Status:
    """The registry at a glance.  `next_reserve` is the refusal that a reserve of a new version would get now."""

    epoch: str
    now: int
    default: VersionKey | None
    revision: int
    capacity: int
    slots_used: int
    versions: tuple[VersionLine, ...]
    engines: tuple[EngineLine, ...]
    attempt: AttemptLine | None
    reclaims: tuple[ReclaimLine, ...]
    next_reserve: Refusal | None
    holders: tuple[Blocker, ...]  # every version that holds a slot, and what would free it
    live_owners: int
    live_sessions: int

    def as_dict(self) -> dict[str, Any]:
        """The same as plain JSON types; keys of versions and sessions in their text form."""
        return asdict(self, value_serializer=_plain)


def status(registry: Registry, now: int | None = None) -> Status:
    """Where the registry stands at `now` (ms; never before its latest event; left out: at its latest event)."""
    r, at = registry, max(registry.now, registry.now if now is None else now)
    unresolved = r.attempts.get(r.unresolved)
    live = [owner for owner in r.owners.values() if owner.state is OwnerState.LIVE]
    return Status(
        epoch=r.epoch,
        now=at,
        default=r.default,
        revision=r.default_revision,
        capacity=r.config.capacity,
        slots_used=len(r.slots),
        versions=tuple(_version(r, version, at) for _, version in sorted(r.versions.items())),
        engines=tuple(_engine(r, engine, at) for engine in members(r)),
        attempt=None if unresolved is None else _attempt(r, unresolved, at),
        reclaims=tuple(_reclaim(c, at) for _, c in sorted(r.reclaims.items()) if c.state is ReclaimState.OPEN),
        next_reserve=next_reserve(r, at),
        holders=blockers(r, at),
        live_owners=len(live),
        live_sessions=sum(len(owner.sessions) for owner in live),
    )


def next_reserve(r: Registry, now: int) -> Refusal | None:
    """What a reserve of a version never heard of would be refused with; None: it would be accepted.

    `reserve` itself is asked, on a registry that is then thrown away, so that the order of its checks is its own.
    """
    unheard = VersionKey(r.epoch, r.highest + 1)
    token = next(text for number in count() if (text := f"status-{number}") not in r.tokens)
    asked = step(r, Reserve(key=unheard, digest="0" * 64, plan=store_plan(), token=token, now=now))
    return asked.outcome if isinstance(asked.outcome, Refusal) else None


def _version(r: Registry, version: Version, now: int) -> VersionLine:
    oldest = oldest_holder(r, version.key) if version.session_refs else None
    return VersionLine(
        key=version.key,
        lora_name=version.lora_name,
        digest=version.digest,
        state=version.state,
        age=max(0, now - version.since),
        attempt=version.number,
        session_refs=version.session_refs,
        oldest=None if oldest is None else oldest[0],
        oldest_age=0 if oldest is None else max(0, now - oldest[1]),
        routable=routable(r, version.key),
        holds_slot=version.key in r.slots,
        artifact=version.artifact,
        revoked=version.revoked,
        reclaim_id=version.reclaim_id,
        failure=version.failure,
        tensors=version.tensors,
        nbytes=version.nbytes,
    )


def _engine(r: Registry, engine: Engine, now: int) -> EngineLine:
    return EngineLine(
        engine=engine.engine,
        incarnation=engine.incarnation,
        state=engine.state,
        age=max(0, now - engine.since),
        seq=engine.seq,
        residents=tuple(sorted(engine.residents)),
        strays=tuple(sorted(engine.strays)),
        repairs=tuple(RepairLine(number=n, key=key) for key, n in sorted(engine.repairs.items())),
        repair_failures=engine.repair_failures,
        retry_in=max(0, engine.retry_at - now),
        reason=engine.reason,
    )


def _attempt(r: Registry, attempt: Attempt, now: int) -> AttemptLine:
    is_open = attempt.state is AttemptState.OPEN
    return AttemptLine(
        number=attempt.number,
        key=attempt.key,
        state=attempt.state,
        revision=attempt.revision,
        buckets=attempt.plan.buckets,
        authorized=attempt.authorized,
        driver_lease=max(0, attempt.driver_until - now) if is_open else 0,
        taken_over=attempt.taken_over,
        reason=attempt.reason,
        targets=tuple(
            TargetLine(
                engine=t.engine, incarnation=t.incarnation, state=t.state, buckets_done=t.buckets_done, detail=t.detail
            )
            for _, t in sorted(attempt.targets.items())
        ),
        not_ready=unready_targets(r, attempt) if is_open else (),
        doomed=doomed_targets(r, attempt) if is_open else (),
    )


def _reclaim(reclaim: Reclaim, now: int) -> ReclaimLine:
    return ReclaimLine(
        reclaim_id=reclaim.reclaim_id,
        key=reclaim.key,
        age=max(0, now - reclaim.since),
        unloads=tuple(
            UnloadLine(engine=u.engine, incarnation=u.incarnation, state=u.state)
            for _, u in sorted(reclaim.unloads.items())
        ),
    )


def _plain(_owner: object, _field: object, value: Any) -> Any:
    if isinstance(value, (VersionKey, SessionKey)):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return [_plain(None, None, item) if isinstance(item, (VersionKey, SessionKey)) else item for item in value]
    return value
