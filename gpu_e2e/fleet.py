"""The engines of the cpu profile: start them, stand beside them, stop them by pid whatever happens."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from attrs import define, evolve, field

from gpu_e2e.guarded import MODULE, GuardPlan, RecordedEngine, proved
from gpu_e2e.recording import Recorder
from lorafsm.engine.orders import EngineOrder
from lorafsm.orders import End
from lorafsm_sglang import EnginePort, EngineProcess, EngineStartError
from lorafsm_sglang.cpu_profile import cpu_environment, cpu_flags
from lorafsm_sglang.guard import GuardedEngine
from lorafsm_sglang.guard.client import Announce
from lorafsm_sglang.guard.fingerprint import base_fingerprint as fingerprint
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
    executors: dict[str, RecordedEngine]
    replicas: dict[str, Replica]
    gates: Gates


def launch(names: list[str], model: Path, logs: Path, plan: GuardPlan | None = None) -> dict[str, EngineProcess]:
    """Start all engines and return at once; guarded, where there is a plan for the guards."""

    def made(name: str) -> EngineProcess:
        log = logs / f"engine-{name}.log"
        if plan is None:
            return EngineProcess(name, cpu_flags(model), cpu_environment(), log)
        environment = plan.environment(name, cpu_environment())
        return EngineProcess(name, cpu_flags(model), environment, log, module=MODULE)

    processes = {name: made(name) for name in names}
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


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM unwind as an exit does, so that engines, which are sessions of their own, are stopped."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


async def wait_ready(
    processes: dict[str, EngineProcess], progress: Callable[[str], None], deadline_s: float = START_DEADLINE_S
) -> None:
    """Until every engine has generated a token; EngineStartError names the log of one that did not."""
    waiting, told = dict(processes), -1
    started = asyncio.get_running_loop().time()
    while waiting:
        for name, process in list(waiting.items()):
            if await asyncio.to_thread(process.poll_ready, deadline_s):
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
    base: str,
    recorder: Recorder,
    clock: Callable[[], int],
    incarnations: dict[str, int],
    plan: GuardPlan,
    announce: Announce,
    vocab_size: int = VOCAB_SIZE,
) -> AsyncIterator[Fleet]:
    """Ports and executors of running engines; closed at the end (the processes are the caller's).

    Each engine proves that it is guarded, or AttestationError; `incarnations` is filled from the proofs.
    """
    gates = Gates()
    ports = {name: EnginePort(process.url, vocab_size=vocab_size) for name, process in processes.items()}
    replicas = {name: Replica(store, plan.hosts / name) for name in processes}
    guarded = {
        name: GuardedEngine(
            name, 0, process.url, plan.token, clock, passing=_passing(gates, recorder), announce=announce
        )
        for name, process in processes.items()
    }
    try:
        for name, engine in guarded.items():
            incarnations[name] = await proved(engine, base)
            guarded[name] = evolve(engine, incarnation=incarnations[name])
        executors = {name: RecordedEngine(engine, recorder) for name, engine in guarded.items()}
        yield Fleet(processes, ports, executors, replicas, gates)
    finally:
        await asyncio.gather(*(port.aclose() for port in ports.values()))
        await asyncio.gather(*(engine.aclose() for engine in guarded.values()))


def _passing(gates: Gates, recorder: Recorder) -> Callable[[EngineOrder], Awaitable[None]]:
    async def passing(order: EngineOrder) -> None:
        if isinstance(order, End):  # the engine verifies and loads in one operation
            for op in ("verify", "load"):
                await gates.passing(order.engine, op, recorder.letters.get(order.lora_name, order.lora_name))

    return passing


__all__ = ["EngineStartError", "Fleet", "Gates", "beside", "fingerprint", "launch", "stop_all", "wait_ready"]
