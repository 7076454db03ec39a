"""What holds of every agent, and of all that it ever asked its executor to do (protocol section 4: I8, I12, I13)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from lorafsm.engine.actions import (
    AbortCommunicator,
    Action,
    CountRequests,
    DropStash,
    PhysicalUnload,
    PostReceive,
    StartLoad,
    TakeListing,
)
from lorafsm.engine.answers import AgentStep
from lorafsm.engine.lifecycle import RUNNING, AdapterState, WorkState
from lorafsm.engine.records import Agent, Work, adapter_of, used_slots

_NO_REQUESTS = (AdapterState.COUNTING, AdapterState.UNKNOWN, AdapterState.UNLOADING, AdapterState.LINGERING)
_LOADED = (WorkState.PROBING, WorkState.READY)


def agent_invariants(agent: Agent) -> tuple[str, ...]:
    """The invariants that this agent breaks; empty for every agent that `agent_step` can reach."""
    return (*_of_works(agent), *_of_adapters(agent), *_of_requests(agent))


def _of_works(a: Agent) -> list[str]:
    broken = []
    keys = Counter(w.key for w in a.works.values() if w.state is not WorkState.FAILED)
    for number, work in a.works.items():
        where = f"number {number} ({work.state})"
        if number != work.number or keys[work.key] > 1:
            broken.append(f"I8 {where}: one key has two live numbers")
        if work.plan is not None and number > a.fence:
            broken.append(f"I12 {where}: an attempt stands above the fence {a.fence}")
        if not work.doomed and (work.key in a.closed or number in a.tombstones):
            broken.append(f"I12 {where}: its key is closed or its number over, and it goes on")
        if work.doomed and work.state not in RUNNING:
            broken.append(f"I12 {where}: doomed, and nothing of it runs")
        if work.received + (work.state is WorkState.ARMED) > work.buckets:
            broken.append(f"I8 {where}: {work.received} of {work.buckets} buckets and one armed")
        if work.state in _LOADED and not _is_loaded(a, work):
            broken.append(f"I14 {where}: its adapter is not on the engine")
    return broken


def _is_loaded(a: Agent, work: Work) -> bool:
    adapter = adapter_of(a, work.number)
    return adapter is not None and adapter.lora_name == work.lora_name and adapter.state is AdapterState.PRESENT


def _of_adapters(a: Agent) -> list[str]:
    broken = []
    for name, adapter in a.adapters.items():
        resident = adapter.resident
        if name != adapter.lora_name or adapter.refs < 0:
            broken.append(f"I13 {name}: filed under another name, or {adapter.refs} refs")
        if adapter.state in _NO_REQUESTS and adapter.refs:
            broken.append(f"I13 {name}: {adapter.state} with {adapter.refs} requests in flight")
        if adapter.state is AdapterState.PRESENT and resident is not None and resident.key in a.closed:
            work = a.works.get(resident.number)
            if work is None or not work.doomed:
                broken.append(f"I13 {name}: its key is closed, and nothing removes it")
    owned = sum(x.resident is not None for x in a.adapters.values())
    if used_slots(a) - (len(a.adapters) - owned) > a.slots:
        broken.append(f"I5 {used_slots(a)} adapters held or promised in {a.slots} slots")
    return broken


def _of_requests(a: Agent) -> list[str]:
    open_rids = Counter(a.requests.values())
    broken = [f"I13 a request of {name}, which is not here" for name in open_rids if name not in a.adapters]
    for name, adapter in a.adapters.items():
        if adapter.refs != open_rids[name]:
            broken.append(f"I13 {name}: {adapter.refs} refs, {open_rids[name]} requests in flight")
    broken += [f"I12 request {rid} is sealed and in flight" for rid in a.requests if rid in a.sealed]
    return broken


def step_invariants(before: Agent, done: AgentStep) -> tuple[str, ...]:
    """What a single step breaks: what is over comes back, a seq runs backwards, a refusal changes something."""
    after = done.agent
    broken = []
    if not done.answer.ok and (after is not before or done.actions):
        broken.append("I12 a refusal changed something")
    if after.seq < before.seq or after.fence < before.fence or not before.tombstones <= after.tombstones:
        broken.append("I12 seq, fence or tombstones ran backwards")
    if any(after.closed.get(key) != reclaim_id for key, reclaim_id in before.closed.items()):
        broken.append("I12 a closed key was opened")
    facts = (set(before.adapters), {n: w.state for n, w in before.works.items() if w.state is WorkState.READY})
    told = (set(after.adapters), {n: w.state for n, w in after.works.items() if w.state is WorkState.READY})
    if facts != told and after.seq == before.seq:
        broken.append("I12 a new fact under an old seq")
    for action in done.actions:
        if isinstance(action, PhysicalUnload) and action.lora_name in before.requests.values():
            broken.append(f"I13 {action.lora_name} is unloaded with requests in flight")
    return tuple(broken)


def action_invariants(actions: Iterable[Action]) -> tuple[str, ...]:
    """What one incarnation asked for more than once: loads of a number, unloads of a load, collectives (I8).

    A reclaim has one key, a closed key gets no new load, and a load is unloaded once: so a reclaim_id has at most
    one physical unload on an incarnation.
    """
    asked: Counter[tuple[object, ...]] = Counter()
    for action in actions:
        match action:
            case StartLoad():
                asked["load", action.number] += 1
            case PostReceive():
                asked["collective", action.number, action.bucket] += 1
            case DropStash() | AbortCommunicator():
                asked[type(action).__name__, action.number] += 1
            case PhysicalUnload(number=0) | CountRequests() | TakeListing():
                continue
            case PhysicalUnload():
                asked["unload", action.number] += 1
            case _:
                continue
    return tuple(f"I8 {'/'.join(map(str, what))}: {times} times" for what, times in asked.items() if times > 1)
