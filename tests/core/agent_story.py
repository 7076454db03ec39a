"""A small vocabulary for stories about one engine's agent: one input a line, the answer in return.

`Desk` puts every input through `agent_step` and keeps what the executor still has to do.  After each step it
asserts the agent's invariants, that a refusal changed nothing, that the lifecycle tables allow what happened, and
that nothing was asked for twice.  Versions are named by a letter: A is version id 1.
"""

from __future__ import annotations

import hashlib
from typing import Any

from lorafsm import orders
from lorafsm.engine import Agent, actions, agent_step, new_agent
from lorafsm.engine import orders as inputs
from lorafsm.engine.actions import Action
from lorafsm.engine.answers import AgentStep, Answer, Refused
from lorafsm.engine.invariants import action_invariants, agent_invariants, step_invariants
from lorafsm.engine.lifecycle import ADAPTER, WORK
from lorafsm.identity import VersionKey, lora_name
from lorafsm.manifest import Plan, store_plan

EPOCH, ENGINE, BASE = "e1", "E0", "base-1"


def key_of(letter: str, epoch: str = EPOCH) -> VersionKey:
    return VersionKey(epoch, ord(letter) - ord("A") + 1)


def digest_of(letter: str) -> str:
    return hashlib.sha256(letter.encode()).hexdigest()


def name_of(letter: str) -> str:
    return lora_name(key_of(letter), digest_of(letter))


def plan_of(buckets: int) -> Plan:
    return Plan(buckets, hashlib.sha256(str(buckets).encode()).hexdigest()) if buckets else store_plan()


def addressed(kind: type[Any], letter: str | None = None, **words: Any) -> Any:
    """An order to incarnation 1 of E0; with a letter it names that version."""
    version = {}
    if letter is not None:
        version = {"key": key_of(letter), "digest": digest_of(letter), "lora_name": name_of(letter)}
    return kind(**{"epoch": EPOCH, "engine": ENGINE, "incarnation": 1, **version, **words})


def assert_allowed(before: Agent, item: Any, done: AgentStep) -> set[tuple[str, str | None, str, str | None]]:
    """Assert that the tables allow this step; answers the (record, state, input, state) that it took."""
    after, name = done.agent, inputs.name_of(type(item))
    taken: set[tuple[str, str | None, str, str | None]] = set()
    for what, table, old, new in (
        ("work", WORK, before.works, after.works),
        ("adapter", ADAPTER, before.adapters, after.adapters),
    ):
        for key in {*old, *new}:
            was = old[key].state if key in old else None
            now = new[key].state if key in new else None
            if was is not now:
                taken.add((what, was, name, now))
                assert now in table[was].get(name, ()), f"{what} {key}: {was} -> {now} by {name}"
    return taken


