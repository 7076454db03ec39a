"""Publication: reserve, the targets' progress, commit, abort, cleanup (RFC 3, protocol rules 1-6).

Nothing here waits: a transition reads the registry, says yes or no, and states what is now true.
"""

from __future__ import annotations

from attrs import evolve
from immutables import Map

from lorafsm.effects import Alarm, Wake
from lorafsm.events import (
    Abort,
    ArtifactStored,
    AuthorizeBucket,
    Commit,
    Reserve,
    Rollback,
    Takeover,
)
from lorafsm.identity import lora_name
from lorafsm.lifecycle import ALIVE, AttemptState, EngineState, TargetState, VersionState
from lorafsm.outcomes import (
    Aborted,
    Authorized,
    Code,
    Committed,
    Done,
    Refusal,
    Reserved,
    RolledBack,
    TakenOver,
    VersionStatus,
)
from lorafsm.records import Attempt, Engine, Registry, Target, Version
from lorafsm.registry.answer import Step, refuse
from lorafsm.registry.settle import unclean, with_clean_attempt, with_serving_states
from lorafsm.registry.view import blockers, doomed_targets, members, unready_targets


def reserve(r: Registry, e: Reserve, now: int) -> Step:
    """Take a slot for a new version, or a new attempt of a FAILED_CLEAN one (RFC 3.2, rule 1)."""
    if e.token in r.tokens:
        return _reserve_again(r, e)
    version = r.versions.get(e.key)
    if version is not None and version.digest != e.digest:
        return refuse(
            r, Code.VERSION_CONFLICT, f"{e.key} is known with digest {version.digest[:12]}…; take a new version_id"
        )
    if version is not None and version.state is not VersionState.FAILED_CLEAN:
        return Step(r, VersionStatus(e.key, version.state, version.digest, version.number))
    if version is None and e.key.version_id < r.highest:
        return refuse(
            r,
            Code.VERSION_BACKWARDS,
            f"version {r.highest} was reserved before; take a higher one, or find out why the counter went back",
            field="key",
        )
    attempt = r.attempts.get(r.unresolved)
    if attempt is not None and attempt.state is AttemptState.OPEN:
        return refuse(
            r,
            Code.PUBLICATION_IN_PROGRESS,
            f"attempt {attempt.number} of {attempt.key} is open; wait for its end or take it over",
        )
    if len(r.slots) >= r.config.capacity:
        held = blockers(r, now)
        return Step(r, Refusal(Code.CAPACITY_ERROR, "no slot: " + "; ".join(map(str, held)), blockers=held))
    if attempt is not None:
        return refuse(
            r,
            Code.PUBLICATION_UNRESOLVED,
            f"attempt {attempt.number} of {attempt.key} is aborted and not clean on every engine",
            engines=unclean(attempt),
        )
    fleet = members(r)
    missing = tuple(m.engine for m in fleet if m.state in (EngineState.LOST, EngineState.QUARANTINED))
    targets = tuple(m for m in fleet if m.state in ALIVE)
    if not targets or (missing and not r.config.publish_past_lost):
        return refuse(
            r,
            Code.TARGET_UNAVAILABLE,
            "bring these engines back, declare them dead, or wait for an engine to join",
            engines=missing,
        )
    return _open_attempt(r, e, now, version, targets)


def _reserve_again(r: Registry, e: Reserve) -> Step:
    receipt = r.receipts.get(("reserve", e.token))
    if isinstance(receipt, Reserved) and receipt.key == e.key and r.versions[e.key].digest == e.digest:
        return Step(r, receipt)
    return refuse(r, Code.OPERATION_CONFLICT, "this token was used for something else; make a fresh one", field="token")


