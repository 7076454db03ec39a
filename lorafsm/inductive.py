"""An inductive invariant of the registry: what holds is kept by every step, from whatever state it holds in.

`invariants.check` says what is promised; here is, besides, why it stays true: each conjunct below is what some
transition relies on.  Together they hold in an empty registry, every event keeps them, and they imply I1-I6 and
I9-I12, so the registry's safety does not rest on a search of small worlds alone.  `tla/LoraRegistryInductive.tla`
says the same in the specification's words.
"""

from __future__ import annotations

from collections.abc import Iterator

from lorafsm import invariants
from lorafsm.lifecycle import (
    ALIVE,
    SERVES,
    AttemptState,
    EngineState,
    RepairState,
    TargetState,
    UnloadState,
    VersionState,
)
from lorafsm.records import Registry
from lorafsm.registry.view import lacks

ATTEMPT_OF = {
    VersionState.LOADING: AttemptState.OPEN,
    VersionState.PUBLISHED: AttemptState.COMMITTED,
    VersionState.RETIRED: AttemptState.COMMITTED,
    VersionState.RECLAIMING: AttemptState.COMMITTED,
    VersionState.RECLAIMED: AttemptState.COMMITTED,
    VersionState.ABORTED: AttemptState.ABORTED,
    VersionState.FAILED_CLEAN: AttemptState.CLEAN,
}
"""How the latest attempt of a version stands, by the version's state."""
_PUBLISHED_ONCE = frozenset({VersionState.RETIRED, VersionState.RECLAIMING, VersionState.RECLAIMED})
_GONE = frozenset({EngineState.DEAD, EngineState.REMOVED})


def broken(r: Registry) -> tuple[str, ...]:
    """Every broken conjunct of the inductive invariant; empty: all hold."""
    parts = (_records, _receipts, _versions, _attempts, _reclaims, _engines, _presence)
    own = tuple(sentence for part in parts[:2] for sentence in part(r))
    if own:
        return own  # the other conjuncts look records up
    return invariants.check(r) + tuple(sentence for part in parts[2:] for sentence in part(r))


def _records(r: Registry) -> Iterator[str]:
    """What is referred to is there."""
    for key, version in r.versions.items():
        attempt = r.attempts.get(version.number)
        if key != version.key or attempt is None or attempt.key != key:
            yield f"records: {key} has no attempt {version.number}"
        if version.reclaim_id and version.reclaim_id not in r.reclaims:
            yield f"records: {key} has no reclaim {version.reclaim_id}"
    for number, attempt in r.attempts.items():
        if attempt.key not in r.versions or not set(attempt.targets) <= set(r.engines):
            yield f"records: attempt {number} is of an unknown version or engine"
        if r.tokens.get(attempt.token) != number:
            yield f"records: the token of attempt {number} is another's"
    for reclaim in r.reclaims.values():
        if reclaim.key not in r.versions or not set(reclaim.unloads) <= set(r.engines):
            yield f"records: reclaim {reclaim.reclaim_id} is of an unknown version or engine"
    for number, repair in r.repairs.items():
        if repair.key not in r.versions or repair.engine not in r.engines or number in r.attempts:
            yield f"records: repair {number} is of an unknown version or engine, or an attempt's"
    if any(number >= r.next_number for number in (*r.attempts, *r.repairs, *r.tokens.values())):
        yield f"records: a number is not below {r.next_number}"
    if not {key for engine in r.engines.values() for key in engine.residents} <= set(r.versions):
        yield "records: an engine holds an unknown version"
    if any(number not in r.repairs for engine in r.engines.values() for number in engine.repairs.values()):
        yield "records: an engine lists an unknown repair"


def _receipts(r: Registry) -> Iterator[str]:
    """What was decided is answered again."""
    for number, attempt in r.attempts.items():
        if attempt.state is AttemptState.COMMITTED and ("commit", str(number)) not in r.receipts:
            yield f"receipts: attempt {number} is COMMITTED without a receipt"
        ended = attempt.state in (AttemptState.ABORTED, AttemptState.CLEAN)
        if ended and ("abort", str(number)) not in r.receipts:
            yield f"receipts: attempt {number} is {attempt.state} without a receipt"
    for kind, operation in r.receipts:
        if kind == "commit" and r.attempts[int(operation)].state is not AttemptState.COMMITTED:
            yield f"receipts: attempt {operation} has a receipt of its commit"
        if kind == "abort" and r.attempts[int(operation)].state not in (AttemptState.ABORTED, AttemptState.CLEAN):
            yield f"receipts: attempt {operation} has a receipt of its abort"
        if kind == "claim_reclaim" and operation not in r.reclaims:
            yield f"receipts: reclaim {operation} has a receipt and is not there"
        if kind in ("reserve", "takeover") and operation not in r.tokens:
            yield f"receipts: a {kind} has a receipt and its token is unknown"
    for reclaim_id in r.reclaims:
        if ("claim_reclaim", reclaim_id) not in r.receipts:
            yield f"receipts: reclaim {reclaim_id} has none"


