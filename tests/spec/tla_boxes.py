"""The boxes of tla/models on the side of the core: the same constants, read from the same .cfg, and every event that
may happen in them, with every argument, the illegal ones too."""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from itertools import combinations, product
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from lorafsm import events as ev
from lorafsm.events import Event
from lorafsm.explore import explore
from lorafsm.identity import SessionKey, VersionKey
from lorafsm.lifecycle import TargetState
from lorafsm.manifest import Plan
from lorafsm.records import Config, Registry, Resident, new_registry
from lorafsm.registry import step
from lorafsm_tla.as_tla import Names, tla_state
from lorafsm_tla.values import Graph, State, read_value

TLA = Path(__file__).parents[2] / "tla"
EPOCH = "e1"
DIGESTS = {"a": "a" * 64, "b": "b" * 64}
BASES = {"ours": "ours", "another": "another"}
OTHER_DIGEST = "0" * 64
REVISIONS = range(5)


@frozen
class Box:
    """The constants of one model."""

    name: str
    constants: dict[str, Any]
    listings: str

    def __getattr__(self, name: str) -> Any:
        return self.constants[name]

    @property
    def config(self) -> Config:
        """The registry's configuration."""
        return Config(
            capacity=self.Capacity,
            engine_slots=self.Capacity + 1,
            base_fingerprint=self.OurBase,
            require_artifact=self.RequireArtifact,
            publish_past_lost=self.PublishPastLost,
            max_version_lag=self.MaxVersionLag,
            owner_lease=self.OwnerLease,
            driver_lease=self.DriverLease,
            repair_backoff=self.RepairBackoff,
            repair_limit=self.RepairLimit,
        )

    @property
    def names(self) -> Names:
        """What the constants stand for."""
        return Names(
            versions=tuple(self.Version),
            engines=tuple(self.Engine),
            owners=tuple(self.Owner),
            sequences=tuple(self.Sequence),
            tokens=tuple(self.Token),
            reclaim_ids=tuple(self.ReclaimId),
            digests={full: short for short, full in DIGESTS.items()},
        )


def read_box(name: str) -> Box:
    """The box of models/<name>.cfg."""
    text = (TLA / "models" / f"{name}.cfg").read_text()
    constants = {key: read_value(value) for key, value in re.findall(r"^    (\w+) = (.*)$", text, re.MULTILINE)}
    [listings] = re.findall(r"^    Listings <- (\w+)$", text, re.MULTILINE)
    return Box(name, constants, listings)


def key(version: int) -> VersionKey:
    return VersionKey(EPOCH, version)


def story(box: Box) -> list[Event]:
    """What MCLoraRegistry's first state stands for, as it came about."""

    def join(engine: str) -> Event:
        return ev.EngineJoin(engine=engine, incarnation=1, seq=1, base_fingerprint=box.OurBase)

    events = [join(engine) for engine in box.Took]
    for n in range(1, box.Published + box.ReadyNext + 1):
        events.append(ev.Reserve(key=key(n), digest=DIGESTS["a"], plan=Plan(0, "f" * 64), token=f"t{n}"))
        events.append(ev.ArtifactStored(key=key(n), digest=DIGESTS["a"]))
        for engine in box.Took:
            at = {"number": n, "engine": engine, "incarnation": 1}
            events.append(ev.Prepared(**at, seq=1))
            events.append(
                ev.Ready(**at, seq=2, key=key(n), digest=DIGESTS["a"], base_fingerprint=box.OurBase, probe_ok=True)
            )
        if n <= box.Published:
            events.append(ev.Commit(key=key(n), token=f"t{n}", expected_revision=n - 1))
        if n == box.HeldVersion:
            events += [ev.OwnerUp(owner="o1"), ev.BindFirst(session=SessionKey(EPOCH, "o1", 0))]
    return events + [join(engine) for engine in box.Late]


def start(box: Box) -> Registry:
    """The registry after the story."""
    return reduce(lambda r, e: step(r, e).registry, story(box), new_registry(EPOCH, box.config))


Moves = Iterator[Event]