def _open_attempt(r: Registry, e: Reserve, now: int, known: Version | None, engines: tuple[Engine, ...]) -> Step:
    number = r.next_number
    name = lora_name(e.key, e.digest)
    attempt = Attempt(
        number,
        e.key,
        e.token,
        e.plan,
        AttemptState.OPEN,
        r.default_revision,
        now + r.config.driver_lease,
        Map({m.engine: Target(m.engine, m.incarnation) for m in engines}),
    )
    version = Version(
        e.key,
        e.digest,
        name,
        VersionState.LOADING,
        number,
        now,
        artifact=known is not None and known.artifact,
        tensors=e.tensors,
        nbytes=e.nbytes,
    )
    receipt = Reserved(e.key, number, name, r.default_revision, tuple((m.engine, m.incarnation) for m in engines))
    after = evolve(
        r,
        versions=r.versions.set(e.key, version),
        slots=(*r.slots, e.key),
        attempts=r.attempts.set(number, attempt),
        unresolved=number,
        tokens=r.tokens.set(e.token, number),
        receipts=r.receipts.set(("reserve", e.token), receipt),
        next_number=number + 1,
        highest=max(r.highest, e.key.version_id),
    )
    return Step(after, receipt, (Wake("publisher"),))


def artifact_stored(r: Registry, e: ArtifactStored, now: int) -> Step:
    """The bytes are durable: from now on any engine can be repaired (rule 3)."""
    version = r.versions.get(e.key)
    if version is None:
        return refuse(r, Code.UNKNOWN_VERSION, f"{e.key} is not reserved; reserve it first", field="key")
    if version.digest != e.digest:
        return refuse(r, Code.VERSION_CONFLICT, f"{e.key} is known with digest {version.digest[:12]}…", field="digest")
    if version.artifact:
        return Step(r, Done())
    return Step(evolve(r, versions=r.versions.set(e.key, evolve(version, artifact=True))), Done(), (Wake("publisher"),))


def authorize_bucket(r: Registry, e: AuthorizeBucket, now: int) -> Step:
    """Permit one broadcast, once: every target armed in the same place, under its frozen incarnation (rule 6)."""
    attempt = r.attempts.get(e.number)
    if attempt is None or attempt.state is not AttemptState.OPEN:
        return refuse(r, Code.STALE_ATTEMPT, f"attempt {e.number} is not open", field="number")
    if e.token != attempt.token:
        return refuse(r, Code.BAD_TOKEN, "only the attempt's driver may broadcast", field="token")
    if attempt.taken_over:
        return refuse(
            r, Code.STALE_ATTEMPT, "no bucket is authorised after a takeover; commit if all are READY, else abort"
        )
    if e.bucket >= attempt.plan.buckets:
        return refuse(r, Code.BAD_INPUT, f"the plan has {attempt.plan.buckets} buckets", field="bucket")
    if e.bucket < attempt.authorized:
        return refuse(r, Code.ALREADY_AUTHORIZED, "a bucket is never sent twice; if its result is not known, abort")
    if gone := doomed_targets(r, attempt):
        return refuse(r, Code.MEMBERSHIP_CHANGED, "these targets restarted or left; abort", engines=gone)
    behind = tuple(sorted(t.engine for t in attempt.targets.values() if not _armed_for(r, t, e.bucket)))
    if behind:  # all of them, where a bucket before it was not authorised yet
        return refuse(
            r,
            Code.OUT_OF_ORDER,
            f"bucket {e.bucket} needs every target to have completed those before it",
            engines=behind,
        )
    renewed = evolve(attempt, authorized=e.bucket + 1, driver_until=now + r.config.driver_lease)
    return Step(evolve(r, attempts=r.attempts.set(e.number, renewed)), Authorized(e.number, e.bucket))


def _armed_for(r: Registry, target: Target, bucket: int) -> bool:
    waits = TargetState.PREPARED if bucket == 0 else TargetState.RECEIVING
    return target.state is waits and target.buckets_done == bucket and r.engines[target.engine].state in ALIVE


