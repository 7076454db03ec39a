"""Which events may happen to a registry in a small world: a few engines, versions, tokens, sessions and times.

A box makes the registry's state space finite: every token, id, number, incarnation, seq and time comes from a short
list.  `registry_moves(box)` lists, for a state, every event with every combination of those, the illegal ones too:
unknown records, wrong tokens, old numbers and incarnations, mismatched proofs.  Fields that are judged one by one
(digest, base, probe) are made wrong one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from itertools import product

from attrs import evolve, frozen

from lorafsm import events as ev
from lorafsm.events import EVENTS, Event
from lorafsm.identity import SessionKey, VersionKey
from lorafsm.manifest import Plan
from lorafsm.records import Config, Registry, Resident, new_registry
from lorafsm.registry import step

ALL_EVENTS = frozenset(event.name for event in EVENTS)
NOBODY = "nobody"  # an id that no record has
_CONFIG = Config()


@frozen(kw_only=True)
class Box:
    """A small world.  `story` is what happened before the search starts, event by event."""

    config: Config = _CONFIG
    epoch: str = "e1"
    story: tuple[Event, ...] = ()
    events: frozenset[str] = ALL_EVENTS  # names of the events that may happen
    engines: tuple[str, ...] = ("e0",)
    incarnations: tuple[int, ...] = (1,)
    versions: tuple[int, ...] = (1,)
    digests: tuple[str, ...] = ("a" * 64,)  # the first is every version's own, the others are other contents
    tokens: tuple[str, ...] = ("t1",)
    buckets: int = 0
    numbers: int = 2  # no repair is asked for beyond this number
    owners: tuple[str, ...] = ("o1",)
    sequences: tuple[int, ...] = (0,)
    reclaim_ids: tuple[str, ...] = ("r1",)
    operation_ids: tuple[str, ...] = ("op1",)
    seqs: tuple[int, ...] = ()  # every answer takes each of these; left out: the next one, and those before it
    last_seq: int = 4  # no answer takes a larger one
    nows: tuple[int, ...] = (0,)
    illegal: bool = True  # also unknown records and mismatched proofs

    def start(self) -> Registry:
        """The registry after the story."""
        return reduce(lambda r, event: step(r, event).registry, self.story, new_registry(self.epoch, self.config))

    def key(self, version: int) -> VersionKey:
        """The version key of this box's epoch."""
        return VersionKey(self.epoch, version)

    def plan(self) -> Plan:
        """The one bucket plan of this box."""
        return Plan(self.buckets, "f" * 64)


def registry_moves(box: Box) -> Callable[[Registry], Iterator[Event]]:
    """The events that may happen in a state of this box, at every time of the box that is not past."""
    makers = [_MOVES[name] for name in sorted(box.events)]

    def moves(r: Registry) -> Iterator[Event]:
        later = [now for now in box.nows if now > r.now]
        for make in makers:
            for event in make(box, r):
                yield evolve(event, now=r.now) if r.now else event
                for now in later:
                    yield evolve(event, now=now)

    return moves


def _keys(box: Box) -> list[VersionKey]:
    return [box.key(version) for version in box.versions]


def _numbers(box: Box, r: Registry) -> range:
    """Every number ever given, and one that was not."""
    return range(1, r.next_number + 1 if box.illegal else r.next_number)


def _engines(box: Box) -> tuple[str, ...]:
    return (*box.engines, NOBODY) if box.illegal else box.engines


def _answers(box: Box, r: Registry) -> Iterator[tuple[int, str, int, int]]:
    """(number, engine, incarnation, seq) of what an engine may say about an attempt."""
    for number in _numbers(box, r):
        if number in r.repairs:
            continue
        for engine, incarnation in product(box.engines, box.incarnations):
            yield from ((number, engine, incarnation, seq) for seq in _target_seqs(box, r, number, engine))
        if box.illegal:
            yield number, NOBODY, box.incarnations[0], 1


