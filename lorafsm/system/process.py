"""One engine's process: what an input does to its agent, to its executor's list, and to what is physically loaded."""

from __future__ import annotations

from typing import NamedTuple

from attrs import evolve, frozen

from lorafsm.engine import actions as act
from lorafsm.engine import new_agent
from lorafsm.engine import orders as inputs
from lorafsm.engine.actions import Action, AskQuarantine
from lorafsm.engine.answers import Armed, Refused
from lorafsm.engine.invariants import step_invariants
from lorafsm.engine.lifecycle import AdapterState
from lorafsm.engine.orders import ORDERS, Input
from lorafsm.engine.report import as_event
from lorafsm.events import Event, Quarantine, RepairFailed, TargetFailed
from lorafsm.system.records import ArmedBy, Loaded, Message, Process, Request, Served
from lorafsm.system.rules import Rules

ANOTHER_CONTENT = "0" * 64


class Told(NamedTuple):
    """The process after an input, what it sends, how it answered, and what it must never have done."""

    process: Process
    messages: tuple[Message, ...] = ()
    code: str = "OK"
    wrong: tuple[str, ...] = ()


def new_process(engine: str, incarnation: int, epoch: str, slots: int, base: str) -> Process:
    """A process that just started: nothing is loaded, nothing is remembered."""
    return Process(new_agent(engine, incarnation, epoch, slots=slots, base_fingerprint=base))


def successor(p: Process) -> Process:
    """What runs after this process ended."""
    a = p.agent
    return new_process(a.engine, a.incarnation + 1, a.epoch, a.slots, a.base_fingerprint)


def give(rules: Rules, p: Process, item: Input) -> Told:
    """Give the agent an order, a request or a result, and note what it asks its executor to do."""
    done = rules.agent(p.agent, item)
    answer = done.answer
    wrong = list(step_invariants(p.agent, done))
    messages: list[Message] = []
    todo, history = p.todo, p.history
    for action in done.actions:
        if isinstance(action, AskQuarantine):
            messages += _sent(as_event(action, p.agent.engine, 0))
            continue
        if not isinstance(action, act.DropStash):
            todo |= {action}
        if entry := _begun(action):
            if entry in history:
                wrong.append(f"I8: {p.agent.engine} begins a second time: {' '.join(map(str, entry))}")
            history |= {entry}
    if isinstance(item, ORDERS):
        messages += _sent(as_event(answer, p.agent.engine, 0))
        if isinstance(answer, Armed):
            messages.append(
                ArmedBy(
                    engine=p.agent.engine,
                    incarnation=answer.incarnation,
                    number=answer.number,
                    bucket=answer.bucket,
                )
            )
    after = Process(done.agent, todo, p.loaded, p.served, history)
    code = str(answer.code) if isinstance(answer, Refused) else type(answer).__name__
    return Told(p if after == p else after, tuple(messages), code, tuple(wrong))


def _sent(event: Event | None) -> list[Message]:
    """The event without the engine's words, which no guard reads."""
    if event is None:
        return []
    if isinstance(event, TargetFailed | RepairFailed | Quarantine):
        return [evolve(event, reason="")]
    return [event]


def _begun(action: Action) -> tuple[str, int, int] | None:
    match action:
        case act.StartLoad(number=number):
            return "load", number, 0
        case act.PostReceive(number=number, bucket=bucket):
            return "receive", number, bucket
        case act.PhysicalUnload(number=number) if number:
            return "unload", number, 0
        case _:
            return None


@frozen
class Carried:
    """What carrying out an action did: the process, the result for the agent, and what went wrong."""

    process: Process
    result: Input
    wrong: tuple[str, ...] = ()


def finish(rules: Rules, p: Process, action: Action, result: str) -> Told:
    """The executor carries an action out, and tells its agent."""
    done = _carried_out(rules, evolve(p, todo=p.todo - {action}), action, result)
    told = give(rules, done.process, done.result)
    return told._replace(wrong=done.wrong + told.wrong)


def _carried_out(rules: Rules, p: Process, action: Action, result: str) -> Carried:
    ok = result == "ok"
    match action:
        case act.PostReceive(number=number, bucket=bucket):
            after = evolve(p, todo=p.todo - {act.AbortCommunicator(number)})
            return Carried(after, inputs.BucketFinished(number=number, bucket=bucket, ok=ok))
        case act.StartLoad():
            return _load(rules, p, action, result)
        case act.Probe(number=number, lora_name=name):
            there = any(x.lora_name == name for x in p.loaded)
            return Carried(p, inputs.ProbeFinished(number=number, ok=ok and there))
        case act.Unregister(lora_name=name):
            return Carried(p, inputs.Unregistered(lora_name=name))
        case act.CountRequests(lora_name=name):
            count = sum(s.lora_name == name for s in p.served)
            return Carried(p, inputs.Counted(lora_name=name, count=count if ok else -1))
        case act.PhysicalUnload():
            return _unload(p, action, ok)
        case act.TakeListing():
            # A slow unload has ended by the time of the listing.
            lingering = {x.lora_name for x in p.agent.adapters.values() if x.state is AdapterState.LINGERING}
            after = evolve(p, loaded=frozenset(x for x in p.loaded if x.lora_name not in lingering))
            names = frozenset(x.lora_name for x in after.loaded)
            return Carried(after, inputs.Listed(names=names, seq=p.agent.seq))
        case _:
            raise AssertionError(action)


def _load(rules: Rules, p: Process, action: act.StartLoad, result: str) -> Carried:
    if result == "failed" or (result == "corrupt" and rules.verifies_content):
        return Carried(p, inputs.LoadFinished(number=action.number, ok=False))
    content = action.digest if result == "ok" else ANOTHER_CONTENT
    others = frozenset(x for x in p.loaded if x.lora_name != action.lora_name)
    after = evolve(p, loaded=others | {Loaded(action.lora_name, content, action.number)})
    return Carried(after, inputs.LoadFinished(number=action.number, ok=True))


def _unload(p: Process, action: act.PhysicalUnload, ok: bool) -> Carried:
    wrong = []
    for there in sorted(p.loaded):
        if there.lora_name == action.lora_name and action.number not in (0, there.number):
            wrong.append(f"I6: the unload of number {action.number} removes what number {there.number} loaded")
    if any(s.lora_name == action.lora_name for s in p.served):
        wrong.append(f"I13: {action.lora_name} is unloaded on {p.agent.engine} under a running request")
    after = evolve(p, loaded=frozenset(x for x in p.loaded if x.lora_name != action.lora_name)) if ok else p
    return Carried(after, inputs.UnloadFinished(lora_name=action.lora_name, absent=ok), tuple(wrong))


def admit(rules: Rules, p: Process, request: Request) -> Told:
    """A request arrives: it runs on exactly its version, or is refused (RFC 4.2)."""
    told = give(rules, p, inputs.Acquire(rid=request.rid, lora_name=request.lora_name))
    if told.code != "Acquired":
        return told
    served = Served(request.rid, request.sequence, request.key, request.lora_name)
    return told._replace(process=evolve(told.process, served=told.process.served | {served}))


def end_request(rules: Rules, p: Process, rid: str) -> Told:
    """A running request reaches its terminal."""
    ended = evolve(p, served=frozenset(s for s in p.served if s.rid != rid))
    return give(rules, ended, inputs.Release(rid=rid))