def commit(r: Registry, e: Commit, now: int) -> Step:
    """Switch the default: the only way to PUBLISHED but for a rollback (RFC 3.3, rule 3)."""
    attempt = r.attempts.get(r.tokens.get(e.token, 0))
    if attempt is None or attempt.key != e.key:
        return refuse(r, Code.BAD_TOKEN, f"the token drives no attempt of {e.key}", field="token")
    if attempt.state is AttemptState.COMMITTED:
        return Step(r, r.receipts[("commit", str(attempt.number))])
    if attempt.state is not AttemptState.OPEN:
        return refuse(r, Code.ALREADY_ABORTED, f"attempt {attempt.number} was aborted: {attempt.reason}")
    if e.token != attempt.token:
        return refuse(r, Code.BAD_TOKEN, "another publisher took this attempt over", field="token")
    if not e.expected_revision == attempt.revision == r.default_revision:
        return Step(
            r,
            Refusal(
                Code.REVISION_CONFLICT,
                "the default moved since the reserve; abort as superseded",
                default=r.default,
                revision=r.default_revision,
            ),
        )
    if gone := doomed_targets(r, attempt):
        return refuse(r, Code.MEMBERSHIP_CHANGED, "these targets restarted or left; abort", engines=gone)
    if waiting := unready_targets(r, attempt):
        return refuse(
            r, Code.NOT_READY, "these targets have not proved READY under their frozen incarnation", engines=waiting
        )
    version = r.versions[e.key]
    if r.config.require_artifact and not version.artifact:
        return refuse(r, Code.ARTIFACT_MISSING, "store the artifact first: without it no engine can be repaired")
    return _publish(r, attempt, version, now)


def _publish(r: Registry, attempt: Attempt, version: Version, now: int) -> Step:
    revision = r.default_revision + 1
    receipt = Committed(version.key, attempt.number, revision, r.default)
    versions = r.versions.set(
        version.key, evolve(version, state=VersionState.PUBLISHED, since=now, published_revision=revision)
    )
    if r.default is not None:
        versions = versions.set(r.default, evolve(r.versions[r.default], state=VersionState.RETIRED, since=now))
    published = evolve(
        r,
        versions=versions,
        default=version.key,
        default_revision=revision,
        attempts=r.attempts.set(attempt.number, evolve(attempt, state=AttemptState.COMMITTED)),
        unresolved=0,
        receipts=r.receipts.set(("commit", str(attempt.number)), receipt),
    )
    after = with_serving_states(_revoke_lagging(published), now)
    return Step(after, receipt, (Wake("publisher"), Wake("reclaimer"), Wake("repairer")))


def _revoke_lagging(r: Registry) -> Registry:
    """Policy, off by default: take versions that lag too far from their sessions (rule 9)."""
    limit = r.config.max_version_lag
    versions = r.versions
    for key in r.slots if limit else ():
        version = versions[key]
        lag = r.default_revision - version.published_revision
        if version.state is VersionState.RETIRED and lag >= limit:
            versions = versions.set(key, evolve(version, revoked=True, session_refs=0))
    return evolve(r, versions=versions)


def abort(r: Registry, e: Abort, now: int) -> Step:
    """Give the attempt up; from here cleanup may be ordered by anybody (RFC 3.4, rule 4)."""
    attempt = r.attempts.get(r.tokens.get(e.token, 0))
    if attempt is None or attempt.key != e.key:
        return refuse(r, Code.BAD_TOKEN, f"the token drives no attempt of {e.key}", field="token")
    if attempt.state is AttemptState.COMMITTED:
        return refuse(r, Code.ALREADY_COMMITTED, f"{e.key} was committed; nothing may be cleaned")
    if attempt.state is not AttemptState.OPEN:
        return Step(r, r.receipts[("abort", str(attempt.number))])
    if e.token != attempt.token:
        return refuse(r, Code.BAD_TOKEN, "another publisher took this attempt over", field="token")
    receipt = Aborted(e.key, attempt.number, e.reason)
    version = evolve(r.versions[e.key], state=VersionState.ABORTED, since=now, failure=e.reason)
    after = evolve(
        r,
        versions=r.versions.set(e.key, version),
        attempts=r.attempts.set(attempt.number, _aborted(r, attempt, e.reason)),
        receipts=r.receipts.set(("abort", str(attempt.number)), receipt),
    )
    alarm = Alarm("PUBLICATION_ABORTED", f"{e.key} attempt {attempt.number}: {e.reason}")
    return Step(with_clean_attempt(after, now), receipt, (Wake("publisher"), alarm))


