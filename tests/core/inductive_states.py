"""Type-correct states of the registry, made field by field and not by events: all of a small space, or drawn at random.

`build(pick, size)` asks `pick` for each free field; what the invariant fixes (slots, counts, the default) is computed,
so that nothing it allows is left out.  `every` gives `pick` all answers in turn, `drawn` random ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from attrs import evolve, frozen
from immutables import Map

from lorafsm.holders import Holders
from lorafsm.identity import VersionKey, lora_name
from lorafsm.inductive import ATTEMPT_OF
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
from lorafsm.manifest import Plan
from lorafsm.outcomes import Aborted, Committed, ReclaimOrdered, Reserved
from lorafsm.records import (
    Attempt,
    Config,
    Engine,
    Inventory,
    Owner,
    Reclaim,
    Registry,
    Repair,
    Resident,
    Session,
    Target,
    Unload,
    Version,
)
from lorafsm.registry.settle import with_serving_states

EPOCH, NOW, DIGEST = "e1", 5, "a" * 64
Pick = Callable[[Sequence[Any]], Any]


class Pruned(Exception):
    """What was picked cannot be completed to a state that the invariant allows."""


@frozen
class Size:
    """How much there is."""

    engines: int = 1
    versions: int = 2
    sessions: int = 1
    buckets: int = 1
    capacity: int = 2
    rich: bool = False  # also incarnations, leases, seqs and inventories of every kind


def build(pick: Pick, size: Size) -> Registry:
    """One state; raises Pruned where there is none."""
    config = Config(
        capacity=size.capacity,
        engine_slots=size.capacity + 1,
        max_version_lag=pick((0, 1)) if size.rich else 0,
        require_artifact=pick((True, False)) if size.rich else False,
        owner_lease=100,
        driver_lease=100,
    )
    r = Registry(config, EPOCH, NOW)
    r = _with_engines(pick, size, r)
    r = _with_versions(pick, size, r)
    r = _with_sessions(pick, size, r)
    r = _with_reclaims(pick, size, r)
    r = _with_repairs(pick, r)
    r = _with_residents(pick, size, r)
    return with_serving_states(r, NOW)


def every(size: Size) -> Iterator[Registry]:
    """All states of this size."""
    choices: list[tuple[int, int]] = []  # what was picked, of how many
    while True:
        place = -1

        def pick(options: Sequence[Any]) -> Any:
            nonlocal place
            place += 1
            if place == len(choices):
                choices.append((0, len(options)))
            return options[choices[place][0]]

        with suppress(Pruned):
            yield build(pick, size)
        del choices[place + 1 :]
        while choices and choices[-1][0] + 1 == choices[-1][1]:
            choices.pop()
        if not choices:
            return
        choices[-1] = (choices[-1][0] + 1, choices[-1][1])


def drawn(size: Size, rng: random.Random) -> Iterator[Registry]:
    """Random states of this size, without end."""
    while True:
        try:
            yield build(rng.choice, size)
        except Pruned:
            continue


def key_of(version: int) -> VersionKey:
    return VersionKey(EPOCH, version)


def _with_engines(pick: Pick, size: Size, r: Registry) -> Registry:
    engines = r.engines
    for number in range(size.engines):
        state = pick([None, *(state for state in EngineState if state is not EngineState.REPAIRING)])
        if state is not None:
            incarnation = pick((1, 2)) if size.rich else 2
            engines = engines.set(f"E{number}", Engine(f"E{number}", incarnation, state, NOW))
    return evolve(r, engines=engines)


def _with_versions(pick: Pick, size: Size, r: Registry) -> Registry:
    for number in range(1, size.versions + 1):
        state = pick([None, *VersionState])
        if state is not None:
            r = _with_version(pick, size, r, key_of(number), state)
    published = [v.key for v in r.versions.values() if v.state is VersionState.PUBLISHED]
    unresolved = [a.number for a in r.attempts.values() if a.state in (AttemptState.OPEN, AttemptState.ABORTED)]
    once = [v for v in r.versions.values() if ATTEMPT_OF[v.state] is AttemptState.COMMITTED]
    slots = tuple(sorted(v.key for v in r.versions.values() if v.state in HOLDS_A_SLOT))
    if len(published) > 1 or len(unresolved) > 1 or (once and not published) or len(slots) > size.capacity:
        raise Pruned
    revision = len(once) + (pick((0, 1)) if size.rich and once else 0)
    attempts = r.attempts
    for attempt in unresolved:
        seen = pick(range(revision + 1)) if size.rich else pick(sorted({revision, max(0, revision - 1)}))
        attempts = attempts.set(attempt, evolve(attempts[attempt], revision=seen))
    return evolve(
        r,
        attempts=attempts,
        slots=slots,
        highest=max((key.version_id for key in r.versions), default=-1),
        default=published[0] if published else None,
        default_revision=revision,
        unresolved=unresolved[0] if unresolved else 0,
    )


def _with_version(pick: Pick, size: Size, r: Registry, key: VersionKey, state: VersionState) -> Registry:
    if size.rich and pick((False, False, True)):  # an earlier attempt of it failed
        r = _with_attempt(pick, size, r, key, AttemptState.CLEAN)
    number, revoked = r.next_number, False
    if state in (VersionState.RETIRED, VersionState.RECLAIMING, VersionState.RECLAIMED):
        revoked = pick((False, True))
    once = ATTEMPT_OF[state] is AttemptState.COMMITTED
    version = Version(
        key,
        DIGEST,
        lora_name(key, DIGEST),
        state,
        number,
        NOW,
        published_revision=1 if once else 0,
        artifact=pick((True, False)),
        revoked=revoked,
    )
    r = evolve(r, versions=r.versions.set(key, version))
    return _with_attempt(pick, size, r, key, ATTEMPT_OF[state])


def _with_attempt(pick: Pick, size: Size, r: Registry, key: VersionKey, state: AttemptState) -> Registry:
    number, token = r.next_number, f"t{r.next_number}"
    buckets = pick(range(size.buckets + 1)) if state is AttemptState.OPEN else size.buckets
    authorized = pick(range(buckets + 1)) if state is AttemptState.OPEN else buckets
    targets = Map[str, Target]()
    for name, engine in sorted(r.engines.items()):
        if pick((True, False)):
            targets = targets.set(name, _target(pick, size, state, engine, buckets, authorized))
    if state is AttemptState.ABORTED and all(t.state is TargetState.CLEANED for t in targets.values()):
        raise Pruned
    attempt = Attempt(
        number,
        key,
        token,
        Plan(buckets, "f" * 64),
        state,
        0,
        pick((NOW, NOW + 100)) if size.rich else NOW + 100,
        targets,
        authorized,
        pick((False, True)) if state is AttemptState.OPEN else False,
    )
    receipts = r.receipts.set(("reserve", token), Reserved(key, number, lora_name(key, DIGEST), 0, ()))
    if state is AttemptState.COMMITTED:
        receipts = receipts.set(("commit", str(number)), Committed(key, number, 1, None))
    if state in (AttemptState.ABORTED, AttemptState.CLEAN):
        receipts = receipts.set(("abort", str(number)), Aborted(key, number, "no"))
    return evolve(
        r,
        attempts=r.attempts.set(number, attempt),
        tokens=r.tokens.set(token, number),
        receipts=receipts,
        next_number=number + 1,
    )


def _target(pick: Pick, size: Size, of: AttemptState, engine: Engine, buckets: int, authorized: int) -> Target:
    live = of in (AttemptState.OPEN, AttemptState.ABORTED)
    fixed = {AttemptState.COMMITTED: TargetState.READY, AttemptState.CLEAN: TargetState.CLEANED}
    state = pick(list(TargetState)) if live else fixed[of]
    if state is TargetState.READY:
        if authorized < buckets:
            raise Pruned
        done = buckets
    else:
        done = pick(range(authorized + 1)) if live and state is not TargetState.CLEANED else 0
    incarnation = pick(range(1, engine.incarnation + 1)) if live else engine.incarnation
    return Target(engine.engine, incarnation, state, done, pick((-1, 1)) if size.rich and live else 1)


def _with_sessions(pick: Pick, size: Size, r: Registry) -> Registry:
    owner = Owner("o1", OwnerState.LIVE, pick((NOW - 1, NOW + 100)) if size.rich else NOW - 1)
    state = pick([None, *OwnerState])
    if state is None:
        return r
    held = [None, *(v.key for v in r.versions.values() if v.state in SERVES or v.revoked)]
    for sequence in range(size.sessions):
        how = pick((None, "CLOSED", *(s for s in SessionState if s in _LIVE)))
        if how is None:
            owner = evolve(owner, gaps=(*owner.gaps, (sequence, sequence)), next_sequence=sequence + 1)
            continue
        owner = evolve(owner, next_sequence=sequence + 1)
        if how == "CLOSED":
            continue
        binding = pick(held) if how is SessionState.FINALIZING else None
        if how is SessionState.BOUND:
            if not held[1:]:
                raise Pruned
            binding = pick(held[1:])
        owner = _with_session(owner, sequence, how, binding)
    owner = evolve(owner, state=state, held=owner.held if state is OwnerState.LIVE else Map())
    versions = r.versions
    for key, holders in owner.held.items():
        if not versions[key].revoked:
            versions = versions.set(key, evolve(versions[key], session_refs=holders.count))
    return evolve(r, owners=Map({"o1": _joined(owner)}), versions=versions)


_LIVE = (SessionState.OPEN, SessionState.BOUND, SessionState.FINALIZING)


def _with_session(owner: Owner, sequence: int, state: SessionState, binding: VersionKey | None) -> Owner:
    if binding is None:
        return evolve(owner, sessions=owner.sessions.set(sequence, Session(state, "", NOW)))
    holders = owner.held.get(binding, Holders())
    session = Session(state, "", NOW, binding, holders.appended)
    held = owner.held.set(binding, holders.append(sequence, NOW))
    return evolve(owner, sessions=owner.sessions.set(sequence, session), held=held)


def _joined(owner: Owner) -> Owner:
    """Gaps as ranges, and none at the frontier."""
    unseen = [low for low, _ in owner.gaps]
    frontier = owner.next_sequence
    while frontier and frontier - 1 in unseen:
        frontier -= 1
        unseen.remove(frontier)
    gaps: list[tuple[int, int]] = []
    for sequence in unseen:
        if gaps and gaps[-1][1] == sequence - 1:
            gaps[-1] = (gaps[-1][0], sequence)
        else:
            gaps.append((sequence, sequence))
    return evolve(owner, gaps=tuple(gaps), next_sequence=frontier)


def _with_reclaims(pick: Pick, size: Size, r: Registry) -> Registry:
    for key, version in sorted(r.versions.items()):
        if version.state not in (VersionState.RECLAIMING, VersionState.RECLAIMED):
            continue
        open_ = version.state is VersionState.RECLAIMING
        unloads = Map[str, Unload]()
        for name, engine in sorted(r.engines.items()):
            if pick((True, False)):
                state = pick(list(UnloadState)) if open_ else UnloadState.UNLOADED
                incarnation = pick(range(1, engine.incarnation + 1)) if open_ else engine.incarnation
                unloads = unloads.set(name, Unload(name, incarnation, state))
        if open_ and all(unload.state is UnloadState.UNLOADED for unload in unloads.values()):
            raise Pruned
        name = f"r{key.version_id}"
        reclaim = Reclaim(name, key, ReclaimState.OPEN if open_ else ReclaimState.DONE, unloads, NOW)
        r = evolve(
            r,
            reclaims=r.reclaims.set(name, reclaim),
            versions=r.versions.set(key, evolve(version, reclaim_id=name)),
            receipts=r.receipts.set(("claim_reclaim", name), ReclaimOrdered(name, key, ())),
        )
    return r


def _with_repairs(pick: Pick, r: Registry) -> Registry:
    for name, engine in sorted(r.engines.items()):
        for key, version in sorted(r.versions.items()):
            may = version.state in SERVES and engine.state in (EngineState.UP, EngineState.LOST)
            state = pick([None, *(s for s in RepairState if may or s is not RepairState.ORDERED)])
            if state is None:
                continue
            number = r.next_number
            repair = Repair(number, key, name, engine.incarnation, state)
            listed = engine.repairs.set(key, number) if state is RepairState.ORDERED else engine.repairs
            engine = evolve(engine, repairs=listed)
            r = evolve(
                r,
                repairs=r.repairs.set(number, repair),
                engines=r.engines.set(name, engine),
                next_number=number + 1,
            )
    return r


def _with_residents(pick: Pick, size: Size, r: Registry) -> Registry:
    for name, engine in sorted(r.engines.items()):
        numbers = [(a.number, a.key) for a in r.attempts.values()] + [
            (p.number, p.key) for p in r.repairs.values() if p.engine == name
        ]
        proved, listed = engine.residents, frozenset[Resident]()
        for key, version in sorted(r.versions.items()):
            able = [Resident(key, DIGEST, number) for number, of in sorted(numbers) if of == key]
            resident = pick([None, *(one for one in able if _may_be_proved(r, engine, version, one.number))])
            proved = proved.set(key, resident) if resident is not None else proved
            if size.rich or key.version_id == 1:
                other = pick([None, *able])
                listed |= {other} if other is not None else set()
        seq = pick((1, 2)) if size.rich else 1
        inventory = Inventory(pick((0, seq)), listed)
        engine = evolve(engine, residents=proved, inventory=inventory, seq=seq)
        r = evolve(r, engines=r.engines.set(name, engine))
    return r


def _may_be_proved(r: Registry, engine: Engine, version: Version, number: int) -> bool:
    """Whether the invariant allows this proof of presence; what it forbids need not be drawn."""
    attempt, name = r.attempts.get(number), engine.engine
    target = attempt.targets.get(name) if attempt is not None else None
    if engine.state in (EngineState.DEAD, EngineState.REMOVED) or (attempt is not None and target is None):
        return False
    if version.state in (VersionState.LOADING, VersionState.ABORTED):
        return number == version.number and target is not None and target.state is not TargetState.CLEANED
    if version.state is VersionState.RECLAIMING:
        unload = r.reclaims[version.reclaim_id].unloads.get(name)
        return unload is not None and unload.state is not UnloadState.UNLOADED
    return version.state in SERVES
