"""Events that make sense in a registry, and events that nearly do.

`likely(r, kind, fresh)` lists the events of one kind that name things of this registry as they are, most of them
enabled: right tokens, numbers, incarnations and fresh seqs.  `wrong_values(r)` lists well-formed values that are
somebody else's or of another time.  Both are used by the stateful test, the seeded runs and the fuzz.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import evolve, fields

from lorafsm import events as ev
from lorafsm.events import EVENTS
from lorafsm.identity import SessionKey, VersionKey
from lorafsm.lifecycle import ALIVE, EngineState, VersionState
from lorafsm.manifest import Plan, store_plan
from lorafsm.records import Attempt, Engine, Registry, Resident
from lorafsm.registry.view import is_needed, members
from tests.core.story import EPOCH, digest_of

VERSIONS = tuple(VersionKey(EPOCH, number) for number in range(1, 100))
ENGINES = ("E0", "E1", "E2")
OWNERS = ("o1", "o2", "o3")
SESSIONS = 5
STRANGER = "relax_policy_lora@e0-4-0123456789ab"
KINDS: Mapping[str, type[Any]] = {event.name: event for event in EVENTS}


def digest_for(key: VersionKey) -> str:
    """The bytes that a version has in these runs."""
    return digest_of(f"version {key.version_id}")


def plan_of(buckets: int) -> Plan:
    """A plan with so many buckets; 0: engines read the store."""
    return Plan(buckets, digest_of(f"plan of {buckets}")) if buckets else store_plan()


def likely(r: Registry, kind: str, fresh: int) -> list[Any]:
    """Events of this kind that name what is there; `fresh` numbers new tokens, ids and seqs."""
    return _LIKELY[kind](r, fresh)


def at(event: Any, now: int) -> Any:
    """The same event at this time."""
    return evolve(event, now=now)


def wrong_values(r: Registry, fresh: int) -> Mapping[str, Sequence[Any]]:
    """Well-formed values for each field that are likely to be wrong."""
    numbers = sorted({0, 1, r.next_number, r.unresolved, *r.attempts, *r.repairs})
    tokens = sorted(r.tokens) or ["nobodys"]
    incarnations = sorted({0, 1, 2} | {e.incarnation + d for e in r.engines.values() for d in (-1, 1)} - {-1})
    return {
        "key": [*sorted(r.versions), *VERSIONS[:3], VersionKey("e2", 1)],
        "digest": [digest_of("other bytes"), *(digest_for(key) for key in VERSIONS[:3])],
        "plan": [plan_of(n) for n in (0, 1, 3)],
        "token": [*tokens, "nobodys"],
        "handover": ["", "nobodys", *tokens],
        "number": numbers,
        "engine": [*ENGINES, "E9"],
        "incarnation": incarnations,
        "seq": [0, 1, fresh // 2, 2 * fresh],
        "bucket": [0, 1, 2, 3],
        "base_fingerprint": ["", "another base"],
        "probe_ok": [True, False],
        "expected_revision": [0, r.default_revision, r.default_revision + 1],
        "operation_id": [f"op{n}" for n in range(4)],
        "owner": [*OWNERS, "o9"],
        "session": [*sessions(r), SessionKey(EPOCH, "o9", 0), SessionKey("e2", "o1", 0)],
        "reclaim_id": [*sorted(r.reclaims), "r-nobodys"],
        "observed_absent": [True, False],
        "residents": [frozenset(), *(residents(r, e) | strangers(r) for e in members(r))],
        "foreign": [frozenset({STRANGER}), frozenset({"somebody-elses"})],
        "now": [0, r.now // 2, r.now + 100_000],
        "tensors": [0, 7],
        "nbytes": [0, 7],
        "reason": ["", "another reason"],
        "label": ["", "another label"],
        "evidence": ["", "another proof"],
    }


def field_names(event: Any) -> list[str]:
    """The fields of an event that may be changed."""
    return [f.name for f in fields(type(event))]


def sessions(r: Registry) -> list[SessionKey]:
    """Keys that are used in these runs: few, so that they meet again."""
    return [SessionKey(EPOCH, owner, sequence) for owner in sorted(r.owners) for sequence in range(SESSIONS)]


def residents(r: Registry, engine: Engine) -> frozenset[Resident]:
    """What this engine was proved to hold: an honest inventory."""
    return frozenset(engine.residents.values())


def strangers(r: Registry) -> frozenset[Resident]:
    """What no engine should hold."""
    return frozenset(Resident(v.key, v.digest, v.number) for v in r.versions.values())


def _open_targets(r: Registry) -> list[tuple[Attempt, Any]]:
    attempt = r.attempts.get(r.unresolved)
    return [] if attempt is None else [(attempt, attempt.targets[name]) for name in sorted(attempt.targets)]


def _answer(attempt: Attempt, target: Any, fresh: int) -> dict[str, Any]:
    return {"number": attempt.number, "engine": target.engine, "incarnation": target.incarnation, "seq": fresh}


def _proof(r: Registry, key: VersionKey) -> dict[str, Any]:
    return {"key": key, "digest": r.versions[key].digest, "base_fingerprint": "", "probe_ok": True}


def _reserve(r: Registry, fresh: int) -> list[Any]:
    unseen = [key for key in VERSIONS if key not in r.versions]
    again = [v.key for _, v in sorted(r.versions.items()) if v.state is VersionState.FAILED_CLEAN]
    return [
        ev.Reserve(key=key, digest=digest_for(key), plan=plan_of(fresh % 3), token=f"t{fresh}")
        for key in (*again, *unseen[:2])
    ]


def _drives(r: Registry) -> list[Attempt]:
    return [r.attempts[r.unresolved]] if r.unresolved else [r.attempts[n] for n in sorted(r.attempts)]


def _repairs(r: Registry) -> list[Any]:
    return [p for _, p in sorted(r.repairs.items()) if p.state == "ORDERED"]


def _unloads(r: Registry) -> list[tuple[str, Any]]:
    return [(c.reclaim_id, u) for _, c in sorted(r.reclaims.items()) for _, u in sorted(c.unloads.items())]


def _inventory(e: Engine, r: Registry, fresh: int, incarnation: int) -> Any:
    holds = residents(r, e) if incarnation == e.incarnation else frozenset()
    return ev.EngineUp(engine=e.engine, incarnation=incarnation, seq=fresh, base_fingerprint="", residents=holds)


def _engine_up(r: Registry, fresh: int) -> list[Any]:
    alive = [e for e in members(r) if e.state is not EngineState.DEAD]
    gone = [e for e in members(r) if e.state not in ALIVE]
    up = [_inventory(e, r, fresh, e.incarnation) for e in alive]
    short = [evolve(event, residents=event.residents - {held}) for event in up for held in sorted(event.residents)]
    return [*up, *up, *short, *(_inventory(e, r, fresh, e.incarnation + 1) for e in gone)]


def _order_repair(r: Registry, fresh: int) -> list[Any]:
    lacking = [
        ev.OrderRepair(key=key, engine=e.engine)
        for e in members(r)
        for key in r.slots
        if is_needed(r.versions[key]) and key not in e.residents
    ]
    return lacking or [ev.OrderRepair(key=key, engine=e.engine) for e in members(r) for key in r.slots]


def _joins(r: Registry, fresh: int) -> list[Any]:
    known = {name: e.incarnation for name, e in r.engines.items()}
    return [
        ev.EngineJoin(engine=name, incarnation=known.get(name, 0) + 1, seq=fresh, base_fingerprint="")
        for name in ENGINES
        if name not in known or r.engines[name].state is EngineState.REMOVED
    ]


def _about_engines(make: Callable[[Engine], Any]) -> Callable[[Registry, int], list[Any]]:
    return lambda r, fresh: [make(e) for e in members(r)]


def _about_sessions(make: type[Any]) -> Callable[[Registry, int], list[Any]]:
    return lambda r, fresh: [make(session=s) for s in sessions(r)]


def _about_targets(
    make: Callable[[Registry, Attempt, Any, dict[str, Any]], Any],
) -> Callable[[Registry, int], list[Any]]:
    return lambda r, fresh: [make(r, a, t, _answer(a, t, fresh)) for a, t in _open_targets(r)]


_LIKELY: Mapping[str, Callable[[Registry, int], list[Any]]] = {
    "reserve": _reserve,
    "artifact_stored": lambda r, fresh: [
        ev.ArtifactStored(key=v.key, digest=v.digest) for _, v in sorted(r.versions.items()) if not v.artifact
    ],
    "prepared": _about_targets(lambda r, a, t, who: ev.Prepared(**who)),
    "authorize_bucket": lambda r, fresh: [
        ev.AuthorizeBucket(number=a.number, token=a.token, bucket=a.authorized) for a in _drives(r)
    ],
    "bucket_done": _about_targets(lambda r, a, t, who: ev.BucketDone(**who, bucket=t.buckets_done)),
    "ready": _about_targets(lambda r, a, t, who: ev.Ready(**who, **_proof(r, a.key))),
    "target_failed": _about_targets(lambda r, a, t, who: ev.TargetFailed(**who, reason="no memory")),
    "target_unknown": _about_targets(
        lambda r, a, t, who: ev.TargetUnknown(number=a.number, engine=t.engine, incarnation=t.incarnation)
    ),
    "commit": lambda r, fresh: [ev.Commit(key=a.key, token=a.token, expected_revision=a.revision) for a in _drives(r)],
    "abort": lambda r, fresh: [ev.Abort(key=a.key, token=a.token, reason="given up") for a in _drives(r)],
    "cleaned": _about_targets(lambda r, a, t, who: ev.Cleaned(**who)),
    "takeover": lambda r, fresh: [
        ev.Takeover(key=a.key, token=f"t{fresh}", handover=handover) for a in _drives(r) for handover in ("", a.token)
    ],
    "rollback": lambda r, fresh: [
        ev.Rollback(key=key, expected_revision=r.default_revision, operation_id=f"op{fresh}")
        for key in r.slots
        if key != r.default
    ],
    "owner_up": lambda r, fresh: [ev.OwnerUp(owner=owner) for owner in OWNERS],
    "heartbeat": lambda r, fresh: [ev.Heartbeat(owner=owner) for owner in sorted(r.owners)],
    "owner_expired": lambda r, fresh: [ev.OwnerExpired(owner=owner) for owner in sorted(r.owners)],
    "owner_gone": lambda r, fresh: [ev.OwnerGone(owner=owner) for owner in sorted(r.owners)],
    "recovered": lambda r, fresh: [ev.Recovered()],
    "open": _about_sessions(ev.Open),
    "bind_first": _about_sessions(ev.BindFirst),
    "begin_close": _about_sessions(ev.BeginClose),
    "close_and_release": _about_sessions(ev.CloseAndRelease),
    "claim_reclaim": lambda r, fresh: [
        ev.ClaimReclaim(key=key, reclaim_id=f"r{fresh}") for key in r.slots if key != r.default
    ],
    "confirm_reclaim": lambda r, fresh: [
        ev.ConfirmReclaim(reclaim_id=rid, engine=u.engine, incarnation=u.incarnation, seq=fresh, observed_absent=True)
        for rid, u in _unloads(r)
    ],
    "reclaim_unknown": lambda r, fresh: [
        ev.ReclaimUnknown(reclaim_id=rid, engine=u.engine, incarnation=u.incarnation) for rid, u in _unloads(r)
    ],
    "engine_join": _joins,
    "engine_up": _engine_up,
    "engine_lost": _about_engines(lambda e: ev.EngineLost(engine=e.engine, incarnation=e.incarnation)),
    "engine_dead": _about_engines(
        lambda e: ev.EngineDead(engine=e.engine, incarnation=e.incarnation, evidence="exit status 137")
    ),
    "engine_remove": _about_engines(lambda e: ev.EngineRemove(engine=e.engine)),
    "quarantine": _about_engines(
        lambda e: ev.Quarantine(engine=e.engine, incarnation=e.incarnation, reason="a negative count")
    ),
    "order_repair": _order_repair,
    "repair_ready": lambda r, fresh: [
        ev.RepairReady(number=p.number, engine=p.engine, incarnation=p.incarnation, seq=fresh, **_proof(r, p.key))
        for p in _repairs(r)
    ],
    "repair_failed": lambda r, fresh: [
        ev.RepairFailed(number=p.number, engine=p.engine, incarnation=p.incarnation, seq=fresh, reason="no memory")
        for p in _repairs(r)
    ],
}
assert set(_LIKELY) == set(KINDS)

FORWARD = (
    "reserve artifact_stored prepared authorize_bucket bucket_done ready commit claim_reclaim confirm_reclaim cleaned "
    "order_repair repair_ready"
).split()
"""The kinds that bring a registry on; a run that draws them often gets far."""


def filler(kind: str) -> Any:
    """A well-formed event of a kind that has nothing to be about in a registry."""
    key = VERSIONS[0]
    values: dict[str, Any] = {
        "key": key,
        "digest": digest_for(key),
        "plan": store_plan(),
        "token": "nobodys",
        "number": 9,
        "engine": "E9",
        "incarnation": 1,
        "seq": 1,
        "bucket": 0,
        "base_fingerprint": "",
        "probe_ok": True,
        "reason": "because",
        "expected_revision": 0,
        "operation_id": "op0",
        "owner": "o9",
        "session": SessionKey(EPOCH, "o9", 0),
        "reclaim_id": "r-nobodys",
        "observed_absent": True,
        "evidence": "none",
    }
    event = KINDS[kind]
    return event(**{f.name: values[f.name] for f in fields(event) if f.name in values})
