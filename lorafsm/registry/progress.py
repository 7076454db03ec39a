"""What engines answer during an attempt (RFC 3.2, 3.4, protocol rules 2 and 4).

An answer counts under its attempt number, its frozen incarnation and in its order; a token is not needed.

A target that is UNKNOWN goes on from where its engine says it stands, also when that is what was known before: the
order that was not answered never arrived, and is given again (rule 16).  While an authorised bucket has no result
that says nothing yet, and the target stays UNKNOWN, which is asked about again.
"""

from __future__ import annotations

from attrs import evolve

from lorafsm.effects import Alarm, Wake
from lorafsm.events import BucketDone, Cleaned, Prepared, Ready, RepairReady, TargetFailed, TargetUnknown
from lorafsm.lifecycle import AttemptState, TargetState
from lorafsm.outcomes import Code, Done, Refusal
from lorafsm.records import Attempt, Engine, Registry, Resident, Target
from lorafsm.registry.answer import Step, refuse
from lorafsm.registry.settle import with_clean_attempt
from lorafsm.registry.view import is_doomed

_NO_MORE_PROGRESS = (TargetState.FAILED, TargetState.CLEANED)


def prepared(r: Registry, e: Prepared, now: int) -> Step:
    """An engine accepted identity, attempt, manifest and plan (RFC 3.2 begin)."""
    found = _open_target(r, e)
    if isinstance(found, Refusal):
        return Step(r, found)
    attempt, target = found
    answered = target.seq != -1
    if answered and target.state is TargetState.UNKNOWN and not attempt.authorized and e.seq >= target.seq:
        return _resumed(r, attempt, evolve(target, state=TargetState.PREPARED, seq=e.seq))
    if e.seq <= target.seq:
        return _old_answer(r, e, target, implied=target.state not in _NO_MORE_PROGRESS)
    if not answered:  # RESERVED, or nobody knows: one whose incarnation has ended is doomed
        return _advance(r, attempt, evolve(target, state=TargetState.PREPARED, seq=e.seq), now)
    return _already_or_out_of_order(r, target)


def bucket_done(r: Registry, e: BucketDone, now: int) -> Step:
    """An engine completed the bucket that was authorised last (RFC 3.2 receive_bucket)."""
    found = _open_target(r, e)
    if isinstance(found, Refusal):
        return Step(r, found)
    attempt, target = found
    all_done = e.bucket + 1 == target.buckets_done == attempt.authorized
    if target.state is TargetState.UNKNOWN and all_done and e.seq >= target.seq:
        return _resumed(r, attempt, evolve(target, state=TargetState.RECEIVING, seq=e.seq))
    if e.seq <= target.seq:
        return _old_answer(r, e, target, implied=e.bucket < target.buckets_done)
    if target.state in _NO_MORE_PROGRESS or e.bucket < target.buckets_done:
        return _already_or_out_of_order(r, target)
    if e.bucket >= attempt.authorized:  # what is authorised is the next bucket of every target, or done there
        return refuse(
            r,
            Code.OUT_OF_ORDER,
            f"{e.engine} completed {target.buckets_done} buckets, {attempt.authorized} are authorised",
            engines=(e.engine,),
        )
    done = evolve(target, state=TargetState.RECEIVING, buckets_done=e.bucket + 1, seq=e.seq)
    return _advance(r, attempt, done, now)


def ready(r: Registry, e: Ready, now: int) -> Step:
    """READY_LOCAL: the engine proved version, digest, number and incarnation by a probe (RFC 3.2, 3.3)."""
    found = _open_target(r, e)
    if isinstance(found, Refusal):
        return Step(r, found)
    attempt, target = found
    resident = Resident(attempt.key, r.versions[attempt.key].digest, attempt.number)
    if mismatch := ready_mismatch(r, e, resident):
        return refuse(r, Code.READY_MISMATCH, mismatch, engines=(e.engine,))
    if e.seq <= target.seq:
        return _old_answer(r, e, target, implied=target.state is TargetState.READY)
    if target.state is TargetState.READY or target.state in _NO_MORE_PROGRESS:
        return _already_or_out_of_order(r, target)
    buckets = attempt.plan.buckets
    complete = target.buckets_done == buckets or (target.state is TargetState.UNKNOWN and attempt.authorized == buckets)
    if target.state is TargetState.RESERVED or not complete:
        return refuse(
            r,
            Code.OUT_OF_ORDER,
            f"{e.engine} is {target.state} with {target.buckets_done} of {buckets} buckets",
            engines=(e.engine,),
        )
    engine = r.engines[e.engine]
    if contradicted(engine, e.seq, resident, present=True):
        return refuse(
            r, Code.STALE_SEQ, "a later inventory of this engine does not list the version", engines=(e.engine,)
        )
    proved = with_resident(r, engine, resident, e.seq)
    return _advance(proved, attempt, evolve(target, state=TargetState.READY, buckets_done=buckets, seq=e.seq), now)


