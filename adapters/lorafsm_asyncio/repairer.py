"""The repairer as an asyncio service: every member holds what sessions may need, and nothing else (rule 15)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lorafsm_asyncio.client import RegistryClient
from lorafsm_asyncio.errands import Errands, Executor
from lorafsm_asyncio.notices import Notify, log_notice
from lorafsm_asyncio.owner import monotonic_ms
from lorafsm_asyncio.questions import RepairerOrders
from lorafsm_asyncio.rounds import Rounds, Told, untold


class Repairer:
    """Loads needed versions from the artifact store where they lack, removes strays, takes inventories."""

    def __init__(
        self,
        client: RegistryClient,
        engines: Mapping[str, Executor],
        *,
        clock: Callable[[], int] = monotonic_ms,
        notify: Notify = log_notice,
        told: Told = untold,
    ) -> None:
        self.client = client
        self._engines = engines
        self._clock = clock
        self._notify = notify
        self._told = told

    async def run(self) -> None:
        """Until cancelled; back-off and quarantine are the registry's."""

        async def wanted() -> tuple[Any, ...]:
            return await self.client.ask(RepairerOrders(self._clock()))

        errands = Errands(self._engines, self._clock, self._notify)
        await Rounds(self.client, errands, self._notify, self._told).go(wanted)
