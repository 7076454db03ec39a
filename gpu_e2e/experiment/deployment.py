"""Guarded engines with a registry of their own and the transport between: what 7.2 publishes A and B through.

The registry is where the section wants it (`gpu_e2e.hosting`), with its journal; the acts `reserve`, `store` and
`publish` are those of the main job (`gpu_e2e.story.Story`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from attrs import define

from gpu_e2e import hosting
from gpu_e2e.checks import Expectations
from gpu_e2e.conversation import Cast
from gpu_e2e.experiment.context import Context, Engines
from gpu_e2e.fleet import Fleet
from gpu_e2e.services import attended
from gpu_e2e.story import Facts, Story
from gpu_e2e.transport import Transport
from lorafsm.identity import VersionKey, lora_name
from lorafsm.records import Config
from lorafsm_sglang import EnginePort
from lorafsm_sglang.guard import GuardedEngine
from lorafsm_torch.deadlines import Deadlines


@define
class Deployment:
    """Running engines, the acts on them, and the names by which engines know the versions.

    `guards` are the clients through which buckets go; a restarted engine's is put there and into `fleet.executors`.
    """

    context: Context
    engines: Engines
    fleet: Fleet
    story: Story
    guards: dict[str, GuardedEngine]

    @property
    def journal(self) -> Path:
        """Where the registry writes."""
        return _journal(self.engines)

    def lora_name(self, letter: str) -> str:
        """The immutable name of a fixture in this deployment's epoch."""
        return lora_name(self.key(letter), self.context.snapshots[letter].digest)

    def key(self, letter: str) -> VersionKey:
        """The version key of a fixture in this deployment's epoch."""
        return self.context.key(self.engines.epoch, letter)

    def port(self, engine: str) -> EnginePort:
        """The client of one engine."""
        return self.fleet.ports[engine]


def _journal(engines: Engines) -> Path:
    return engines.folder / "journal.sqlite"


@asynccontextmanager
async def deployment(context: Context, section: str, registry: hosting.Kind = "local") -> AsyncIterator[Deployment]:
    """Fresh engines that proved their guard, joined to a new registry in which nothing is published."""
    plan, incarnations = context.plan, dict[str, int]()
    limits = Deadlines(broadcast=plan.deadlines.bucket_s, receive=plan.deadlines.bucket_s)
    transport = Transport("torch", cap=plan.transport.bucket_cap, backend=plan.transport.backend, deadlines=limits)
    async with context.engines(section) as engines:
        config = Config(base_fingerprint=context.base)
        with hosting.hosted(registry, _journal(engines), config, engines.epoch) as client:
            async with (
                context.beside(engines, incarnations, transport.announcement) as fleet,
                attended(
                    client,
                    engines.epoch,
                    fleet.executors,
                    context.recorder,
                    context.base,
                    context.recorder.clock,
                ) as services,
            ):
                guards = {name: executor.guarded for name, executor in fleet.executors.items()}
                transport.connect(services, guards, context.recorder)
                story = Story(
                    engines.epoch,
                    services,
                    Cast(services.binder, fleet.ports, context.recorder),
                    fleet,
                    transport,
                    engines.store,
                    dict(context.snapshots),
                    Expectations(),
                    Facts([]),
                    context.progress,
                )
                yield Deployment(context, engines, fleet, story, guards)
