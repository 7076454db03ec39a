"""What is on this engine: the status of a number, the inventory, and the engine's own listing (rules 15, 16)."""

from __future__ import annotations

from attrs import evolve

from lorafsm.engine.answers import AgentStep, Cleaned, Inventory, Noted, Pending, Unseen, refuse, with_fact
from lorafsm.engine.lifecycle import AdapterState, WorkState
from lorafsm.engine.load import fact_of
from lorafsm.engine.orders import Listed
from lorafsm.engine.records import Adapter, Agent, adapter_of
from lorafsm.orders import AskStatus, TakeInventory
from lorafsm.outcomes import Code

_OBSERVABLE = (AdapterState.PRESENT, AdapterState.LINGERING)


def ask_status(a: Agent, o: AskStatus) -> AgentStep:
    """The latest fact about a number; changes nothing."""
    work = a.works.get(o.number)
    adapter = adapter_of(a, o.number)
    if work is not None:
        return AgentStep(a, fact_of(a, work))
    if adapter is not None:
        return AgentStep(a, Pending(waits_for=f"{adapter.lora_name} is {adapter.state} with {adapter.refs} request(s)"))
    over = o.number <= a.fence or o.number in a.tombstones
    return AgentStep(a, Cleaned(number=o.number) if over else Unseen(number=o.number))


def take_inventory(a: Agent, o: TakeInventory) -> AgentStep:
    """All adapters that the engine holds, those on their way out included; changes nothing."""
    residents = frozenset(x.resident for x in a.adapters.values() if x.resident is not None)
    foreign = frozenset(x.lora_name for x in a.adapters.values() if x.resident is None)
    return AgentStep(a, Inventory(base_fingerprint=a.base_fingerprint, residents=residents, foreign=foreign))


def listed(a: Agent, e: Listed) -> AgentStep:
    """Take the engine's word for what is there: some may have vanished, and strangers may have come (S50, S52).

    What is being loaded or removed is left to the result that is on its way.
    """
    if e.seq != a.seq:
        return refuse(a, Code.STALE_SEQ, f"seq {a.seq} knows more than this listing; list again", field="seq")
    after = a
    for name, adapter in sorted(a.adapters.items()):
        if adapter.state in _OBSERVABLE and name not in e.names and not _is_probing(a, adapter):
            after = _without(after, adapter)
    loading = {w.lora_name for w in a.works.values() if w.state is WorkState.LOADING}
    for name in sorted(e.names - loading):
        if name not in a.adapters:
            after = evolve(after, adapters=after.adapters.set(name, Adapter(name, None)))
    return AgentStep(with_fact(after) if after is not a else a, Noted())


def _is_probing(a: Agent, adapter: Adapter) -> bool:
    work = a.works.get(adapter.number)
    return work is not None and work.state is WorkState.PROBING


def _without(a: Agent, adapter: Adapter) -> Agent:
    """The agent without an adapter that vanished: its requests hold nothing any more, its READY is void."""
    requests = a.requests
    for rid, name in a.requests.items():
        requests = requests.delete(rid) if name == adapter.lora_name else requests
    after = evolve(a, adapters=a.adapters.delete(adapter.lora_name), requests=requests)
    work = a.works.get(adapter.number)
    if work is None:
        return after
    failed = evolve(work, state=WorkState.FAILED, detail="no longer on the engine")
    return evolve(after, works=after.works.set(work.number, failed))
