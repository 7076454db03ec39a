"""An engine's process in this one: the real agent of `lorafsm.engine`, its actions carried out on a dict.

It stands in for SGLang where a test needs crashes, lost replies and drains at exact moments; what real engines do is
in tests/engines.  `EngineHost` is where processes come and go, as a supervisor sees it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from attrs import define, field, frozen

from lorafsm.engine import Agent, agent_step, new_agent
from lorafsm.engine import actions as act
from lorafsm.engine import orders as inputs
from lorafsm.engine.answers import Acquired, Answer, Pending
from lorafsm.engine.invariants import step_invariants
from lorafsm.engine.report import as_event
from lorafsm.errors import LoraFsmError
from lorafsm.events import Event, ReclaimUnknown, TargetUnknown
from lorafsm.orders import Begin, Cleanup, End, Order, SendBucket, Unload
from tests.adapters.asyncio_services.virtual_time import now_ms

BASE = "b" * 64
GIVES_UP_S = 600.0


@define
class EngineProcess:
    """One process, from its start to its end.  `load_s` is how long a load takes, in virtual seconds."""

    agent: Agent
    load_s: float = 0.5
    corrupt: set[str] = field(factory=set)  # names whose copy on this host is damaged
    alive: bool = True
    hung: bool = False  # lives, and answers nothing
    loads: list[str] = field(factory=list)
    unloads: list[str] = field(factory=list)
    loaded: set[str] = field(factory=set)
    _moved: asyncio.Event = field(factory=asyncio.Event)
    _tasks: set[asyncio.Task[None]] = field(factory=set)

    def give(self, item: Any) -> Answer:
        """The agent's answer; its actions begin."""
        done = agent_step(self.agent, item)
        assert step_invariants(self.agent, done) == ()
        moved, self.agent = done.agent is not self.agent, done.agent
        for action in done.actions:
            task = asyncio.create_task(self._carry_out(action))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if moved:  # else two callers who wait for the same would wake each other for ever
            self._moved.set()
            self._moved = asyncio.Event()
        return done.answer

    async def answered(self, order: Any, deadline_s: float) -> Answer:
        """Give the order until it is answered, or time is up."""
        try:
            async with asyncio.timeout(deadline_s):
                while True:
                    answer = self.give(order)
                    moved = self._moved
                    if not isinstance(answer, Pending):
                        return answer
                    await moved.wait()
        except TimeoutError:
            return answer

    async def _carry_out(self, action: act.Action) -> None:
        match action:
            case act.StartLoad(number=number, lora_name=name):
                self.loads.append(name)
                await asyncio.sleep(self.load_s)
                ok = name not in self.corrupt
                self.loaded |= {name} if ok else set()
                result: Any = inputs.LoadFinished(number=number, ok=ok, detail="" if ok else "MANIFEST_MISMATCH")
            case act.Probe(number=number, lora_name=name):
                result = inputs.ProbeFinished(number=number, ok=name in self.loaded)
            case act.Unregister(lora_name=name):
                result = inputs.Unregistered(lora_name=name)
            case act.CountRequests(lora_name=name):
                result = inputs.Counted(lora_name=name, count=list(self.agent.requests.values()).count(name))
            case act.PhysicalUnload(lora_name=name):
                self.unloads.append(name)
                self.loaded.discard(name)
                result = inputs.UnloadFinished(lora_name=name, absent=True)
            case act.TakeListing():
                result = inputs.Listed(names=frozenset(self.loaded), seq=self.agent.seq)
            case act.PostReceive(number=number, bucket=bucket):
                result = inputs.BucketFinished(number=number, bucket=bucket, ok=True)
            case _:
                return
        if self.alive:
            self.give(result)

    def admit(self, rid: str, lora_name: str) -> Answer:
        """A request arrives."""
        return self.give(inputs.Acquire(rid=rid, lora_name=lora_name))

    def end(self, rid: str) -> None:
        """A request reaches its terminal."""
        self.give(inputs.Release(rid=rid))


