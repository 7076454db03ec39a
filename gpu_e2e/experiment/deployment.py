"""Guarded engines with a registry of their own and the transport between: what 7.2 publishes A and B through.

The registry is in this process, with its journal; the acts `reserve`, `store` and `publish` are those of the main job
(`gpu_e2e.story.Story`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from attrs import define

from gpu_e2e.checks import Expectations
from gpu_e2e.conversation import Cast
from gpu_e2e.driver import Driver
from gpu_e2e.experiment.context import Context, Engines, clock
from gpu_e2e.fleet import Fleet
from gpu_e2e.story import Facts, Story
from gpu_e2e.transport import Transport
from lorafsm.events import EngineJoin, OwnerUp
from lorafsm.identity import VersionKey, lora_name
from lorafsm.records import Config
from lorafsm_journal import JournaledRegistry
from lorafsm_sglang import EnginePort

OWNER = "shard-0"


@define
class Deployment:
    """Running engines, the acts on them, and the names by which engines know the versions."""

    context: Context
    engines: Engines
    fleet: Fleet
    story: Story

    def lora_name(self, letter: str) -> str:
        """The immutable name of a fixture in this deployment's epoch."""
        return lora_name(self.key(letter), self.context.snapshots[letter].digest)

    def key(self, letter: str) -> VersionKey:
        """The version key of a fixture in this deployment's epoch."""
        return self.context.key(self.engines.epoch, letter)

    def port(self, engine: str) -> EnginePort:
        """The client of one engine."""
        return self.fleet.ports[engine]


@asynccontextmanager
async def deployment(context: Context, section: str) -> AsyncIterator[Deployment]:
    """Fresh engines that proved their guard, joined to a new registry in which nothing is published."""
    plan, incarnations = context.plan, dict[str, int]()
    transport = Transport("torch", cap=plan.transport.bucket_cap, backend=plan.transport.backend)
    async with context.engines(section) as engines:
        registry = JournaledRegistry.open(
            engines.folder / "journal.sqlite", Config(base_fingerprint=context.base), engines.epoch
        )
        with registry as host:
            async with context.beside(engines, incarnations, transport.announcement) as fleet:
                driver = Driver(host, fleet.executors, context.recorder, clock)
                guards = {name: executor.guarded for name, executor in fleet.executors.items()}
                transport.connect(driver, guards, context.recorder)
                for name, incarnation in incarnations.items():
                    driver.apply(
                        EngineJoin(
                            engine=name, incarnation=incarnation, seq=0, base_fingerprint=context.base, now=clock()
                        )
                    )
                driver.apply(OwnerUp(owner=OWNER, now=clock()))
                cast = Cast(host, fleet.ports, context.recorder, engines.epoch, OWNER, clock)
                story = Story(
                    driver,
                    cast,
                    fleet,
                    transport,
                    engines.store,
                    dict(context.snapshots),
                    Expectations(),
                    Facts([]),
                    context.progress,
                )
                yield Deployment(context, engines, fleet, story)