def target_failed(r: Registry, e: TargetFailed, now: int) -> Step:
    """The engine said no; the attempt can only be aborted."""
    found = _open_target(r, e)
    if isinstance(found, Refusal):
        return Step(r, found)
    attempt, target = found
    if e.seq <= target.seq:
        return _old_answer(r, e, target, implied=target.state is TargetState.FAILED)
    if target.state is TargetState.FAILED:
        return Step(r, Done())
    failed = evolve(target, state=TargetState.FAILED, seq=e.seq, detail=e.reason)
    engine = r.engines[e.engine]
    without = evolve(r, engines=r.engines.set(e.engine, without_resident(engine, attempt.number)))
    alarm = Alarm("TARGET_FAILED", f"{attempt.key} attempt {attempt.number} on {e.engine}: {e.reason}")
    return Step(with_target(without, attempt, failed), Done(), (Wake("publisher"), alarm))


def target_unknown(r: Registry, e: TargetUnknown, now: int) -> Step:
    """A deadline passed without an answer.  Nothing is concluded; the slot stays (RFC 3.4, rule 16)."""
    found = _target(r, e)
    if isinstance(found, Refusal):
        return Step(r, found)
    attempt, target = found
    settled = (TargetState.CLEANED, TargetState.FAILED, TargetState.UNKNOWN)
    # A READY is a proof; silence does not take it back while the attempt is open.
    if target.state in settled or (attempt.state is AttemptState.OPEN and target.state is TargetState.READY):
        return Step(r, Done())
    unknown = evolve(target, state=TargetState.UNKNOWN)
    alarm = Alarm(
        "TARGET_UNKNOWN", f"{attempt.key} attempt {attempt.number} on {e.engine}: no answer in {target.state}"
    )
    return Step(with_target(r, attempt, unknown), Done(), (Wake("publisher"), alarm))


def cleaned(r: Registry, e: Cleaned, now: int) -> Step:
    """The engine observed that nothing of the attempt is left; the last one frees the slot (RFC 3.4, rule 4)."""
    attempt = r.attempts.get(e.number)
    if attempt is not None and attempt.state is AttemptState.OPEN:
        return refuse(r, Code.NOT_ABORTED, "cleanup is ordered from ABORTED only")
    if attempt is not None and attempt.state is AttemptState.CLEAN and e.engine in attempt.targets:
        return Step(r, Done())
    found = _target(r, e)
    if isinstance(found, Refusal):
        return Step(r, found)
    attempt, target = found
    if target.state is TargetState.CLEANED:
        return Step(r, Done())
    if e.seq <= target.seq:
        return refuse(r, Code.STALE_SEQ, f"{e.engine} answered seq {target.seq} already", field="seq")
    engine = r.engines[e.engine]
    resident = Resident(attempt.key, r.versions[attempt.key].digest, attempt.number)
    if contradicted(engine, e.seq, resident, present=False):
        return refuse(r, Code.STALE_SEQ, "a later inventory of this engine lists the version", engines=(e.engine,))
    after = evolve(r, engines=r.engines.set(e.engine, without_resident(seen(engine, e.seq), attempt.number)))
    after = with_target(after, attempt, evolve(target, state=TargetState.CLEANED, seq=e.seq))
    return Step(with_clean_attempt(after, now), Done(), (Wake("publisher"),))


