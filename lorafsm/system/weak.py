"""Tempting mistakes: each replaces one guard or transition of the real machines, and must be caught in a small box.

The replacement is built from the real transition: it shows the real one a registry or an agent in which the guard
finds nothing to object to, and puts back what it hid.  The real code is not touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve, frozen

from lorafsm import events as ev
from lorafsm import orders, publisher, reclaimer, registry
from lorafsm.engine import AgentStep, agent_step
from lorafsm.engine import orders as inputs
from lorafsm.engine import step as engine_step
from lorafsm.engine.answers import AgentCode, Refused
from lorafsm.engine.orders import Input
from lorafsm.engine.records import Agent
from lorafsm.events import Event
from lorafsm.lifecycle import TargetState, UnloadState, VersionState
from lorafsm.outcomes import Code, Refusal
from lorafsm.records import Config, Registry
from lorafsm.system.box import SystemBox
from lorafsm.system.rules import Rules


@frozen(kw_only=True)
class Weak:
    """A mistake, the rule that forbids it, the invariant that it must break, and a box in which it does."""

    says: str  # what is weakened
    rule: str
    breaks: str  # how the sentence of the broken invariant starts
    box: SystemBox
    rules: Rules


def _claims_by_window(r: Registry, e: Event) -> registry.Step:
    version = r.versions.get(e.key) if isinstance(e, ev.ClaimReclaim) else None
    if version is None or not version.session_refs:
        return registry.step(r, e)
    done = registry.step(evolve(r, versions=r.versions.set(version.key, evolve(version, session_refs=0))), e)
    if not done.outcome.ok:
        return registry.Step(r, done.outcome)
    claimed = evolve(done.registry.versions[version.key], session_refs=version.session_refs)
    return evolve(done, registry=evolve(done.registry, versions=done.registry.versions.set(version.key, claimed)))


def _orders_by_window(r: Registry, now: int) -> tuple[Any, ...]:
    unheld = r.versions
    for key, version in r.versions.items():
        if version.state is VersionState.RETIRED:
            unheld = unheld.set(key, evolve(version, session_refs=0))
    return reclaimer.next_orders(evolve(r, versions=unheld), now)


def _one_name_for_all(r: Registry, e: Event) -> registry.Step:
    done = registry.step(r, e)
    if not isinstance(e, ev.Reserve) or done.registry is r:
        return done
    name = min(done.registry.versions.items())[1].lora_name
    version = evolve(done.registry.versions[e.key], lora_name=name)
    return evolve(done, registry=evolve(done.registry, versions=done.registry.versions.set(e.key, version)))


def _swaps_content(agent: Agent, item: Input) -> AgentStep:
    """Names need not follow from contents, and a load replaces what is there under its name."""
    if not isinstance(item, orders.Begin | orders.End | inputs.LoadFinished):
        return agent_step(agent, item)
    work = agent.works.get(item.number)
    name = (
        work.lora_name if isinstance(item, inputs.LoadFinished) and work is not None else getattr(item, "lora_name", "")
    )
    old = agent.adapters.get(name)
    hidden = agent if old is None else evolve(agent, adapters=agent.adapters.delete(name))
    done = engine_step._TRANSITIONS[type(item)](hidden, item)
    after = done.agent
    if old is not None:
        new = after.adapters.get(name)
        after = evolve(after, adapters=after.adapters.set(name, old if new is None else evolve(new, refs=old.refs)))
    return AgentStep(after, evolve(done.answer, incarnation=agent.incarnation, seq=after.seq), done.actions)


def _unknown_for_ever(r: Registry, e: Event) -> registry.Step:
    engine = getattr(e, "engine", "")
    attempt = r.attempts.get(getattr(e, "number", 0))
    target = attempt.targets.get(engine) if attempt is not None else None
    reclaim = r.reclaims.get(getattr(e, "reclaim_id", ""))
    unload = reclaim.unloads.get(engine) if reclaim is not None else None
    if (target is not None and target.state is TargetState.UNKNOWN) or (
        unload is not None and unload.state is UnloadState.UNKNOWN
    ):
        return registry.Step(r, Refusal(Code.OUT_OF_ORDER, "UNKNOWN is fatal"))
    return registry.step(r, e)


def _receipts_without_id(r: Registry, e: Event) -> registry.Step:
    done = registry.step(r, e)
    if not isinstance(e, ev.ConfirmReclaim) or not done.outcome.ok:
        return done
    for reclaim_id in sorted(r.reclaims):
        more = registry.step(done.registry, evolve(e, reclaim_id=reclaim_id))
        done = more if more.outcome.ok else done
    return done


def _commits_on_one_ready(r: Registry, e: Event) -> registry.Step:
    done = registry.step(r, e)
    attempt = r.attempts.get(r.unresolved)
    if not isinstance(e, ev.Commit) or done.outcome.ok or attempt is None:
        return done
    ready = [t for t in attempt.targets.values() if t.state is TargetState.READY]
    targets = attempt.targets
    for engine in targets if ready else ():
        targets = targets.set(engine, evolve(targets[engine], state=TargetState.READY))
    done = registry.step(evolve(r, attempts=r.attempts.set(attempt.number, evolve(attempt, targets=targets))), e)
    if not done.outcome.ok:
        return registry.Step(r, done.outcome)
    committed = evolve(done.registry.attempts[attempt.number], targets=attempt.targets)
    return evolve(done, registry=evolve(done.registry, attempts=done.registry.attempts.set(attempt.number, committed)))


def _decides_on_one_ready(r: Registry, token: str, now: int) -> tuple[Any, ...]:
    wanted = publisher.next_orders(r, token, now)
    attempt = r.attempts.get(r.unresolved)
    if attempt is None or attempt.token != token or any(isinstance(item, ev.Commit | ev.Abort) for item in wanted):
        return wanted
    if any(t.state is TargetState.READY for t in attempt.targets.values()):
        return (ev.Commit(key=attempt.key, token=token, expected_revision=attempt.revision, now=now),)
    return wanted


def _forgets_closed_sessions(r: Registry, e: Event) -> registry.Step:
    """Without its tombstone a closed sequence is one of which nothing was ever said."""
    done = registry.step(r, e)
    if not isinstance(e, ev.BindFirst) or done.outcome.ok or done.outcome.code != Code.SESSION_CLOSED:
        return done
    owner, sequence = r.owners[e.session.owner], e.session.sequence
    if sequence in owner.sessions:
        return done
    forgotten = evolve(owner, gaps=tuple(sorted((*owner.gaps, (sequence, sequence)))))
    return registry.step(evolve(r, owners=r.owners.set(owner.owner, forgotten)), e)


def _begins_after_cleanup(agent: Agent, item: Input) -> AgentStep:
    done = agent_step(agent, item)
    if not isinstance(item, orders.Begin) or not _is_refused(done, Code.STALE_ATTEMPT):
        return done
    return agent_step(evolve(agent, fence=item.number - 1), item)


def _reserves_again(r: Registry, e: Event) -> registry.Step:
    if isinstance(e, ev.Reserve) and e.token in r.tokens:
        done = registry.step(evolve(r, tokens=r.tokens.delete(e.token)), e)
        return done if done.registry.next_number > r.next_number else registry.Step(r, done.outcome)
    return registry.step(r, e)


def _cleans_up_by_name(agent: Agent, item: Input) -> AgentStep:
    done = agent_step(agent, item)
    if not isinstance(item, orders.Cleanup) or not done.answer.ok:
        return done
    there = agent.adapters.get(item.lora_name)
    if there is None or there.number == item.number or not there.number:
        return done
    return agent_step(agent, evolve(item, number=there.number))


def _loads_closed_keys(agent: Agent, item: Input) -> AgentStep:
    done = agent_step(agent, item)
    if not isinstance(item, orders.Load) or not _is_refused(done, AgentCode.VERSION_CLOSED):
        return done
    opened = agent_step(evolve(agent, closed=agent.closed.delete(item.key)), item)
    return evolve(opened, agent=evolve(opened.agent, closed=agent.closed))


def _believes_old_inventories(r: Registry, e: Event) -> registry.Step:
    engine = r.engines.get(e.engine) if isinstance(e, ev.EngineUp) else None
    if engine is None or not isinstance(e, ev.EngineUp) or e.incarnation != engine.incarnation:
        return registry.step(r, e)
    unread = evolve(engine, seq=0, inventory=evolve(engine.inventory, seq=0))
    done = registry.step(evolve(r, engines=r.engines.set(e.engine, unread)), e)
    return done if done.outcome.ok else registry.Step(r, done.outcome)


def _is_refused(done: AgentStep, code: Code | AgentCode) -> bool:
    return isinstance(done.answer, Refused) and done.answer.code == code


def _box(**words: Any) -> SystemBox:
    return SystemBox(**words)


_THREE = Config(base_fingerprint="base", repair_backoff=0, capacity=3, engine_slots=4)

WEAK: Mapping[str, Weak] = {
    "window_retention": Weak(
        says="the reclaimer takes every version that is not the default, held by sessions or not",
        rule="rule 11: only RETIRED with session_refs = 0",
        breaks="I4",
        box=_box(versions=2, published=1, sessions=1, bound=1),
        rules=Rules(registry=_claims_by_window, reclaimer=_orders_by_window),
    ),
    "same_name_swap": Weak(
        says="all versions are loaded under one name; a new one replaces what is there",
        rule="RFC 3.1: immutable names; rule 4: never another number's resident of the same name",
        breaks="I14",
        box=_box(versions=2, published=1, sessions=1, bound=1),
        rules=Rules(registry=_one_name_for_all, agent=_swaps_content),
    ),
    "any_unknown_is_fatal": Weak(
        says="nothing that an engine says later takes it out of UNKNOWN",
        rule="rule 16: UNKNOWN leaves by a query, a confirmed repeat, or a dead incarnation",
        breaks="liveness",
        box=_box(versions=1, budgets={"silence": 1}),
        rules=Rules(registry=_unknown_for_ever),
    ),
    "reclaim_without_id": Weak(
        says="an engine's receipt confirms every reclaim that waits for that engine",
        rule="rule 12: confirm_reclaim names its reclaim_id",
        breaks="I11",
        box=_box(versions=3, published=3, config=_THREE),
        rules=Rules(registry=_receipts_without_id),
    ),
    "commit_on_one_ready": Weak(
        says="one READY is enough to commit",
        rule="rule 3: NOT_READY names the engines",
        breaks="RFC 3.3",
        box=_box(engines=2),
        rules=Rules(registry=_commits_on_one_ready, publisher=_decides_on_one_ready),
    ),
    "ready_without_digest": Weak(
        says="READY says that the name is served; what was loaded is not compared with the digest",
        rule="rule 2: a name alone, or an empty digest, is a mismatch",
        breaks="RFC 3.3",
        box=_box(budgets={"corrupt": 1}),
        rules=Rules(verifies_content=False),
    ),
    "evicted_tombstones": Weak(
        says="a closed session is forgotten, and a late copy of its first bind opens it again",
        rule="rule 8: CLOSED is for ever, and no tombstone is ever evicted",
        breaks="I10",
        box=_box(published=1, sessions=1, bound=1, budgets={"bind": 1}),
        rules=Rules(registry=_forgets_closed_sessions),
    ),
    "begin_accepted_after_cleanup": Weak(
        says="the agent accepts a begin whose number is over",
        rule="rule 4: late begin of an old attempt creates nothing",
        breaks="I11",
        box=_box(budgets={"deadline": 1}),
        rules=Rules(agent=_begins_after_cleanup),
    ),
    "broadcast_before_arming": Weak(
        says="the driver broadcasts without waiting until every target has armed the bucket",
        rule="rule 6: when all are armed, authorize_bucket is journaled, once, before the broadcast",
        breaks="rule 6",
        box=_box(engines=2, buckets=1),
        rules=Rules(waits_for_armed=False),
    ),
    "repeated_reserve_opens_a_second_attempt": Weak(
        says="a late copy of a reserve opens a new attempt of a failed version",
        rule="rule 1: a token seen in this epoch gets its stored receipt",
        breaks="I12",
        box=_box(budgets={"deadline": 1, "reserve": 1}),
        rules=Rules(registry=_reserves_again),
    ),
    "cleanup_by_name": Weak(
        says="a cleanup removes what has the name, whichever number loaded it",
        rule="rule 4: unloads only what that number loaded",
        breaks="I7",
        box=_box(budgets={"deadline": 1, "duplicate": 1, "retry": 1}),
        rules=Rules(agent=_cleans_up_by_name),
    ),
    "repair_load_overtakes_unload": Weak(
        says="the agent loads a key that was closed on this incarnation",
        rule="rule 13: a later generate, begin, end or repair is VERSION_CLOSED",
        breaks="I12",
        box=_box(versions=2, published=1, sessions=1, bound=1, budgets={"crash": 1}),
        rules=Rules(agent=_loads_closed_keys),
    ),
    "old_inventory": Weak(
        says="an inventory counts, however old it is",
        rule="section 2: where an answer and an inventory differ, the higher seq decides",
        breaks="I12",
        box=_box(budgets={"inventory": 1}),
        rules=Rules(registry=_believes_old_inventories),
    ),
}
"""The mistakes of the protocol's list, by name."""
