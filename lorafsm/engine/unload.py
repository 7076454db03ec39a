"""From something to nothing: cleanup of an attempt, unload of a version, removal of a stray (rules 4, 12, 13, 15).

All three say what must not be there; they join the one removal that each adapter can have:
unregister, wait for requests, read the engine's own count, unload once, observe.
"""

from __future__ import annotations

from attrs import evolve

from lorafsm.engine.actions import (
    AbortCommunicator,
    Action,
    AskQuarantine,
    CountRequests,
    DropStash,
    PhysicalUnload,
    TakeListing,
    Unregister,
)
from lorafsm.engine.answers import (
    AgentCode,
    AgentStep,
    Answer,
    Cleaned,
    Noted,
    Pending,
    StrayGone,
    Unknown,
    Unloaded,
    refuse,
    with_fact,
)
from lorafsm.engine.lifecycle import RUNNING, AdapterState, WorkState
from lorafsm.engine.orders import Counted, UnloadFinished, Unregistered
from lorafsm.engine.records import Adapter, Agent, adapter_of
from lorafsm.orders import Cleanup, Unload, UnloadStray
from lorafsm.outcomes import Code
from lorafsm.records import Stray


def cleanup(a: Agent, o: Cleanup) -> AgentStep:
    """Tombstone the attempt's number, wait for what it runs, remove only what it loaded (rule 4)."""
    work = a.works.get(o.number)
    if work is not None and work.plan is None:
        return refuse(a, Code.OPERATION_CONFLICT, f"number {o.number} is a repair's", field="number")
    if work is not None and work.key != o.key:
        return refuse(a, Code.OPERATION_CONFLICT, f"number {o.number} was begun for {work.key}", field="number")
    fenced = evolve(with_fact(a), fence=o.number) if o.number > a.fence else a
    after, actions = _with_number_going(fenced, o.number)
    return AgentStep(after, _rest(a, after, o) or Cleaned(number=o.number), actions)


def unload(a: Agent, o: Unload) -> AgentStep:
    """Close the key on this incarnation for ever, then remove the version, whichever number loaded it (rule 13)."""
    if a.closed.get(o.key, o.reclaim_id) != o.reclaim_id:
        return refuse(a, Code.OPERATION_CONFLICT, f"{o.key} is reclaimed under another id", field="reclaim_id")
    after = a
    if o.key not in a.closed:
        if o.reclaim_id in a.closed.values():
            return refuse(a, Code.OPERATION_CONFLICT, "this id reclaims another version", field="reclaim_id")
        # A late original of a closed key is refused by the key; its seal is not needed any more.
        unsealed = a.sealed
        for rid, key in a.sealed.items():
            unsealed = unsealed.delete(rid) if key == o.key else unsealed
        after = evolve(with_fact(a), closed=a.closed.set(o.key, o.reclaim_id), sealed=unsealed)
    actions: tuple[Action, ...] = ()
    for number in _numbers_of(after, o):
        after, more = _with_number_going(after, number)
        actions += more
    if _stranger(after, o.lora_name) is not None:
        after, more = with_adapter_going(after, o.lora_name)
        actions += more
    return AgentStep(after, _rest(a, after, o) or Unloaded(reclaim_id=o.reclaim_id, key=o.key), actions)


def unload_stray(a: Agent, o: UnloadStray) -> AgentStep:
    """Remove what should not be there, under one operation key; its number is over (rule 15)."""
    stray = Stray(o.lora_name, o.number)
    work = a.works.get(o.number)
    if a.strays.get(o.operation_key, stray) != stray:
        return refuse(a, Code.OPERATION_CONFLICT, "this key removes another stray", field="operation_key")
    if work is not None and work.lora_name != o.lora_name:
        return refuse(a, Code.OPERATION_CONFLICT, f"number {o.number} is {work.lora_name}'s", field="number")
    after = a
    if o.operation_key not in a.strays:
        over = a.tombstones | {o.number} if o.number else a.tombstones
        after = evolve(with_fact(a), strays=a.strays.set(o.operation_key, stray), tombstones=over)
    actions: tuple[Action, ...] = ()
    if o.number:
        after, actions = _with_number_going(after, o.number)
    elif _stranger(a, o.lora_name) is not None:
        after, actions = with_adapter_going(after, o.lora_name)
    gone = StrayGone(operation_key=o.operation_key, lora_name=o.lora_name)
    return AgentStep(after, _rest(a, after, o) or gone, actions)


def with_adapter_going(a: Agent, name: str) -> tuple[Agent, tuple[Action, ...]]:
    """Start the removal of an adapter; asked again, look again where a look may help.  Unloads nothing twice."""
    adapter = a.adapters.get(name)
    if adapter is None:
        return a, ()
    if adapter.state is AdapterState.PRESENT:
        return _with_adapter(a, adapter, AdapterState.UNREGISTERING), (Unregister(name),)
    if adapter.state is AdapterState.UNKNOWN or (adapter.state is AdapterState.DRAINING and not adapter.refs):
        return _with_adapter(a, adapter, AdapterState.COUNTING), (CountRequests(name),)
    return a, (TakeListing(),) if adapter.state is AdapterState.LINGERING else ()


