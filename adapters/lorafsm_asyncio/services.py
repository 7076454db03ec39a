"""All services of a deployment together, for a process that has nothing else to do (RFC 2: outside the registry)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence

from lorafsm_asyncio.client import RegistryClient
from lorafsm_asyncio.errands import Executor
from lorafsm_asyncio.notices import Notice, Notify, log_notice
from lorafsm_asyncio.owner import monotonic_ms
from lorafsm_asyncio.publisher import Publisher
from lorafsm_asyncio.reclaimer import Reclaimer
from lorafsm_asyncio.repairer import Repairer
from lorafsm_asyncio.rounds import Told, untold
from lorafsm_asyncio.watcher import Seat, Watcher

_RESTART_S = 1.0


async def run_services(
    client: RegistryClient,
    epoch: str,
    seats: Sequence[Seat],
    engines: MutableMapping[str, Executor] | None = None,
    *,
    clock: Callable[[], int] = monotonic_ms,
    notify: Notify = log_notice,
    told: Told = untold,
) -> None:
    """Watch the seats, stand by for dead publishers, reclaim, repair; until cancelled.

    `engines` is kept pointing at the live processes, for whoever in this process settles requests or publishes.
    A service that breaks is named (SERVICE_FAILED) and started again: each goes on from the registry.  Several
    processes may run this; orders are idempotent, and the registry decides.
    """
    live: MutableMapping[str, Executor] = {} if engines is None else engines
    services: dict[str, Callable[[], Awaitable[None]]] = {
        "watcher": lambda: Watcher(client, epoch, seats, live, clock=clock, notify=notify, told=told).run(),
        "publisher": lambda: Publisher(client, live, clock=clock, notify=notify, told=told).run(),
        "reclaimer": lambda: Reclaimer(client, live, clock=clock, notify=notify, told=told).run(),
        "repairer": lambda: Repairer(client, live, clock=clock, notify=notify, told=told).run(),
    }

    async def keep_running(name: str) -> None:
        while True:
            try:
                await services[name]()
            except Exception as error:
                notify(Notice("SERVICE_FAILED", f"{name}: {type(error).__name__}: {error}; it is started again"))
            await asyncio.sleep(_RESTART_S)

    async with asyncio.TaskGroup() as group:
        for name in services:
            group.create_task(keep_running(name), name=name)