class Desk:
    """One engine's agent, and the executor's list of what to do."""

    def __init__(self, *, incarnation: int = 1, slots: int = 3) -> None:
        self.agent = new_agent(ENGINE, incarnation, EPOCH, slots=slots, base_fingerprint=BASE)
        self.todo: list[Action] = []
        self.asked: list[Action] = []
        self.said: Answer | None = None

    def give(self, item: Any) -> Any:
        before = self.agent
        done = agent_step(before, item)
        assert step_invariants(before, done) == ()
        assert agent_invariants(done.agent) == ()
        assert_allowed(before, item, done)
        assert (done.answer.incarnation, done.answer.seq) == (done.agent.incarnation, done.agent.seq)
        self.agent, self.said = done.agent, done.answer
        self.todo += done.actions
        self.asked += done.actions
        assert action_invariants(self.asked) == ()
        return done.answer

    def code(self, item: Any) -> str:
        """The refusal's code, or the name of the answer."""
        answer = self.give(item)
        return str(answer.code) if isinstance(answer, Refused) else type(answer).__name__

    # orders

    def begin(self, number: int, letter: str, buckets: int = 0, **words: Any) -> str:
        return self.code(addressed(orders.Begin, letter, number=number, plan=plan_of(buckets), **words))

    def arm(self, number: int, bucket: int) -> str:
        return self.code(addressed(inputs.ArmBucket, number=number, bucket=bucket))

    def receive(self, number: int, bucket: int) -> str:
        return self.code(addressed(inputs.ReceiveBucket, number=number, bucket=bucket))

    def end(self, number: int, letter: str) -> str:
        return self.code(addressed(orders.End, letter, number=number))

    def cleanup(self, number: int, letter: str) -> str:
        return self.code(addressed(orders.Cleanup, letter, number=number))

    def load(self, number: int, letter: str) -> str:
        return self.code(addressed(orders.Load, letter, number=number))

    def unload(self, letter: str, reclaim_id: str | None = None) -> str:
        return self.code(addressed(orders.Unload, letter, reclaim_id=reclaim_id or f"reclaim-{letter}"))

    def unload_stray(self, letter: str, number: int, operation_key: str = "") -> str:
        name = name_of(letter)
        words = {"lora_name": name, "number": number, "operation_key": operation_key or f"stray-{name}-{number}"}
        return self.code(addressed(orders.UnloadStray, **words))

    def status(self, number: int) -> str:
        return self.code(addressed(orders.AskStatus, number=number))

    def held(self) -> tuple[str, ...]:
        """What the inventory lists: letter and number, then the strangers."""
        answer = self.give(addressed(orders.TakeInventory))
        own = sorted(f"{chr(ord('A') + r.key.version_id - 1)}{r.number}" for r in answer.residents)
        return (*own, *sorted(answer.foreign))

    # requests

    def acquire(self, rid: str, letter: str) -> str:
        return self.code(inputs.Acquire(rid=rid, lora_name=name_of(letter)))

    def release(self, rid: str) -> bool:
        return bool(self.give(inputs.Release(rid=rid)).released)

    def settle(self, rid: str, letter: str) -> str:
        return str(self.give(inputs.Settle(rid=rid, key=key_of(letter))).verdict)

    def refs(self, letter: str) -> int:
        return self.agent.adapters[name_of(letter)].refs

    # the executor

    def do(self, *, ok: bool = True, count: int | None = 0, absent: bool = True) -> str:
        """Carry out the first thing to do, with this result; answers the action's name."""
        action = self.todo.pop(0)
        match action:
            case actions.PostReceive(number=number, bucket=bucket):
                self.give(inputs.BucketFinished(number=number, bucket=bucket, ok=ok))
            case actions.StartLoad(number=number):
                self.give(inputs.LoadFinished(number=number, ok=ok))
            case actions.Probe(number=number):
                self.give(inputs.ProbeFinished(number=number, ok=ok))
            case actions.Unregister(lora_name=name):
                self.give(inputs.Unregistered(lora_name=name))
            case actions.CountRequests(lora_name=name):
                self.give(inputs.Counted(lora_name=name, count=count))
            case actions.PhysicalUnload(lora_name=name):
                self.give(inputs.UnloadFinished(lora_name=name, absent=absent))
            case actions.TakeListing():
                names = frozenset() if absent else frozenset(self.agent.adapters)
                self.give(inputs.Listed(names=names, seq=self.agent.seq))
        return type(action).__name__

    def do_all(self) -> tuple[str, ...]:
        """Carry out everything, each with success."""
        done = []
        while self.todo:
            done.append(self.do())
        return tuple(done)

    def listed(self, *names: str) -> str:
        return self.code(inputs.Listed(names=frozenset(names), seq=self.agent.seq))

    def boot(self, letter: str, number: int) -> None:
        """The version is loaded and proved under this attempt number."""
        assert self.begin(number, letter) == "Prepared"
        assert self.end(number, letter) == "Pending"
        assert self.do_all() == ("StartLoad", "Probe")
        assert self.end(number, letter) == "Ready"
