"""What the sections of the experiment share: the plan, the model, the fixtures, and engines that each section starts.

A section gets engines of its own (`Context.engines`): processes that have served nothing, in an epoch of their own,
with their own artifact store and logs below ``out/<section>``.  So no section inherits a KV cache from another one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from attrs import define, field, frozen

from gpu_e2e import fleet
from gpu_e2e.experiment import profiles
from gpu_e2e.experiment.plan import Plan, check_engine
from gpu_e2e.guarded import GuardPlan
from gpu_e2e.recording import Recorder
from lorafsm.identity import VersionKey, lora_name
from lorafsm_sglang import OK, EnginePort, EngineProcess
from lorafsm_sglang.guard.client import Announce
from lorafsm_torch import ArtifactStore, Snapshot


def clock() -> int:
    """Milliseconds of the wall clock: the `now` of events."""
    return time.time_ns() // 1_000_000


@frozen
class Engines:
    """One section's guarded engines, all ready; `guard.token` opens their control routes.

    `folder` is the section's own (journals go here too), `epoch` the only one that these guards take.
    """

    section: str
    epoch: str
    folder: Path
    guard: GuardPlan
    store: ArtifactStore
    processes: Mapping[str, EngineProcess]


@define
class Context:
    """One run.  `recorder` times are seconds from its start; `progress` takes one line for people.

    `model` is the base model's folder and `base` its fingerprint; `snapshots` are the frozen fixtures by letter.
    """

    plan: Plan
    out: Path
    model: Path
    base: str
    snapshots: Mapping[str, Snapshot]
    progress: Callable[[str], None]
    recorder: Recorder = field(factory=Recorder)

    @asynccontextmanager
    async def engines(self, section: str) -> AsyncIterator[Engines]:
        """Start the plan's number of guarded engines, check them against the plan, end them by pid.

        Raises EngineStartError with the log's name, or PlanMismatch naming the setting that differs.
        """
        folder = self.out / section
        epoch = f"{section[:1]}{clock() // 1000:x}"  # short: it is in every name that people read
        guard = GuardPlan(epoch, folder / "store", folder / "hosts")
        processes = {
            name: profiles.process(self.plan, self.model, name, index, folder / "logs", guard)
            for index, name in enumerate(self.plan.engine_names)
        }
        self._name_versions(epoch)
        try:
            for process in processes.values():
                process.start()
            await fleet.wait_ready(processes, self.progress, self.plan.deadlines.start_s)
            for process in processes.values():
                await self._as_planned(process)
            yield Engines(section, epoch, folder, guard, ArtifactStore(folder / "store"), processes)
        finally:
            await asyncio.to_thread(fleet.stop_all, processes)

    @asynccontextmanager
    async def beside(
        self, engines: Engines, incarnations: dict[str, int], announce: Announce
    ) -> AsyncIterator[fleet.Fleet]:
        """Ports and recorded executors of a section's engines; fills `incarnations` from their proofs."""
        async with fleet.beside(
            dict(engines.processes),
            engines.store,
            self.base,
            self.recorder,
            clock,
            incarnations,
            engines.guard,
            announce,
            vocab_size=self.plan.model.vocab_size,
        ) as standing:
            yield standing

    @asynccontextmanager
    async def clean_engines(self, names: Sequence[str]) -> AsyncIterator[Mapping[str, EnginePort]]:
        """An engine for each name, without a guard, that has served nothing: where baselines are made (RFC 7.2)."""
        logs = self.out / "baselines" / "logs"
        processes = {
            name: profiles.process(self.plan, self.model, name, index, logs, None) for index, name in enumerate(names)
        }
        try:
            for process in processes.values():
                process.start()
            await fleet.wait_ready(processes, self.progress, self.plan.deadlines.start_s)
            async with AsyncExitStack() as stack:
                ports = {}
                for name, process in processes.items():
                    await self._as_planned(process)
                    ports[name] = await stack.enter_async_context(self.port(process))
                yield ports
        finally:
            await asyncio.to_thread(fleet.stop_all, processes)

    def port(self, process: EngineProcess) -> EnginePort:
        """A client of one engine; token ids outside the plan's vocabulary are not sent."""
        return EnginePort(process.url, vocab_size=self.plan.model.vocab_size)

    def key(self, epoch: str, letter: str) -> VersionKey:
        """The version key of a fixture in a section's epoch: A is 1."""
        return VersionKey(epoch, list(self.snapshots).index(letter) + 1)

    def _name_versions(self, epoch: str) -> None:
        for letter, snapshot in self.snapshots.items():
            key = self.key(epoch, letter)
            self.recorder.letters[str(key)] = letter
            self.recorder.letters[lora_name(key, snapshot.digest)] = letter

    async def _as_planned(self, process: EngineProcess) -> None:
        async with self.port(process) as port:
            said = await port.status()
        settings = {**said.data.settings, "version": said.data.version} if isinstance(said, OK) else {}
        check_engine(self.plan, process.name, settings)
