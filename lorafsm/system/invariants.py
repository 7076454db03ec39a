"""What must hold of the whole, measured against what is physically true (protocol section 4).

The registry's and the agent's own invariants are checked beside these; here stands what only both sides together,
or an engine's memory, can show: I6, I7, I8, I11, I13, I14, and I12 of late messages.
"""

from __future__ import annotations

from collections.abc import Iterator

from lorafsm import events as ev
from lorafsm.dispatch import Guard
from lorafsm.engine.lifecycle import HOLDS_A_FREE_SLOT
from lorafsm.events import Event
from lorafsm.identity import VersionKey
from lorafsm.lifecycle import SERVES, AttemptState, EngineState, TargetState, VersionState
from lorafsm.records import Engine, Registry, Version
from lorafsm.system.records import Process

_HELD = frozenset({VersionState.LOADING, *SERVES})
_GONE = frozenset({VersionState.RECLAIMED, VersionState.FAILED_CLEAN})


def of_engine(r: Registry, p: Process) -> tuple[str, ...]:
    """What of one engine is not as the registry and its agent say."""
    return tuple(sentence for part in (_proofs, _absence, _late, _requests, _slots, _memory) for sentence in part(r, p))


def _proofs(r: Registry, p: Process) -> Iterator[str]:
    """I7, RFC 3.3: what is proved under the live incarnation is physically there, with that content."""
    engine = r.engines[p.agent.engine]
    if engine.incarnation != p.agent.incarnation or engine.state in (EngineState.DEAD, EngineState.REMOVED):
        return
    for key, resident in engine.residents.items():
        version = r.versions[key]
        if version.state in _HELD and not _is_there(p, version, resident.number):
            yield (
                f"I7: {engine.engine} is proved to hold {key} ({version.state}) by number {resident.number}; "
                f"physically it holds {_listing(p)}"
            )
    attempt = r.attempts.get(r.unresolved)
    target = attempt.targets.get(engine.engine) if attempt is not None else None
    if attempt is None or target is None or attempt.state is not AttemptState.OPEN:
        return
    counts = target.state is TargetState.READY and target.incarnation == p.agent.incarnation
    if counts and not _is_there(p, r.versions[attempt.key], attempt.number):
        yield f"RFC 3.3: {engine.engine} counts as READY for {attempt.key}; physically it holds {_listing(p)}"


def _is_there(p: Process, version: Version, number: int) -> bool:
    return any((x.lora_name, x.digest, x.number) == (version.lora_name, version.digest, number) for x in p.loaded)


def _listing(p: Process) -> str:
    return (
        ", ".join(f"{x.lora_name} with content {x.digest[:4]} by number {x.number}" for x in sorted(p.loaded))
        or "nothing"
    )


def _absence(r: Registry, p: Process) -> Iterator[str]:
    """I11: RECLAIMED and FAILED_CLEAN mean physically absent, or listed as a stray."""
    engine = r.engines[p.agent.engine]
    unexplained = {x.lora_name for x in p.loaded} - {stray.lora_name for stray in engine.strays}
    for version in r.versions.values():
        if version.state in _GONE and version.lora_name in unexplained:
            yield f"I11: {version.key} is {version.state} and physically on {engine.engine}"


def _late(r: Registry, p: Process) -> Iterator[str]:
    """I11: an engine keeps and promises nothing for an attempt that is CLEAN or a version that is RECLAIMED."""
    for number, work in p.agent.works.items():
        attempt = r.attempts.get(number)
        if attempt is not None and attempt.state is AttemptState.CLEAN:
            yield f"I11: attempt {number} is CLEAN and {p.agent.engine} is {work.state} for it"
        if r.versions[work.key].state is VersionState.RECLAIMED:
            yield f"I11: {work.key} is RECLAIMED and {p.agent.engine} is {work.state} for it"


def _requests(r: Registry, p: Process) -> Iterator[str]:
    """I13, I14: what a running request runs on is still there, and is its session's version."""
    content = {x.lora_name: x.digest for x in p.loaded}
    for served in p.served:
        if served.lora_name not in content:
            yield f"I13: request {served.rid} runs on {p.agent.engine}, where {served.lora_name} is not any more"
        elif content[served.lora_name] != r.versions[served.key].digest:
            yield f"I14: request {served.rid} of {served.key} runs on other content on {p.agent.engine}"


