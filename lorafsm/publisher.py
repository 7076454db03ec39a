"""The publisher's policy: from a snapshot of the registry to the next orders and decisions (RFC 3.2-3.4).

Stateless and idempotent: asked twice, it answers the same; a restarted publisher needs the registry and, to
decide, a token (its own, or one that a takeover made its own).  Cleanup of an aborted attempt needs no token.
"""

from __future__ import annotations

from typing import Any

from lorafsm.events import Abort, Commit
from lorafsm.lifecycle import AttemptState, EngineState, TargetState
from lorafsm.orders import AskStatus, Begin, Cleanup, End, Order, SendBucket
from lorafsm.records import Attempt, Registry, Target
from lorafsm.registry.view import doomed_targets, unready_targets


def next_orders(r: Registry, token: str, now: int) -> tuple[Order | Commit | Abort, ...]:
    """What to do now for the unresolved attempt; empty: wait.

    `now` is the adapter's clock in ms; the attempt is given up when its driver's lease, which progress renews,
    has run out.  Events in the answer are decisions to submit to the registry.
    """
    attempt = r.attempts.get(r.unresolved)
    if attempt is None:
        return ()
    if attempt.state is AttemptState.ABORTED:
        return tuple(
            Cleanup(**_content(r, attempt, t)) for t in _targets(attempt) if t.state is not TargetState.CLEANED
        )
    if attempt.token != token:
        return ()
    if reason := reason_to_abort(r, attempt, now):
        return (Abort(key=attempt.key, token=token, reason=reason, now=now),)
    if not unready_targets(r, attempt):
        if r.config.require_artifact and not r.versions[attempt.key].artifact:
            return ()
        return (Commit(key=attempt.key, token=token, expected_revision=attempt.revision, now=now),)
    return _phase(r, attempt)


def reason_to_abort(r: Registry, attempt: Attempt, now: int) -> str | None:
    """Why an open attempt cannot or should not be committed any more, or None (rules 3, 5, 6)."""
    if attempt.revision != r.default_revision:
        return "SUPERSEDED: the default moved since the reserve"
    if gone := doomed_targets(r, attempt):
        return f"MEMBERSHIP_CHANGED: {', '.join(gone)} restarted or left"
    failed = [f"{t.engine}: {t.detail}" for t in _targets(attempt) if t.state is TargetState.FAILED]
    if failed:
        return f"TARGET_FAILED: {'; '.join(failed)}"[:512]
    quarantined = [t.engine for t in _targets(attempt) if r.engines[t.engine].state is EngineState.QUARANTINED]
    if quarantined:
        return f"QUARANTINED: {', '.join(quarantined)}"
    if attempt.taken_over and unready_targets(r, attempt):
        return "TAKEN_OVER: not every target is READY"
    if now >= attempt.driver_until:
        return "DEADLINE: no progress within the driver's lease"
    return None


def _phase(r: Registry, attempt: Attempt) -> tuple[Order, ...]:
    targets = _targets(attempt)
    # Begin is one operation however often it comes, and its repeat is answered with the engine's latest fact.  A bucket
    # is never sent twice: once one is authorised, a silent engine is only asked.
    unheard = [t for t in targets if t.state is TargetState.UNKNOWN]
    begins = [t for t in targets if t.state is TargetState.RESERVED or (t in unheard and not attempt.authorized)]
    if unheard or begins:
        begun = tuple(Begin(**_content(r, attempt, t), plan=attempt.plan) for t in begins)
        return (*begun, *(AskStatus(**_addressee(r, attempt, t)) for t in unheard if t not in begins))
    if all(t.buckets_done == attempt.plan.buckets for t in targets):
        return tuple(End(**_content(r, attempt, t)) for t in targets if t.state is not TargetState.READY)
    bucket = min(t.buckets_done for t in targets)
    if bucket == attempt.authorized:
        return (SendBucket(number=attempt.number, bucket=bucket, engines=tuple(t.engine for t in targets)),)
    return ()  # its broadcast is under way; a bucket is never sent twice


def _targets(attempt: Attempt) -> tuple[Target, ...]:
    return tuple(t for _, t in sorted(attempt.targets.items()))


def _content(r: Registry, a: Attempt, t: Target) -> dict[str, Any]:
    """Who is addressed, under which number, and what exactly is meant: the same in every order of an attempt."""
    v = r.versions[a.key]
    return {**_addressee(r, a, t), "key": a.key, "digest": v.digest, "lora_name": v.lora_name}


def _addressee(r: Registry, a: Attempt, t: Target) -> dict[str, Any]:
    return {"epoch": r.epoch, "engine": t.engine, "incarnation": t.incarnation, "number": a.number}