def _target_seqs(box: Box, r: Registry, number: int, engine: str) -> Iterable[int]:
    """The next seq of a target; where illegal events may happen, also the one that it has and the one before."""
    if box.seqs:
        return box.seqs
    attempt = r.attempts.get(number)
    target = attempt.targets.get(engine) if attempt is not None else None
    known = max(target.seq, 0) if target is not None else 0
    wanted = (known + 1, known, known - 1) if box.illegal else (known + 1,)
    return [seq for seq in wanted if 0 <= seq <= box.last_seq]


def _engine_seqs(box: Box, r: Registry, engine: str) -> Iterable[int]:
    """The highest seq that this engine answered with; a repeat of it is not stale."""
    known = r.engines.get(engine)
    return box.seqs or (max(known.seq, known.inventory.seq, 1) if known is not None else 1,)


def _reserve(box: Box, r: Registry) -> Iterator[Event]:
    for key, digest, token in product(_keys(box), box.digests, box.tokens):
        yield ev.Reserve(key=key, digest=digest, plan=box.plan(), token=token)


def _artifact_stored(box: Box, r: Registry) -> Iterator[Event]:
    for key, digest in product(_keys(box), box.digests):
        yield ev.ArtifactStored(key=key, digest=digest)


def _prepared(box: Box, r: Registry) -> Iterator[Event]:
    for number, engine, incarnation, seq in _answers(box, r):
        yield ev.Prepared(number=number, engine=engine, incarnation=incarnation, seq=seq)


def _authorize_bucket(box: Box, r: Registry) -> Iterator[Event]:
    for number, token, bucket in product(_numbers(box, r), box.tokens, range(box.buckets + 1)):
        yield ev.AuthorizeBucket(number=number, token=token, bucket=bucket)


def _bucket_done(box: Box, r: Registry) -> Iterator[Event]:
    for number, engine, incarnation, seq in _answers(box, r):
        for bucket in range(max(box.buckets, 1)):
            yield ev.BucketDone(number=number, engine=engine, incarnation=incarnation, seq=seq, bucket=bucket)


def _ready(box: Box, r: Registry) -> Iterator[Event]:
    for number, engine, incarnation, seq in _answers(box, r):
        attempt = r.attempts.get(number)
        key = attempt.key if attempt is not None else box.key(box.versions[0])
        right = ev.Ready(
            number=number,
            engine=engine,
            incarnation=incarnation,
            seq=seq,
            key=key,
            digest=r.versions[key].digest if key in r.versions else box.digests[0],
            base_fingerprint=box.config.base_fingerprint,
            probe_ok=True,
        )
        yield right
        if box.illegal and engine in box.engines:
            yield from _mismatched(right)


def _mismatched(right: ev.Ready) -> Iterator[Event]:
    yield evolve(right, key=VersionKey(right.key.epoch, 99))
    yield evolve(right, digest="0" * 64)
    yield evolve(right, base_fingerprint="another")
    yield evolve(right, probe_ok=False)


def _target_failed(box: Box, r: Registry) -> Iterator[Event]:
    for number, engine, incarnation, seq in _answers(box, r):
        yield ev.TargetFailed(number=number, engine=engine, incarnation=incarnation, seq=seq, reason="no")


def _target_unknown(box: Box, r: Registry) -> Iterator[Event]:
    for number, engine, incarnation in dict.fromkeys(answer[:3] for answer in _answers(box, r)):
        yield ev.TargetUnknown(number=number, engine=engine, incarnation=incarnation)


def _cleaned(box: Box, r: Registry) -> Iterator[Event]:
    for number, engine, incarnation, seq in _answers(box, r):
        yield ev.Cleaned(number=number, engine=engine, incarnation=incarnation, seq=seq)


def _commit(box: Box, r: Registry) -> Iterator[Event]:
    for key, token in product(_keys(box), box.tokens):
        yield ev.Commit(key=key, token=token, expected_revision=r.default_revision)
        if box.illegal:
            yield ev.Commit(key=key, token=token, expected_revision=r.default_revision + 1)


