"""The registry with two engines in one process: the core's own agents, behind which nothing is loaded.

What real engines do is in tests/engines; here the ranks and what the registry says are the matter.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from attrs import define, field

from lorafsm import events as ev
from lorafsm.engine import actions as act
from lorafsm.engine import agent_step, new_agent
from lorafsm.engine import orders as inp
from lorafsm.engine.report import as_event
from lorafsm.records import Config
from lorafsm_asyncio import LocalClient, RegistryUnavailable
from lorafsm_asyncio.questions import PublisherOrders, ReclaimerOrders
from lorafsm_journal import JournaledRegistry
from lorafsm_torch import ArtifactStore
from lorafsm_torch.rank_zero import RegistryPublisher

EPOCH = "e1"
ENGINES = ("E0", "E1")
BASE = "b" * 64


class Ticks:
    """A clock that goes on by one millisecond at each look."""

    now = 0

    def __call__(self) -> int:
        self.now += 1
        return self.now


class AgentAlone:
    """The engine agent without an engine: each of its actions succeeds at once.  `silent` says nothing at all."""

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self.agent = new_agent(engine, 1, EPOCH, slots=3, base_fingerprint=BASE)
        self.silent = False
        self.broken = False

    def carry_out(self, order: Any) -> Any:
        if self.silent:
            return None
        done = agent_step(self.agent, order)
        self.agent = done.agent
        waiting = deque(done.actions)
        while waiting:
            step = agent_step(self.agent, self._result(waiting.popleft()))
            self.agent = step.agent
            waiting.extend(step.actions)
        return agent_step(self.agent, order).answer

    def _result(self, action: act.Action) -> inp.Input:
        match action:
            case act.StartLoad(number=number):
                return inp.LoadFinished(number=number, ok=not self.broken, detail="broken" if self.broken else "")
            case act.Probe(number=number):
                return inp.ProbeFinished(number=number, ok=True)
            case act.Unregister(lora_name=name):
                return inp.Unregistered(lora_name=name)
            case act.CountRequests(lora_name=name):
                return inp.Counted(lora_name=name, count=0)
            case act.PhysicalUnload(lora_name=name):
                return inp.UnloadFinished(lora_name=name, absent=True)
            case _:
                raise AssertionError(f"{action} is nothing that a publication from the store asks for")


@define
class LossyClient:
    """The registry's client with faults put in by hand: it cannot be reached, or applies and loses the reply."""

    inner: LocalClient
    unreachable: set[str] = field(factory=set)  # names of events; "ask" for questions
    lost_replies: Counter[str] = field(factory=Counter)

    async def apply(self, event: ev.Event) -> Any:
        if event.name in self.unreachable:
            raise RegistryUnavailable(f"{event.name} did not arrive")
        outcome = await self.inner.apply(event)
        if self.lost_replies[event.name]:
            self.lost_replies[event.name] -= 1
            raise RegistryUnavailable(f"the reply to {event.name} was lost")
        return outcome

    async def ask(self, question: Any) -> Any:
        if "ask" in self.unreachable:
            raise RegistryUnavailable("nobody answers")
        return await self.inner.ask(question)


@define
class Deployment:
    """Registry, store, engines and the publisher of rank 0."""

    host: JournaledRegistry
    client: LossyClient
    engines: dict[str, AgentAlone]
    publisher: RegistryPublisher
    in_drive: Callable[[], None] = lambda: None  # called before each look at the policy's orders

    @classmethod
    def at(cls, folder: Path, *, capacity: int = 2, share_s: float = 2.0, registry_s: float = 1.0) -> Deployment:
        config = Config(base_fingerprint=BASE, capacity=capacity, engine_slots=capacity + 1)
        host = JournaledRegistry.open(folder / "journal", config, EPOCH)
        client = LossyClient(LocalClient(host))
        engines = {name: AgentAlone(name) for name in ENGINES}
        clock = Ticks()
        for name in ENGINES:
            host.apply(ev.EngineJoin(engine=name, incarnation=1, seq=0, base_fingerprint=BASE, now=clock()))
        deployment: Deployment

        async def drive(_attempt: Any, token: str, _: Any) -> None:
            await deployment.drive(token)

        publisher = RegistryPublisher(
            client, EPOCH, ArtifactStore(folder / "store"), drive, clock, share_s=share_s, registry_s=registry_s
        )
        deployment = cls(host, client, engines, publisher)
        return deployment

    async def drive(self, token: str) -> None:
        """The smallest driver: until the policy orders nothing more, an order without an answer given again."""
        while True:
            await asyncio.to_thread(self.in_drive)
            orders = await self.client.ask(PublisherOrders(token, self.publisher.clock()))
            if not orders:
                return
            await self._carried_out(orders)
            await asyncio.sleep(0.01)

    async def reclaim(self) -> None:
        """Whatever nobody holds."""
        while orders := await self.client.ask(ReclaimerOrders(self.publisher.clock())):
            await self._carried_out(orders)

    async def _carried_out(self, orders: Sequence[Any]) -> None:
        for order in orders:
            if isinstance(order, ev.EVENTS):
                await self.client.apply(order)
                continue
            answer = self.engines[order.engine].carry_out(order)
            event = None if answer is None else as_event(answer, order.engine, self.publisher.clock())
            if event is not None:
                await self.client.apply(event)