def _aborted(r: Registry, attempt: Attempt, reason: str) -> Attempt:
    """The attempt to clean up; a restarted target that lists the candidate is cleaned under its new incarnation."""
    targets = attempt.targets
    for name, target in sorted(attempt.targets.items()):
        live = r.engines[name].incarnation
        if target.state is not TargetState.CLEANED and target.incarnation != live:
            targets = targets.set(name, evolve(target, incarnation=live, seq=-1))
    return evolve(attempt, state=AttemptState.ABORTED, reason=reason, targets=targets)


def takeover(r: Registry, e: Takeover, now: int) -> Step:
    """A successor drives the attempt to its end: all READY, commit; else abort (rule 5)."""
    version = r.versions.get(e.key)
    if version is None:
        return refuse(r, Code.UNKNOWN_VERSION, f"{e.key} was never reserved", field="key")
    if e.token in r.tokens:
        receipt = r.receipts.get(("takeover", e.token))
        if isinstance(receipt, TakenOver) and receipt.key == e.key:
            return Step(r, receipt)
        return refuse(
            r, Code.OPERATION_CONFLICT, "this token was used for something else; make a fresh one", field="token"
        )
    attempt = r.attempts[version.number]
    if attempt.state is not AttemptState.OPEN:
        return refuse(r, Code.STALE_ATTEMPT, f"attempt {attempt.number} is {attempt.state}; there is nothing to drive")
    if now < attempt.driver_until and e.handover != attempt.token:
        return refuse(r, Code.DRIVER_ALIVE, f"the driver's lease runs for {attempt.driver_until - now} ms more")
    receipt = TakenOver(e.key, attempt.number, attempt.revision, not unready_targets(r, attempt))
    taken = evolve(attempt, token=e.token, taken_over=True, driver_until=now + r.config.driver_lease)
    after = evolve(
        r,
        attempts=r.attempts.set(attempt.number, taken),
        tokens=r.tokens.set(e.token, attempt.number),
        receipts=r.receipts.set(("takeover", e.token), receipt),
    )
    return Step(after, receipt, (Wake("publisher"),))


def rollback(r: Registry, e: Rollback, now: int) -> Step:
    """A resident RETIRED version is the default again, with no transfer (rule 17)."""
    operation = ("rollback", e.operation_id)
    stored = r.receipts.get(operation)
    if isinstance(stored, RolledBack):
        if stored.key == e.key:
            return Step(r, stored)
        return refuse(r, Code.OPERATION_CONFLICT, f"this operation rolled back to {stored.key}", field="operation_id")
    version = r.versions.get(e.key)
    if version is None:
        return refuse(r, Code.UNKNOWN_VERSION, f"{e.key} was never reserved", field="key")
    if version.state in (VersionState.RECLAIMING, VersionState.RECLAIMED):
        return refuse(r, Code.VERSION_GONE, f"{e.key} is {version.state}; publish its content under a new version_id")
    if version.revoked:
        return refuse(r, Code.VERSION_RETIRED_BY_POLICY, f"{e.key} was revoked by max_version_lag; publish it again")
    if e.expected_revision != r.default_revision:
        return Step(
            r,
            Refusal(
                Code.REVISION_CONFLICT, "the default moved; look again", default=r.default, revision=r.default_revision
            ),
        )
    if version.state is not VersionState.RETIRED:
        return refuse(r, Code.NOT_RETIRED, f"{e.key} is {version.state}; only a RETIRED version can be rolled back to")
    assert r.default is not None  # another version took this one's place
    lacking = tuple(m.engine for m in members(r) if m.state is EngineState.UP and e.key not in m.residents)
    if lacking or not any(m.state is EngineState.UP for m in members(r)):
        return refuse(r, Code.NOT_RESIDENT, "rollback needs the version proved on every UP member", engines=lacking)
    revision = r.default_revision + 1
    receipt = RolledBack(e.key, revision, r.default)
    versions = r.versions.set(
        e.key, evolve(version, state=VersionState.PUBLISHED, since=now, published_revision=revision)
    )
    versions = versions.set(r.default, evolve(r.versions[r.default], state=VersionState.RETIRED, since=now))
    after = evolve(
        r, versions=versions, default=e.key, default_revision=revision, receipts=r.receipts.set(operation, receipt)
    )
    return Step(with_serving_states(after, now), receipt, (Wake("publisher"), Wake("reclaimer")))