class _Maker:
    """Events of a box, by the name of the action that each may be."""

    def __init__(self, box: Box) -> None:
        self.box = box
        self.listings = list(_listings(box))

    def events(self, r: Registry) -> Moves:
        seen = set()
        for name in self.box.Happens:
            event = {"EngineRestarted": "EngineUp"}.get(name, name)
            if event not in seen:
                seen.add(event)
                yield from _MAKERS[event](self, r)

    def answers(self, r: Registry) -> Iterator[dict[str, Any]]:
        """Who answers about which number, under which seq."""
        box = self.box
        for number, engine, incarnation in product(box.Number, box.Engine, box.Incarnation):
            for seq in self.target_seqs(r, number, engine):
                yield {"number": number, "engine": engine, "incarnation": incarnation, "seq": seq}

    def target_seqs(self, r: Registry, number: int, engine: str) -> list[int]:
        if self.box.AnySeq:
            return self.box.AnswerSeq
        attempt = r.attempts.get(number)
        target = attempt.targets.get(engine) if attempt is not None else None
        following = max(target.seq, 0) + 1 if target is not None else 0
        return [following] if following in self.box.AnswerSeq else []

    def engine_seqs(self, r: Registry, engine: str) -> list[int]:
        if self.box.AnySeq:
            return self.box.AnswerSeq
        known = r.engines.get(engine)
        return [max(known.seq if known is not None else 0, 1)]

    def new_seqs(self) -> list[int]:
        return self.box.AnswerSeq if self.box.AnySeq else [1]

    def proofs(self) -> Iterator[dict[str, Any]]:
        box = self.box
        for version, digest in product(box.Version, box.Digest):
            right = {"key": key(version), "digest": DIGESTS[digest], "base_fingerprint": box.OurBase, "probe_ok": True}
            yield right
            yield right | {"digest": OTHER_DIGEST}
            yield right | {"base_fingerprint": "another"}
            yield right | {"probe_ok": False}


def _listings(box: Box) -> Iterable[frozenset[Resident]]:
    digests = ["a"] if box.listings == "OfNumbers" else box.Digest
    numbers = box.Number if box.listings == "OfNumbers" else [0, *box.Number]
    residents = [Resident(key(v), DIGESTS[d], n) for v, d, n in product(box.Version, digests, numbers)]
    most = {"OnlyEmpty": 0, "AtMostOne": 1, "OfNumbers": len(residents)}[box.listings]
    return [frozenset(chosen) for size in range(most + 1) for chosen in combinations(residents, size)]


def _reserve(m: _Maker, r: Registry) -> Moves:
    if r.next_number in m.box.Number:
        for version, digest, token in product(m.box.Version, m.box.Digest, m.box.Token):
            plan = Plan(m.box.Buckets, "f" * 64)
            yield ev.Reserve(key=key(version), digest=DIGESTS[digest], plan=plan, token=token)


def _artifact_stored(m: _Maker, r: Registry) -> Moves:
    for version, digest in product(m.box.Version, m.box.Digest):
        yield ev.ArtifactStored(key=key(version), digest=DIGESTS[digest])


def _authorize(m: _Maker, r: Registry) -> Moves:
    for number, token, bucket in product(m.box.Number, m.box.Token, range(m.box.Buckets + 1)):
        yield ev.AuthorizeBucket(number=number, token=token, bucket=bucket)


def _commit(m: _Maker, r: Registry) -> Moves:
    for version, token, revision in product(m.box.Version, m.box.Token, REVISIONS):
        yield ev.Commit(key=key(version), token=token, expected_revision=revision)


def _abort(m: _Maker, r: Registry) -> Moves:
    for version, token in product(m.box.Version, m.box.Token):
        yield ev.Abort(key=key(version), token=token, reason="given up")


def _takeover(m: _Maker, r: Registry) -> Moves:
    for version, token, handover in product(m.box.Version, m.box.Token, ("", *m.box.Token)):
        yield ev.Takeover(key=key(version), token=token, handover=handover)


def _rollback(m: _Maker, r: Registry) -> Moves:
    for version, operation, revision in product(m.box.Version, m.box.Operation, REVISIONS):
        yield ev.Rollback(key=key(version), expected_revision=revision, operation_id=operation)


def _bucket_done(m: _Maker, r: Registry) -> Moves:
    for answer, bucket in product(list(m.answers(r)), range(m.box.Buckets + 1)):
        yield ev.BucketDone(**answer, bucket=bucket)


def _ready(m: _Maker, r: Registry) -> Moves:
    for answer, proof in product(list(m.answers(r)), list(m.proofs())):
        yield ev.Ready(**answer, **proof)


def _target_unknown(m: _Maker, r: Registry) -> Moves:
    for number, engine, incarnation in product(m.box.Number, m.box.Engine, m.box.Incarnation):
        yield ev.TargetUnknown(number=number, engine=engine, incarnation=incarnation)


def _of_owner(kind: Callable[..., Event]) -> Callable[[_Maker, Registry], Moves]:
    return lambda m, r: (kind(owner=owner) for owner in m.box.Owner)


def _of_session(kind: Callable[..., Event]) -> Callable[[_Maker, Registry], Moves]:
    return lambda m, r: (kind(session=SessionKey(EPOCH, o, s)) for o, s in product(m.box.Owner, m.box.Sequence))


def _claim(m: _Maker, r: Registry) -> Moves:
    for version, reclaim_id in product(m.box.Version, m.box.ReclaimId):
        yield ev.ClaimReclaim(key=key(version), reclaim_id=reclaim_id)


