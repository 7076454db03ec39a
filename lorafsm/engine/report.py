"""What the registry is told of an agent's answer: at most one event, or nothing where nothing follows from it."""

from __future__ import annotations

from lorafsm import events
from lorafsm.engine import answers
from lorafsm.engine.actions import AskQuarantine
from lorafsm.engine.answers import AgentCode, Answer
from lorafsm.events import Event
from lorafsm.outcomes import Code

_FINAL = frozenset({AgentCode.VERSION_CLOSED, AgentCode.NO_RESOURCES, Code.NOT_ABSENT, Code.STALE_ATTEMPT})
"""Refusals that say: this number will not become READY here.  The others speak of a wrong or early order."""


def as_event(answer: Answer | AskQuarantine, engine: str, now: int) -> Event | None:
    """The event that this answer of `engine` is to the registry; `now` in milliseconds.

    `Armed` stays with the driver, `StrayGone` shows in the next inventory; requests do not concern the registry.
    """
    inc = answer.incarnation
    match answer:
        case answers.Prepared():
            return events.Prepared(number=answer.number, engine=engine, incarnation=inc, seq=answer.seq, now=now)
        case answers.BucketDone():
            return events.BucketDone(
                number=answer.number, engine=engine, incarnation=inc, seq=answer.seq, bucket=answer.bucket, now=now
            )
        case answers.Ready():
            ready = events.RepairReady if answer.repair else events.Ready
            return ready(
                number=answer.number,
                engine=engine,
                incarnation=inc,
                seq=answer.seq,
                key=answer.key,
                digest=answer.digest,
                base_fingerprint=answer.base_fingerprint,
                probe_ok=True,
                now=now,
            )
        case answers.Failed():
            return _failed(answer.number, answer.repair, answer.reason, engine, answer, now)
        case answers.Refused() if answer.code in _FINAL and answer.number:
            return _failed(answer.number, answer.repair, str(answer), engine, answer, now)
        case answers.Cleaned():
            return events.Cleaned(number=answer.number, engine=engine, incarnation=inc, seq=answer.seq, now=now)
        case answers.Unloaded():
            return events.ConfirmReclaim(
                reclaim_id=answer.reclaim_id,
                engine=engine,
                incarnation=inc,
                seq=answer.seq,
                observed_absent=True,
                now=now,
            )
        case answers.Unknown() if answer.reclaim_id:
            return events.ReclaimUnknown(reclaim_id=answer.reclaim_id, engine=engine, incarnation=inc, now=now)
        case answers.Unknown() if answer.number:
            return events.TargetUnknown(number=answer.number, engine=engine, incarnation=inc, now=now)
        case answers.Inventory():
            return events.EngineUp(
                engine=engine,
                incarnation=inc,
                seq=answer.seq,
                base_fingerprint=answer.base_fingerprint,
                residents=answer.residents,
                foreign=answer.foreign,
                now=now,
            )
        case AskQuarantine():
            return events.Quarantine(engine=engine, incarnation=inc, reason=answer.reason, now=now)
        case _:
            return None


def _failed(number: int, repair: bool, reason: str, engine: str, answer: Answer, now: int) -> Event:
    failed = events.RepairFailed if repair else events.TargetFailed
    return failed(
        number=number, engine=engine, incarnation=answer.incarnation, seq=answer.seq, reason=reason[:512], now=now
    )