@frozen
class Proof:
    """What an attestation says."""

    incarnation: int
    base_fingerprint: str = BASE


@define
class EngineClient:
    """A client of one incarnation (0: whichever runs) on a host, with the manners of `GuardedEngine`.

    Faults: `lose_replies` of the next orders (carried out, reply lost), `lose_orders` (never arrived).
    """

    host: EngineHost
    incarnation: int
    deadline_s: float = GIVES_UP_S
    lose_replies: list[type] = field(factory=list)
    lose_orders: list[type] = field(factory=list)
    given: list[Order] = field(factory=list)
    closed: bool = False

    async def carry_out(self, order: Order) -> Event | None:
        if isinstance(order, SendBucket):
            raise TypeError("SendBucket is an order to the transport")
        self.given.append(order)
        process = self.host.process
        if order.incarnation != self.incarnation:
            return None
        if type(order) in self.lose_orders:
            self.lose_orders.remove(type(order))
            return self._unknown(order)
        if process is None or process.hung or process.agent.incarnation != self.incarnation:
            await asyncio.sleep(1.0)
            return self._unknown(order)
        answer = await process.answered(order, self.deadline_s)
        if type(order) in self.lose_replies:
            self.lose_replies.remove(type(order))
            return self._unknown(order)
        if isinstance(answer, Pending) or not process.alive:
            return self._unknown(order)
        return as_event(answer, self.host.name, now_ms())

    async def attest(self) -> Proof:
        process = self.host.process
        if process is None:
            raise LoraFsmError("ENGINE_UNGUARDED", "no answer")
        if process.hung:
            await asyncio.sleep(3600)
        return Proof(process.agent.incarnation)

    async def settle(self, settle: inputs.Settle) -> Answer | None:
        process = self.host.process
        return None if process is None or process.hung else process.give(settle)

    async def status(self) -> Mapping[str, Any]:
        assert self.host.process is not None
        agent = self.host.process.agent
        held: dict[str, list[str]] = {}
        for rid, name in agent.requests.items():
            held.setdefault(name, []).append(rid)
        return {"adapters": [{"lora_name": n, "held_by": sorted(held.get(n, ()))} for n in sorted(agent.adapters)]}

    async def aclose(self) -> None:
        self.closed = True

    def _unknown(self, order: Any) -> Event | None:
        about = {"engine": self.host.name, "incarnation": self.incarnation, "now": now_ms()}
        if isinstance(order, Begin | End | Cleanup):
            return TargetUnknown(number=order.number, **about)
        if isinstance(order, Unload):
            return ReclaimUnknown(reclaim_id=order.reclaim_id, **about)
        return None


@define
class EngineHost:
    """Where one engine's processes run, one after another."""

    name: str
    epoch: str
    slots: int = 2
    process: EngineProcess | None = None
    died: str | None = None
    supervised: bool = True  # somebody watches the process and can prove its end
    started: int = 0

    def start(self) -> EngineProcess:
        """A new process, which remembers nothing."""
        self.started += 1
        self.died = None
        agent = new_agent(self.name, self.started, self.epoch, slots=self.slots, base_fingerprint=BASE)
        self.process = EngineProcess(agent)
        return self.process

    def kill(self) -> None:
        """kill -9; the supervisor knows."""
        assert self.process is not None
        self.process.alive = False
        self.process, self.died = None, f"process {self.started} ended with status -9"

    def running(self) -> EngineProcess:
        assert self.process is not None
        return self.process

    def connect(self, incarnation: int) -> EngineClient:
        return EngineClient(self, incarnation)

    def exited(self) -> str | None:
        return self.died if self.supervised else None

    def serves(self, rid: str, lora_name: str) -> bool:
        """Whether a request is admitted now."""
        return self.process is not None and isinstance(self.process.admit(rid, lora_name), Acquired)