def _confirm(m: _Maker, r: Registry) -> Moves:
    for reclaim_id, engine, incarnation in product(m.box.ReclaimId, m.box.Engine, m.box.Incarnation):
        for seq, absent in product(m.engine_seqs(r, engine), (True, False)):
            yield ev.ConfirmReclaim(
                reclaim_id=reclaim_id, engine=engine, incarnation=incarnation, seq=seq, observed_absent=absent
            )


def _reclaim_unknown(m: _Maker, r: Registry) -> Moves:
    for reclaim_id, engine, incarnation in product(m.box.ReclaimId, m.box.Engine, m.box.Incarnation):
        yield ev.ReclaimUnknown(reclaim_id=reclaim_id, engine=engine, incarnation=incarnation)


def _join(m: _Maker, r: Registry) -> Moves:
    for engine, incarnation, base in product(m.box.Engine, m.box.Incarnation, m.box.Base):
        for seq, listed in product(m.new_seqs(), m.listings):
            yield ev.EngineJoin(
                engine=engine, incarnation=incarnation, seq=seq, base_fingerprint=base, residents=listed
            )


def _engine_up(m: _Maker, r: Registry) -> Moves:
    for engine, incarnation, base in product(m.box.Engine, m.box.Incarnation, m.box.Base):
        known = r.engines.get(engine)
        new = known is not None and incarnation > known.incarnation
        if ("EngineRestarted" if new else "EngineUp") not in m.box.Happens:
            continue
        for seq, listed in product(m.new_seqs() if new else m.engine_seqs(r, engine), m.listings):
            yield ev.EngineUp(engine=engine, incarnation=incarnation, seq=seq, base_fingerprint=base, residents=listed)


def _of_incarnation(kind: Callable[..., Event], **words: str) -> Callable[[_Maker, Registry], Moves]:
    return lambda m, r: (
        kind(engine=engine, incarnation=incarnation, **words)
        for engine, incarnation in product(m.box.Engine, m.box.Incarnation)
    )


def _order_repair(m: _Maker, r: Registry) -> Moves:
    if r.next_number in m.box.Number:
        for version, engine in product(m.box.Version, m.box.Engine):
            yield ev.OrderRepair(key=key(version), engine=engine)


def _repair_answers(m: _Maker, r: Registry) -> Iterator[dict[str, Any]]:
    for number, engine, incarnation in product(m.box.Number, m.box.Engine, m.box.Incarnation):
        for seq in m.engine_seqs(r, engine):
            yield {"number": number, "engine": engine, "incarnation": incarnation, "seq": seq}


_MAKERS: dict[str, Callable[[_Maker, Registry], Moves]] = {
    "Reserve": _reserve,
    "ArtifactStored": _artifact_stored,
    "AuthorizeBucket": _authorize,
    "Commit": _commit,
    "Abort": _abort,
    "Takeover": _takeover,
    "Rollback": _rollback,
    "Prepared": lambda m, r: (ev.Prepared(**answer) for answer in m.answers(r)),
    "BucketDone": _bucket_done,
    "Ready": _ready,
    "TargetFailed": lambda m, r: (ev.TargetFailed(**answer, reason="no") for answer in m.answers(r)),
    "TargetUnknown": _target_unknown,
    "Cleaned": lambda m, r: (ev.Cleaned(**answer) for answer in m.answers(r)),
    "OwnerUp": _of_owner(ev.OwnerUp),
    "Heartbeat": _of_owner(ev.Heartbeat),
    "OwnerExpired": _of_owner(ev.OwnerExpired),
    "OwnerGone": _of_owner(ev.OwnerGone),
    "Recovered": lambda m, r: iter([ev.Recovered()]),
    "Open": _of_session(ev.Open),
    "BindFirst": _of_session(ev.BindFirst),
    "BeginClose": _of_session(ev.BeginClose),
    "CloseAndRelease": _of_session(ev.CloseAndRelease),
    "ClaimReclaim": _claim,
    "ConfirmReclaim": _confirm,
    "ReclaimUnknown": _reclaim_unknown,
    "EngineJoin": _join,
    "EngineUp": _engine_up,
    "EngineLost": _of_incarnation(ev.EngineLost),
    "EngineDead": _of_incarnation(ev.EngineDead, evidence="exit status"),
    "EngineRemove": lambda m, r: (ev.EngineRemove(engine=engine) for engine in m.box.Engine),
    "Quarantine": _of_incarnation(ev.Quarantine, reason="negative count"),
    "OrderRepair": _order_repair,
    "RepairReady": lambda m, r: (
        ev.RepairReady(**answer, **proof) for answer, proof in product(list(_repair_answers(m, r)), list(m.proofs()))
    ),
    "RepairFailed": lambda m, r: (ev.RepairFailed(**answer, reason="no") for answer in _repair_answers(m, r)),
}


