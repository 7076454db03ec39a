"""Requests in flight: one ref each, taken once and released once, on exactly the version they name (RFC 4.2, 7.1)."""

from __future__ import annotations

from attrs import evolve

from lorafsm.engine.actions import Action, CountRequests
from lorafsm.engine.answers import Acquired, AgentCode, AgentStep, Released, Settled, Verdict, refuse
from lorafsm.engine.lifecycle import AdapterState, WorkState
from lorafsm.engine.orders import Acquire, Release, Settle
from lorafsm.engine.records import Adapter, Agent
from lorafsm.identity import fault_in_lora_name, parse_lora_name


def serves(a: Agent, adapter: Adapter) -> bool:
    """Whether requests of this adapter are admitted: proved, and not being removed (a removal ends the work first)."""
    work = a.works.get(adapter.number)
    return work is not None and work.state is WorkState.READY


def acquire(a: Agent, e: Acquire) -> AgentStep:
    """Admit a request of exactly this name, once per rid; a name that is not served is a version error (RFC 4.2)."""
    if e.rid in a.requests:
        return refuse(a, AgentCode.DUPLICATE_RID, f"request {e.rid} is in flight", field="rid")
    if e.rid in a.sealed:
        return refuse(a, AgentCode.RID_SEALED, f"request {e.rid} was declared absent; take a new rid", field="rid")
    adapter = a.adapters.get(e.lora_name)
    if adapter is None or not serves(a, adapter):
        closed = not fault_in_lora_name(e.lora_name) and parse_lora_name(e.lora_name).key in a.closed
        code = AgentCode.VERSION_CLOSED if closed else AgentCode.VERSION_MISSING
        return refuse(a, code, "exactly this version is not served here; nothing stands in for it", field="lora_name")
    after = a.with_requests(a.requests.set(e.rid, e.lora_name), adapter.with_refs(adapter.refs + 1))
    return AgentStep(after, Acquired(rid=e.rid, lora_name=e.lora_name, incarnation=a.incarnation, seq=a.seq))


def release(a: Agent, e: Release) -> AgentStep:
    """Drop the request's ref at its first terminal; later terminals of the same rid drop nothing (RFC 7.1)."""
    name = a.requests.get(e.rid)
    if name is None:
        return AgentStep(a, Released(rid=e.rid, released=False))
    adapter = a.adapters[name]
    left = adapter.with_refs(adapter.refs - 1)
    actions: tuple[Action, ...] = ()
    if left.state is AdapterState.DRAINING and not left.refs:
        left = evolve(left, state=AdapterState.COUNTING)
        actions = (CountRequests(name),)
    released = Released(rid=e.rid, released=True, incarnation=a.incarnation, seq=a.seq)
    return AgentStep(a.with_requests(a.requests.delete(e.rid), left), released, actions)


def settle(a: Agent, e: Settle) -> AgentStep:
    """Running, or absent and from now on sealed, in one step: a late original cannot slip in between (rule 10)."""
    if e.rid in a.requests:
        return AgentStep(a, Settled(rid=e.rid, verdict=Verdict.RUNNING))
    absent = Settled(rid=e.rid, verdict=Verdict.ABSENT)
    if e.rid in a.sealed or e.key in a.closed:
        return AgentStep(a, absent)
    return AgentStep(evolve(a, sealed=a.sealed.set(e.rid, e.key)), absent)