def _versions(r: Registry) -> Iterator[str]:
    """A version and its latest attempt go together; what was published once needs a default in its place."""
    for key, version in r.versions.items():
        attempt = r.attempts[version.number]
        if attempt.state is not ATTEMPT_OF[version.state]:
            yield f"versions: {key} is {version.state}, its attempt {attempt.state}"
        if version.state in _PUBLISHED_ONCE and r.default is None:
            yield f"versions: {key} is {version.state} and there is no default"
        reclaimed = version.state in (VersionState.RECLAIMING, VersionState.RECLAIMED)
        if reclaimed is not bool(version.reclaim_id):
            yield f"versions: {key} is {version.state} with reclaim {version.reclaim_id!r}"
        if version.revoked and version.state not in _PUBLISHED_ONCE:
            yield f"versions: {key} is {version.state} and revoked"


def _attempts(r: Registry) -> Iterator[str]:
    """Whoever is committed was READY everywhere; whoever is aborted is unclean somewhere."""
    for number, attempt in r.attempts.items():
        states = {target.state for target in attempt.targets.values()}
        if attempt.state is AttemptState.COMMITTED and states - {TargetState.READY}:
            yield f"attempts: {number} was committed with targets {sorted(states)}"
        if attempt.state is AttemptState.ABORTED and not states - {TargetState.CLEANED}:
            yield f"attempts: {number} is clean and not CLEAN"
        if attempt.number != number or r.versions[attempt.key].number < number:
            yield f"attempts: {number} is later than the latest of {attempt.key}"
        for target in attempt.targets.values():
            if target.incarnation > r.engines[target.engine].incarnation:
                yield f"attempts: {number} knows a later incarnation of {target.engine}"


def _reclaims(r: Registry) -> Iterator[str]:
    """A reclaim waits for incarnations that were there."""
    for reclaim in r.reclaims.values():
        for unload in reclaim.unloads.values():
            if unload.incarnation > r.engines[unload.engine].incarnation:
                yield f"reclaims: {reclaim.reclaim_id} knows a later incarnation of {unload.engine}"


def _engines(r: Registry) -> Iterator[str]:
    """Engines that serve hold what is needed; pending repairs are of the live incarnation and of what is served."""
    for name, engine in r.engines.items():
        if engine.engine != name or engine.inventory.seq > engine.seq:
            yield f"engines: {name} listed at {engine.inventory.seq}, its latest answer is {engine.seq}"
        if engine.state in ALIVE and (engine.state is EngineState.UP) is bool(lacks(engine, r)):
            yield f"engines: {name} is {engine.state} and lacks {lacks(engine, r)}"
        if engine.state in _GONE and (engine.residents or engine.repairs):
            yield f"engines: {name} is {engine.state} and holds something"
        if engine.state is EngineState.QUARANTINED and engine.repairs:
            yield f"engines: {name} is QUARANTINED and is being repaired"
        for key, number in engine.repairs.items():
            repair = r.repairs[number]
            if (repair.incarnation, repair.state) != (engine.incarnation, RepairState.ORDERED):
                yield f"engines: {name} waits for a repair that is over"
            if r.versions[key].state not in SERVES:
                yield f"engines: {name} is being repaired with {key}, which is {r.versions[key].state}"


def _presence(r: Registry) -> Iterator[str]:
    """A proof is of a number that answers for it here, and leaves before its target or unload is done (I11)."""
    for name, engine in r.engines.items():
        for key, resident in engine.residents.items():
            version = r.versions[key]
            attempt, repair = r.attempts.get(resident.number), r.repairs.get(resident.number)
            target = attempt.targets.get(name) if attempt is not None else None
            by_attempt = attempt is not None and attempt.key == key and target is not None
            by_repair = repair is not None and (repair.key, repair.engine) == (key, name)
            if not (by_attempt or by_repair):
                yield f"presence: {key} on {name} was loaded by nobody ({resident.number})"
            if version.state in (VersionState.RECLAIMED, VersionState.FAILED_CLEAN):
                yield f"presence: {key} is {version.state} and on {name}"
            under_way = version.state in (VersionState.LOADING, VersionState.ABORTED)
            cleaned = target is None or target.state is TargetState.CLEANED
            if under_way and (resident.number != version.number or cleaned):
                yield f"presence: {key} is {version.state} and on {name}, where its attempt is clean or never was"
            if version.state is VersionState.RECLAIMING:
                unload = r.reclaims[version.reclaim_id].unloads.get(name)
                if unload is None or unload.state is UnloadState.UNLOADED:
                    yield f"presence: {key} is unloaded from {name} and there"