def unregistered(a: Agent, e: Unregistered) -> AgentStep:
    """No request can come any more; wait for those in flight."""
    adapter = a.adapters.get(e.lora_name)
    if adapter is None or adapter.state is not AdapterState.UNREGISTERING:
        return refuse(a, AgentCode.UNEXPECTED_RESULT, f"{e.lora_name} is not being unregistered", field="lora_name")
    if adapter.refs:
        return AgentStep(_with_adapter(a, adapter, AdapterState.DRAINING), Noted())
    return AgentStep(_with_adapter(a, adapter, AdapterState.COUNTING), Noted(), (CountRequests(e.lora_name),))


def counted(a: Agent, e: Counted) -> AgentStep:
    """Unload at zero only; a leak keeps it waiting; a negative or unreadable count is UNKNOWN, not zero (rule 13)."""
    adapter = a.adapters.get(e.lora_name)
    if adapter is None or adapter.state is not AdapterState.COUNTING:
        return refuse(a, AgentCode.UNEXPECTED_RESULT, f"{e.lora_name} is not being counted", field="lora_name")
    if e.count is None or e.count < 0:
        reason = f"request count of {e.lora_name} is {'unreadable' if e.count is None else e.count}"
        unknown = _with_adapter(a, adapter, AdapterState.UNKNOWN)
        return AgentStep(unknown, Noted(), (AskQuarantine(a.incarnation, reason),))
    if e.count:
        return AgentStep(_with_adapter(a, adapter, AdapterState.DRAINING), Noted())
    unloading = _with_adapter(a, adapter, AdapterState.UNLOADING)
    return AgentStep(unloading, Noted(), (PhysicalUnload(e.lora_name, adapter.number),))


def unload_finished(a: Agent, e: UnloadFinished) -> AgentStep:
    """Observed absent: gone.  Still there: unknown until a listing without it, or the end of this incarnation."""
    adapter = a.adapters.get(e.lora_name)
    if adapter is None or adapter.state is not AdapterState.UNLOADING:
        return refuse(a, AgentCode.UNEXPECTED_RESULT, f"{e.lora_name} is not being unloaded", field="lora_name")
    if e.absent:
        return AgentStep(evolve(with_fact(a), adapters=a.adapters.delete(e.lora_name)), Noted())
    return AgentStep(_with_adapter(a, adapter, AdapterState.LINGERING), Noted())


def _with_adapter(a: Agent, adapter: Adapter, state: AdapterState) -> Agent:
    return evolve(a, adapters=a.adapters.set(adapter.lora_name, evolve(adapter, state=state)))


def _with_number_going(a: Agent, number: int) -> tuple[Agent, tuple[Action, ...]]:
    """Doom what a number runs, else forget its work and remove what it loaded, never another number's (rule 4)."""
    work = a.works.get(number)
    actions: tuple[Action, ...] = ()
    if work is not None and work.state in RUNNING:
        if work.doomed:
            return a, ()
        after = evolve(a, works=a.works.set(number, evolve(work, doomed=True)))
        return after, (AbortCommunicator(number),) if work.state is WorkState.ARMED else ()
    if work is not None:
        a = evolve(with_fact(a), works=a.works.delete(number))
        actions = (DropStash(number),) if work.buckets and work.state is WorkState.PREPARED else ()
    adapter = adapter_of(a, number)
    if adapter is None:
        return a, actions
    return with_adapter_going(a, adapter.lora_name)  # what it loaded from a stash, it dropped then


def _stranger(a: Agent, lora_name: str) -> Adapter | None:
    """The adapter of this name, if somebody else put it there."""
    adapter = a.adapters.get(lora_name)
    return adapter if adapter is not None and adapter.resident is None else None


def _numbers_of(a: Agent, o: Cleanup | Unload | UnloadStray) -> tuple[int, ...]:
    """The numbers whose works or adapters an order wants gone."""
    if not isinstance(o, Unload):
        return (o.number,) if o.number else ()
    works = {w.number for w in a.works.values() if w.key == o.key}
    loaded = {x.number for x in a.adapters.values() if x.resident is not None and x.resident.key == o.key}
    return tuple(sorted(works | loaded))


def _rest(before: Agent, a: Agent, o: Cleanup | Unload | UnloadStray) -> Answer | None:
    """What is still there of what an order wants gone, or None."""
    numbers = _numbers_of(a, o)
    if any(number in a.works for number in numbers):
        return Pending(waits_for="what it runs here to end")
    found = [adapter_of(a, number) for number in numbers]
    if isinstance(o, Unload) or not o.number:  # number 0 or a reclaim: whoever put it there
        found.append(_stranger(a, o.lora_name))
    adapter = found[0] if found else None  # what a reclaim's numbers loaded is there; a stranger comes last
    if adapter is None:
        return None
    was = before.adapters.get(adapter.lora_name, adapter).state
    if was in (AdapterState.UNKNOWN, AdapterState.LINGERING):
        number = o.number if isinstance(o, Cleanup) else 0
        reclaim_id = o.reclaim_id if isinstance(o, Unload) else ""
        return Unknown(reason=f"{adapter.lora_name} is {was}", number=number, reclaim_id=reclaim_id)
    return Pending(waits_for=f"{adapter.lora_name} is {adapter.state} with {adapter.refs} request(s) in flight")