def _slots(r: Registry, p: Process) -> Iterator[str]:
    """Rule 6: what is loaded and promised fits the engine's adapter slots, strays included."""
    promised = sum(work.state in HOLDS_A_FREE_SLOT for work in p.agent.works.values())
    if len(p.loaded) + promised > r.config.engine_slots:
        yield f"rule 6: {p.agent.engine} holds {len(p.loaded)} adapters and promised {promised} slots"


def _memory(r: Registry, p: Process) -> Iterator[str]:
    """The agent knows what is there: the same names, loaded by the same numbers."""
    known = {(x.lora_name, x.number) for x in p.agent.adapters.values()}
    there = {(x.lora_name, x.number) for x in p.loaded}
    if known != there:
        yield f"section 2: the agent of {p.agent.engine} knows {sorted(known)}, physically there are {sorted(there)}"


def of_registry(r: Registry) -> tuple[str, ...]:
    """What only a system asks of its registry: a token opened one attempt (rule 1)."""
    return tuple(
        f"I12: attempts {a.number} and {r.tokens[a.token]} have one token"
        for a in r.attempts.values()
        if r.tokens.get(a.token, a.number) != a.number
    )


def of_owner(r: Registry, guard: Guard) -> tuple[str, ...]:
    """I3, I7: the owner's copy of a binding is the registry's, and a live one is of a version that serves."""
    broken = []
    owner = r.owners.get(guard.owner)
    for sequence, known in guard.sessions.items():
        live = owner.sessions.get(sequence) if owner is not None else None
        if known.binding is None or live is None or guard.lost:
            continue
        if known.binding.key != live.binding:
            broken.append(f"I3: session {sequence} is bound to {live.binding}, its owner says {known.binding.key}")
        version = r.versions[known.binding.key]
        if version.state not in SERVES:
            broken.append(f"I7: session {sequence} is live and bound to {version.key}, which is {version.state}")
    return tuple(broken)


def stale_changes(before: Registry, event: Event, after: Registry) -> tuple[str, ...]:
    """I12: a message with an old number, incarnation, reclaim or seq changes nothing; asked of steps that did."""
    engine = before.engines.get(getattr(event, "engine", ""))
    if engine is None or isinstance(event, ev.EngineJoin | ev.EngineRemove | ev.OrderRepair):
        return ()
    incarnation = getattr(event, "incarnation", engine.incarnation)
    if incarnation < engine.incarnation:
        return (f"I12: {event.name} of dead incarnation {incarnation} of {engine.engine} changed something",)
    if isinstance(event, ev.EngineUp) and incarnation == engine.incarnation and event.seq < _known_seq(engine):
        return (f"I12: an inventory of seq {event.seq} overruled seq {_known_seq(engine)} of {engine.engine}",)
    attempt = before.attempts.get(getattr(event, "number", 0))
    target = attempt.targets.get(engine.engine) if attempt is not None else None
    if attempt is None or target is None:
        return ()
    if attempt.state in (AttemptState.COMMITTED, AttemptState.CLEAN):
        return (f"I12: {event.name} of attempt {attempt.number}, which is {attempt.state}, changed something",)
    if getattr(event, "seq", target.seq) < target.seq:
        return (f"I12: {event.name} of seq {event.seq} overruled seq {target.seq} of {engine.engine}",)  # type: ignore[union-attr]
    return ()


def _known_seq(engine: Engine) -> int:
    return max(engine.seq, engine.inventory.seq)


def commit_on(r: Registry, key: VersionKey, processes: tuple[Process, ...]) -> tuple[str, ...]:
    """RFC 3.3: every target of a commit holds the version, unless its process ended unseen."""
    version = r.versions[key]
    attempt = r.attempts[version.number]
    return tuple(
        f"RFC 3.3: {key} is committed and {p.agent.engine} physically holds {_listing(p)}"
        for p in processes
        if (target := attempt.targets.get(p.agent.engine)) is not None
        and target.incarnation == p.agent.incarnation
        and not _is_there(p, version, attempt.number)
    )