def _abort(box: Box, r: Registry) -> Iterator[Event]:
    for key, token in product(_keys(box), box.tokens):
        yield ev.Abort(key=key, token=token, reason="given up")


def _takeover(box: Box, r: Registry) -> Iterator[Event]:
    for key, token, handover in product(_keys(box), box.tokens, ("", *box.tokens)):
        if handover != token:
            yield ev.Takeover(key=key, token=token, handover=handover)


def _rollback(box: Box, r: Registry) -> Iterator[Event]:
    for key, operation in product(_keys(box), box.operation_ids):
        yield ev.Rollback(key=key, expected_revision=r.default_revision, operation_id=operation)
        if box.illegal:
            yield ev.Rollback(key=key, expected_revision=r.default_revision + 1, operation_id=operation)


def _of_owner(kind: Callable[..., Event]) -> Callable[[Box, Registry], Iterator[Event]]:
    return lambda box, r: (kind(owner=owner) for owner in box.owners)


def _recovered(box: Box, r: Registry) -> Iterator[Event]:
    yield ev.Recovered()


def _of_session(kind: Callable[..., Event]) -> Callable[[Box, Registry], Iterator[Event]]:
    return lambda box, r: (
        kind(session=SessionKey(box.epoch, owner, sequence)) for owner, sequence in product(box.owners, box.sequences)
    )


def _claim_reclaim(box: Box, r: Registry) -> Iterator[Event]:
    for key, reclaim_id in product(_keys(box), box.reclaim_ids):
        yield ev.ClaimReclaim(key=key, reclaim_id=reclaim_id)


def _confirm_reclaim(box: Box, r: Registry) -> Iterator[Event]:
    for reclaim_id, engine, incarnation in product(box.reclaim_ids, _engines(box), box.incarnations):
        for seq in _engine_seqs(box, r, engine):
            right = ev.ConfirmReclaim(
                reclaim_id=reclaim_id, engine=engine, incarnation=incarnation, seq=seq, observed_absent=True
            )
            yield right
            if box.illegal:
                yield evolve(right, observed_absent=False)


def _reclaim_unknown(box: Box, r: Registry) -> Iterator[Event]:
    for reclaim_id, engine, incarnation in product(box.reclaim_ids, _engines(box), box.incarnations):
        yield ev.ReclaimUnknown(reclaim_id=reclaim_id, engine=engine, incarnation=incarnation)


def _inventories(box: Box, r: Registry, engine: str) -> list[frozenset[Resident]]:
    """What an engine may list: nothing, what is proved, and what any one number, or all, may have loaded there."""
    loads = [
        Resident(attempt.key, r.versions[attempt.key].digest, number)
        for number, attempt in r.attempts.items()
        if engine in attempt.targets
    ]
    loads += [
        Resident(repair.key, r.versions[repair.key].digest, number)
        for number, repair in r.repairs.items()
        if repair.engine == engine
    ]
    known = r.engines.get(engine)
    proved = frozenset(known.residents.values()) if known is not None else frozenset()
    lists = {frozenset(), proved, frozenset(loads), *(frozenset({load}) for load in loads)}
    return sorted(lists, key=lambda residents: (len(residents), sorted(residents)))


def _of_inventory(kind: Callable[..., Event]) -> Callable[[Box, Registry], Iterator[Event]]:
    def make(box: Box, r: Registry) -> Iterator[Event]:
        base = box.config.base_fingerprint
        for engine, incarnation in product(_engines(box), box.incarnations):
            for seq, residents in product(_engine_seqs(box, r, engine), _inventories(box, r, engine)):
                yield kind(engine=engine, incarnation=incarnation, seq=seq, base_fingerprint=base, residents=residents)
            if box.illegal:
                yield kind(engine=engine, incarnation=incarnation, seq=1, base_fingerprint="another")

    return make