def action_of(r: Registry, event: Event) -> str:
    """The specification's name for an event: a new incarnation's inventory is an action of its own, and so is a step
    with an argument that is only judged and is wrong (the second half of MCLoraRegistry.tla)."""
    name = type(event).__name__
    if isinstance(event, ev.EngineUp) and event.incarnation > r.engines[event.engine].incarnation:
        name = "EngineRestarted"
    if isinstance(event, ev.Takeover):
        return name if event.handover == r.attempts[r.versions[event.key].number].token else "TakeoverOfSilent"
    return f"Mistaken{name}" if _mistaken(r, event, name) else name


def _mistaken(r: Registry, event: Event, name: str) -> bool:
    match event:
        case ev.ArtifactStored():
            return event.digest != r.versions[event.key].digest
        case ev.AuthorizeBucket():
            attempt = r.attempts[event.number]
            return (event.token, event.bucket) != (attempt.token, attempt.authorized)
        case ev.Commit() | ev.Abort():
            attempt = r.attempts[r.tokens[event.token]]
            revision = getattr(event, "expected_revision", r.default_revision)
            return (event.token, event.key, revision) != (attempt.token, attempt.key, r.default_revision)
        case ev.Rollback():
            return event.expected_revision != r.default_revision
        case ev.Prepared() | ev.BucketDone() | ev.Ready() | ev.TargetFailed() | ev.TargetUnknown() | ev.Cleaned():
            attempt = r.attempts[event.number]
            target = attempt.targets[event.engine]
            following = getattr(event, "bucket", target.buckets_done) - target.buckets_done
            once_more = following == -1 and target.state is TargetState.UNKNOWN
            return (
                event.incarnation != target.incarnation
                or (following != 0 and not once_more)
                or (isinstance(event, ev.Ready) and not _shows(r, event, attempt.key))
            )
        case ev.ConfirmReclaim() | ev.ReclaimUnknown():
            unload = r.reclaims[event.reclaim_id].unloads[event.engine]
            return event.incarnation != unload.incarnation or not getattr(event, "observed_absent", True)
        case ev.EngineJoin() | ev.EngineUp():
            wrong_base = event.base_fingerprint != r.config.base_fingerprint
            return wrong_base or (name == "EngineUp" and event.incarnation != r.engines[event.engine].incarnation)
        case ev.EngineLost() | ev.EngineDead() | ev.Quarantine():
            return event.incarnation != r.engines[event.engine].incarnation
        case ev.RepairReady() | ev.RepairFailed():
            repair = r.repairs[event.number]
            return (event.engine, event.incarnation) != (repair.engine, repair.incarnation) or (
                isinstance(event, ev.RepairReady) and not _shows(r, event, repair.key)
            )
    return False


def _shows(r: Registry, event: ev.Ready | ev.RepairReady, version: VersionKey) -> bool:
    shown = (event.key, event.digest, event.base_fingerprint, event.probe_ok)
    return shown == (version, r.versions[version].digest, r.config.base_fingerprint, True)


class TwoFaced(AssertionError):
    """Two states of the core have one image and different futures: the map drops something that a guard reads."""


def walk(box: Box, max_states: int = 100_000, step: Callable[[Registry, Event], Any] = step) -> Graph:
    """The core's graph in the specification's terms: every state, and where each event leads.

    Raises TwoFaced when a field that `as_tla` drops matters.
    """
    maker, names, times = _Maker(box), box.names, sorted(box.Time)
    images: dict[Registry, State] = {}
    futures: dict[State, tuple[Registry, frozenset[tuple[str, State]]]] = {}
    out: dict[Registry, set[tuple[str, State]]] = {}

    def image(r: Registry) -> State:
        known = images.get(r)
        if known is None:
            known = images[r] = tla_state(r, names)
        return known

    def moves(r: Registry) -> Moves:
        out[r] = set()
        for event in maker.events(r):
            for now in times:
                yield evolve(event, now=now) if now else event

    def observe(before: Registry, event: Event, after: Registry, code: str) -> None:
        if after is not before and image(after) != image(before):
            out[before].add((action_of(before, event), image(after)))

    def core_step(r: Registry, event: Event) -> tuple[Registry, str]:
        done = step(r, event)
        return done.registry, done.outcome.code

    first = start(box)
    seen = explore(first, moves, lambda r: (), step=core_step, observe=observe, max_states=max_states)
    assert seen.complete, f"{box.name} has more than {max_states} states"
    for r, steps in out.items():
        other, known = futures.setdefault(image(r), (r, frozenset(steps)))
        if known != steps:
            raise TwoFaced(f"{box.name}: {sorted(known ^ steps)[0]}\nis a step of only one of\n{other}\n{r}")
    return Graph(frozenset({image(first)}), {state: steps for state, (_, steps) in futures.items()})