def _target(
    r: Registry, e: TargetUnknown | Cleaned | Prepared | BucketDone | Ready | TargetFailed
) -> tuple[Attempt, Target] | Refusal:
    attempt = r.attempts.get(e.number)
    if attempt is None or attempt.state in (AttemptState.COMMITTED, AttemptState.CLEAN):
        return Refusal(
            Code.STALE_ATTEMPT, f"attempt {e.number} is not under way; create nothing for it", field="number"
        )
    target = attempt.targets.get(e.engine)
    if target is None:
        return Refusal(Code.UNKNOWN_ENGINE, f"{e.engine} is no target of attempt {e.number}", field="engine")
    if e.incarnation != target.incarnation:
        return Refusal(
            Code.ENGINE_RESTARTED, f"{e.engine} is frozen at incarnation {target.incarnation}", field="incarnation"
        )
    return attempt, target


def _open_target(r: Registry, e: Prepared | BucketDone | Ready | TargetFailed) -> tuple[Attempt, Target] | Refusal:
    found = _target(r, e)
    if isinstance(found, Refusal):
        return found
    attempt, target = found
    if attempt.state is not AttemptState.OPEN:
        return Refusal(Code.STALE_ATTEMPT, f"attempt {e.number} was aborted; clean it up", field="number")
    if is_doomed(r, target):
        return Refusal(Code.ENGINE_RESTARTED, f"incarnation {e.incarnation} of {e.engine} is dead", field="incarnation")
    return attempt, target


def _old_answer(r: Registry, e: Prepared | BucketDone | Ready | TargetFailed, target: Target, *, implied: bool) -> Step:
    """The same answer again changes nothing; one older than what is known, or another, is stale (I12)."""
    if e.seq == target.seq and implied:
        return Step(r, Done())
    return refuse(r, Code.STALE_SEQ, f"{e.engine} answered seq {target.seq} already", field="seq")


def _already_or_out_of_order(r: Registry, target: Target) -> Step:
    if target.state in _NO_MORE_PROGRESS:
        return refuse(
            r, Code.OUT_OF_ORDER, f"{target.engine} already answered {target.state}", engines=(target.engine,)
        )
    return Step(r, Done())


def _advance(r: Registry, attempt: Attempt, target: Target, now: int) -> Step:
    renewed = evolve(attempt, driver_until=now + r.config.driver_lease)
    return Step(with_target(r, renewed, target), Done(), (Wake("publisher"),))


def _resumed(r: Registry, attempt: Attempt, target: Target) -> Step:
    """No news: the engine stands where it stood.  The driver's lease is not renewed, so a silence that returns ends."""
    return Step(with_target(r, attempt, target), Done(), (Wake("publisher"),))


def with_target(r: Registry, attempt: Attempt, target: Target) -> Registry:
    """The registry with this target of this attempt."""
    changed = evolve(attempt, targets=attempt.targets.set(target.engine, target))
    return evolve(r, attempts=r.attempts.set(attempt.number, changed))


def ready_mismatch(r: Registry, e: Ready | RepairReady, expected: Resident) -> str | None:
    """What in a READY is not what was ordered; a name alone proves nothing (rule 2)."""
    if e.key != expected.key:
        return f"READY is for {e.key}, the order was for {expected.key}"
    if e.digest != expected.digest:
        return "READY carries another digest than the order"
    if e.base_fingerprint != r.config.base_fingerprint:
        return "the engine's base model or tokenizer differs from the deployment's"
    if not e.probe_ok:
        return "the exact-version probe did not pass"
    return None


def contradicted(engine: Engine, seq: int, resident: Resident, *, present: bool) -> bool:
    """Whether a later inventory says otherwise: the higher seq decides (protocol section 2)."""
    return seq < engine.inventory.seq and (resident in engine.inventory.residents) is not present


def seen(engine: Engine, seq: int) -> Engine:
    """The engine after an accepted answer."""
    return evolve(engine, seq=max(engine.seq, seq))


def with_resident(r: Registry, engine: Engine, resident: Resident, seq: int) -> Registry:
    """The registry with this proof of presence."""
    proved = evolve(seen(engine, seq), residents=engine.residents.set(resident.key, resident))
    return evolve(r, engines=r.engines.set(engine.engine, proved))


def without_resident(engine: Engine, number: int) -> Engine:
    """The engine without what this number loaded; another number's resident stays (rule 4)."""
    kept = engine.residents
    for key, resident in engine.residents.items():
        if resident.number == number:
            kept = kept.delete(key)
    return evolve(engine, residents=kept)