def _join(box: Box, r: Registry) -> Iterator[Event]:
    for engine, incarnation in product(box.engines, box.incarnations):
        base = box.config.base_fingerprint
        yield ev.EngineJoin(engine=engine, incarnation=incarnation, seq=1, base_fingerprint=base)
        if box.illegal:
            yield ev.EngineJoin(engine=engine, incarnation=incarnation, seq=1, base_fingerprint="another")


def _of_incarnation(kind: Callable[..., Event], **words: str) -> Callable[[Box, Registry], Iterator[Event]]:
    return lambda box, r: (
        kind(engine=engine, incarnation=incarnation, **words)
        for engine, incarnation in product(_engines(box), box.incarnations)
    )


def _engine_remove(box: Box, r: Registry) -> Iterator[Event]:
    for engine in _engines(box):
        yield ev.EngineRemove(engine=engine)


def _order_repair(box: Box, r: Registry) -> Iterator[Event]:
    for key, engine in product(_keys(box), _engines(box)):
        known = r.engines.get(engine)
        if r.next_number <= box.numbers or (known is not None and key in known.repairs):
            yield ev.OrderRepair(key=key, engine=engine)


def _repair_answers(box: Box, r: Registry) -> Iterator[tuple[int, str, int, int]]:
    numbers = [number for number in _numbers(box, r) if number not in r.attempts]
    for number, engine, incarnation in product(numbers, box.engines, box.incarnations):
        yield from ((number, engine, incarnation, seq) for seq in _engine_seqs(box, r, engine))


def _repair_ready(box: Box, r: Registry) -> Iterator[Event]:
    for number, engine, incarnation, seq in _repair_answers(box, r):
        repair = r.repairs.get(number)
        key = repair.key if repair is not None else box.key(box.versions[0])
        right = ev.RepairReady(
            number=number,
            engine=engine,
            incarnation=incarnation,
            seq=seq,
            key=key,
            digest=r.versions[key].digest if key in r.versions else box.digests[0],
            base_fingerprint=box.config.base_fingerprint,
            probe_ok=True,
        )
        yield right
        if box.illegal:
            yield evolve(right, digest="0" * 64)


def _repair_failed(box: Box, r: Registry) -> Iterator[Event]:
    for number, engine, incarnation, seq in _repair_answers(box, r):
        yield ev.RepairFailed(number=number, engine=engine, incarnation=incarnation, seq=seq, reason="no")


_MOVES: Mapping[str, Callable[[Box, Registry], Iterator[Event]]] = {
    "reserve": _reserve,
    "artifact_stored": _artifact_stored,
    "prepared": _prepared,
    "authorize_bucket": _authorize_bucket,
    "bucket_done": _bucket_done,
    "ready": _ready,
    "target_failed": _target_failed,
    "target_unknown": _target_unknown,
    "commit": _commit,
    "abort": _abort,
    "cleaned": _cleaned,
    "takeover": _takeover,
    "rollback": _rollback,
    "owner_up": _of_owner(ev.OwnerUp),
    "heartbeat": _of_owner(ev.Heartbeat),
    "owner_expired": _of_owner(ev.OwnerExpired),
    "owner_gone": _of_owner(ev.OwnerGone),
    "recovered": _recovered,
    "open": _of_session(ev.Open),
    "bind_first": _of_session(ev.BindFirst),
    "begin_close": _of_session(ev.BeginClose),
    "close_and_release": _of_session(ev.CloseAndRelease),
    "claim_reclaim": _claim_reclaim,
    "confirm_reclaim": _confirm_reclaim,
    "reclaim_unknown": _reclaim_unknown,
    "engine_join": _join,
    "engine_up": _of_inventory(ev.EngineUp),
    "engine_lost": _of_incarnation(ev.EngineLost),
    "engine_dead": _of_incarnation(ev.EngineDead, evidence="exit status"),
    "engine_remove": _engine_remove,
    "quarantine": _of_incarnation(ev.Quarantine, reason="negative count"),
    "order_repair": _order_repair,
    "repair_ready": _repair_ready,
    "repair_failed": _repair_failed,
}
assert frozenset(_MOVES) == ALL_EVENTS
