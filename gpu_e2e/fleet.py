"""The engines of the cpu profile: start them, stand beside them, stop them by pid whatever happens."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from attrs import define, field

from gpu_e2e.recording import Recorder
from lorafsm_sglang import EnginePort, EngineProcess, EngineStartError, Refused, Unknown
from lorafsm_sglang.cpu_profile import cpu_environment, cpu_flags
from lorafsm_sglang.staged import StagedEngine
from lorafsm_sglang.tiny_model import VOCAB_SIZE
from lorafsm_torch import ArtifactStore, Replica

START_DEADLINE_S = 240.0


@define
class Gates:
    """Where the story holds an engine's operation until something else has happened."""

    held: dict[tuple[str, str, str], asyncio.Event] = field(factory=dict)  # (engine, operation, version)
    reached: dict[tuple[str, str, str], asyncio.Event] = field(factory=dict)

    def hold(self, engine: str, op: str, version: str) -> tuple[asyncio.Event, asyncio.Event]:
        """(reached, open): the first is set when the operation is about to start; it waits for the second."""
        key = (engine, op, version)
        self.reached[key], self.held[key] = asyncio.Event(), asyncio.Event()
        return self.reached[key], self.held[key]

    async def passing(self, engine: str, op: str, version: str) -> None:
        """Wait here when held."""
        key = (engine, op, version)
        if key in self.held:
            self.reached[key].set()
            await self.held[key].wait()


@define
class Fleet:
    """Running engines and what stands beside each of them."""

    processes: dict[str, EngineProcess]
    ports: dict[str, EnginePort]
    staged: dict[str, StagedEngine]
    replicas: dict[str, Replica]
    gates: Gates


def fingerprint(model: Path) -> str:
    """SHA-256 over the base model's files: names, lengths, contents."""
    h = hashlib.sha256()
    for file in sorted(path for path in model.iterdir() if path.is_file()):
        data = file.read_bytes()
        for part in (file.name.encode(), data):
            h.update(len(part).to_bytes(8, "big"))
            h.update(part)
    return h.hexdigest()


def launch(names: list[str], model: Path, logs: Path) -> dict[str, EngineProcess]:
    """Start all engines and return at once."""
    processes = {
        name: EngineProcess(name, cpu_flags(model), cpu_environment(), logs / f"engine-{name}.log") for name in names
    }
    try:
        for process in processes.values():
            process.start()
    except BaseException:
        stop_all(processes)
        raise
    return processes


def stop_all(processes: Mapping[str, EngineProcess]) -> None:
    """End every engine by pid; one that cannot be ended does not keep the others alive."""
    with ExitStack() as stack:
        for process in processes.values():
            stack.callback(process.stop)


async def wait_ready(processes: dict[str, EngineProcess], progress: Callable[[str], None]) -> None:
    """Until every engine has generated a token; EngineStartError names the log of one that did not."""
    waiting, told = dict(processes), -1
    started = asyncio.get_running_loop().time()
    while waiting:
        for name, process in list(waiting.items()):
            if await asyncio.to_thread(process.poll_ready, START_DEADLINE_S):
                del waiting[name]
                progress(f"engine {name} ready on port {process.port} after {process.ready_after_s:.0f} s")
        waited = int(asyncio.get_running_loop().time() - started)
        if waiting and waited // 10 > told:
            told = waited // 10
            progress(f"waiting for {', '.join(waiting)} ({waited} s)")
        await asyncio.sleep(0.25 if waiting else 0)


@asynccontextmanager
async def beside(
    processes: dict[str, EngineProcess],
    store: ArtifactStore,
    hosts: Path,
    base: str,
    recorder: Recorder,
    clock: Callable[[], int],
    incarnations: dict[str, int],
) -> AsyncIterator[Fleet]:
    """Ports and executors of running engines; closed at the end (the processes are the caller's)."""
    gates = Gates()
    ports = {name: EnginePort(process.url, vocab_size=VOCAB_SIZE) for name, process in processes.items()}
    replicas = {name: Replica(store, hosts / name) for name in processes}
    staged = {
        name: StagedEngine(
            engine=name,
            incarnation=incarnations[name],
            port=ports[name],
            source=replicas[name],
            base_fingerprint=base,
            clock=clock,
            observe=_observer(name, gates, recorder),
        )
        for name, process in processes.items()
    }
    try:
        yield Fleet(processes, ports, staged, replicas, gates)
    finally:
        await asyncio.gather(*(port.aclose() for port in ports.values()))


def _observer(engine: str, gates: Gates, recorder: Recorder) -> Callable[[str, str, Awaitable[Any]], Awaitable[Any]]:
    letters = recorder.letters

    async def observe(op: str, lora_name: str, call: Awaitable[Any]) -> Any:
        version = letters.get(lora_name, lora_name)
        await gates.passing(engine, op, version)
        with recorder.operation(engine, op, version) as entry:
            entry["outcome"] = "FAILED"
            result = await call
            entry["outcome"] = type(result).__name__ if isinstance(result, Refused | Unknown) else "OK"
            return result

    return observe


__all__ = ["EngineStartError", "Fleet", "Gates", "beside", "fingerprint", "launch", "stop_all", "wait_ready"]
