"""`agent_step(agent, input)`: the one function through which an engine's memory changes (protocol section 2).

Total and deterministic: any input, however malformed, gets an answer; a refusal changes nothing and asks for
nothing; the agent that went in is never mutated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import evolve

from lorafsm import orders
from lorafsm.engine import inspect, load, requests, unload
from lorafsm.engine import orders as inputs
from lorafsm.engine.answers import AgentStep, Refused, refuse
from lorafsm.engine.orders import INPUTS, ORDERS, Input, fault_in
from lorafsm.engine.records import Agent
from lorafsm.identity import lora_name
from lorafsm.outcomes import Code

_TRANSITIONS: Mapping[type[Any], Callable[[Agent, Any], AgentStep]] = {
    orders.Begin: load.begin,
    inputs.ArmBucket: load.arm_bucket,
    inputs.ReceiveBucket: load.receive_bucket,
    orders.End: load.end,
    orders.Cleanup: unload.cleanup,
    orders.AskStatus: inspect.ask_status,
    orders.Load: load.load,
    orders.Unload: unload.unload,
    orders.UnloadStray: unload.unload_stray,
    orders.TakeInventory: inspect.take_inventory,
    inputs.Acquire: requests.acquire,
    inputs.Release: requests.release,
    inputs.Settle: requests.settle,
    inputs.BucketFinished: load.bucket_finished,
    inputs.LoadFinished: load.load_finished,
    inputs.ProbeFinished: load.probe_finished,
    inputs.Unregistered: unload.unregistered,
    inputs.Counted: unload.counted,
    inputs.UnloadFinished: unload.unload_finished,
    inputs.Listed: inspect.listed,
}
assert set(_TRANSITIONS) == set(INPUTS)

_NAMING = (orders.Begin, orders.End, orders.Cleanup, orders.Load, orders.Unload)


def agent_step(agent: Agent, item: Input) -> AgentStep:
    """The agent after an order, a request or a result, its answer, and what the executor must do now."""
    done = _stepped(agent, item)
    answer = done.answer
    if answer.incarnation != agent.incarnation or answer.seq != done.agent.seq:  # those of requests have both
        answer = evolve(answer, incarnation=agent.incarnation, seq=done.agent.seq)
    if isinstance(answer, Refused) and isinstance(item, ORDERS):
        number = getattr(item, "number", 0)
        answer = evolve(answer, number=number if type(number) is int else 0, repair=isinstance(item, orders.Load))
    return AgentStep(done.agent, answer, done.actions)


def _stepped(a: Agent, item: Input) -> AgentStep:
    transition = _TRANSITIONS.get(type(item))
    if transition is None:
        return refuse(a, Code.BAD_INPUT, f"{type(item).__name__} is no order, request or result", field="order")
    if fault := fault_in(item):
        return refuse(a, Code.BAD_INPUT, fault[1], field=fault[0])
    if isinstance(item, ORDERS):
        if item.engine != a.engine:
            return refuse(a, Code.UNKNOWN_ENGINE, f"this is {a.engine}", field="engine")
        if item.incarnation != a.incarnation:
            return refuse(a, Code.STALE_INCARNATION, f"this is incarnation {a.incarnation}", field="incarnation")
        if item.epoch != a.epoch:
            return refuse(a, Code.OTHER_EPOCH, f"this engine serves epoch {a.epoch}", field="epoch")
    if getattr(item, "number", 1) == 0 and not isinstance(item, orders.UnloadStray):
        return refuse(a, Code.BAD_INPUT, "must be at least 1", field="number")
    key = getattr(item, "key", None)
    if key is not None and key.epoch != a.epoch:
        return refuse(a, Code.OTHER_EPOCH, f"this engine serves epoch {a.epoch}", field="key")
    if isinstance(item, _NAMING) and item.lora_name != lora_name(item.key, item.digest):
        return refuse(a, Code.BAD_INPUT, "must be the name that follows from key and digest", field="lora_name")
    return transition(a, item)
