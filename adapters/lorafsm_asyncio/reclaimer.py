"""The reclaimer as an asyncio service, outside any training step (RFC 5): it also notices owners that are gone.

An engine that does not confirm delays nothing but the slot of its own version; the service names it, with the
requests that hold it, and goes on asking (rules 12, 16).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from attrs import define

from lorafsm.events import ClaimReclaim, OwnerExpired
from lorafsm.identity import VersionKey
from lorafsm.lifecycle import VersionState
from lorafsm.orders import Unload
from lorafsm.outcomes import Code
from lorafsm_asyncio.client import RegistryClient, RegistryUnavailable
from lorafsm_asyncio.errands import Errands, Executor, Name
from lorafsm_asyncio.notices import Notice, Notify, log_notice
from lorafsm_asyncio.owner import monotonic_ms
from lorafsm_asyncio.questions import ExpiredOwners, ReclaimerOrders, StatusAt, VersionOf
from lorafsm_asyncio.refusals import Refused
from lorafsm_asyncio.rounds import Rounds, Told, untold

_RIDS_SHOWN = 8


@define
class _Drain:
    """An unload that takes long: when it is named next (ms of waiting), and the task that is naming it."""

    next_at: int
    naming: asyncio.Task[None] | None = None


class Reclaimer:
    """Claims what nobody holds any more and orders its unload, engine by engine, until each one confirmed.

    A drain that takes longer than `stuck_after_ms` is named by a RECLAIM_STUCK notice: engine, requests, age; again
    after twice the time.  Drains of a minute and more are normal (the RFC saw 93.6 s).
    """

    def __init__(
        self,
        client: RegistryClient,
        engines: Mapping[str, Executor],
        *,
        stuck_after_ms: int = 120_000,
        clock: Callable[[], int] = monotonic_ms,
        notify: Notify = log_notice,
        told: Told = untold,
    ) -> None:
        self.client = client
        self._engines = engines
        self._stuck_after = stuck_after_ms
        self._clock = clock
        self._notify = notify
        self._told = told

    async def run(self) -> None:
        """Until cancelled: expire owners whose lease ran out (rule 9), claim, unload, confirm (rules 11-13)."""
        errands = self._errands()
        drains: dict[Name, _Drain] = {}

        async def wanted() -> tuple[Any, ...]:
            now = self._clock()
            self._name_drains(errands, drains)
            gone = await self.client.ask(ExpiredOwners(now))
            orders = await self.client.ask(ReclaimerOrders(now))
            return (*(OwnerExpired(owner=owner, now=now) for owner in gone), *orders)

        try:
            await self._rounds(errands).go(wanted)
        finally:
            await _dropped(drains)

    async def reclaim(self, key: VersionKey, *, patience: int | None = 30) -> VersionState:
        """Reclaim this one version now and wait for its end: RECLAIMED.

        Raises Refused (SESSION_REFS_HELD, NOT_RETIRED, UNKNOWN_VERSION), and EngineSilent after `patience` repeats of
        an unload without a result (None: never).
        """
        version = await self.client.ask(VersionOf(key))
        if version is None:
            raise Refused(Code.UNKNOWN_VERSION, f"{key} was never reserved", "key")
        if version.session_refs:
            raise Refused(Code.SESSION_REFS_HELD, f"{version.session_refs} session(s) hold {key}", "key")
        if version.state not in (VersionState.RETIRED, VersionState.RECLAIMING, VersionState.RECLAIMED):
            raise Refused(Code.NOT_RETIRED, f"{key} is {version.state}; only a RETIRED version is reclaimed", "key")
        errands = self._errands()
        drains: dict[Name, _Drain] = {}

        async def wanted() -> tuple[Any, ...]:
            self._name_drains(errands, drains)
            orders = await self.client.ask(ReclaimerOrders(self._clock()))
            return tuple(each for each in orders if isinstance(each, Unload | ClaimReclaim) and each.key == key)

        async def is_done() -> bool:
            now = await self.client.ask(VersionOf(key))
            return now is not None and now.state is VersionState.RECLAIMED

        try:
            await self._rounds(errands).go(wanted, is_done, patience)
        finally:
            await _dropped(drains)
        return VersionState.RECLAIMED

    def _errands(self) -> Errands:
        return Errands(self._engines, self._clock, self._notify)

    def _rounds(self, errands: Errands) -> Rounds:
        return Rounds(self.client, errands, self._notify, self._told)

    # -- who holds it up --------------------------------------------------------------------------------

    def _name_drains(self, errands: Errands, drains: dict[Name, _Drain]) -> None:
        for name in drains.keys() - errands.running.keys():
            if errands.waited(name) == 0:  # not wanted any more: it was confirmed
                drains.pop(name)
        for name, errand in errands.running.items():
            drain = drains.setdefault(name, _Drain(self._stuck_after))
            waited = errands.waited(name)
            if waited < drain.next_at or not isinstance(errand.order, Unload):
                continue
            if drain.naming is None or drain.naming.done():
                drain.next_at = max(2 * drain.next_at, waited)
                drain.naming = asyncio.create_task(self._name_one(errand.order, waited))

    async def _name_one(self, order: Unload, waited: int) -> None:
        try:
            status = await self.client.ask(StatusAt(self._clock()))
        except RegistryUnavailable:
            age = waited
        else:  # since the claim, whoever made it: a restarted reclaimer has not waited that long itself
            age = max([waited, *(line.age for line in status.reclaims if line.key == order.key)])
        rids = await holders(self._engines.get(order.engine), order.lora_name)
        held = f"requests {', '.join(rids)}" if rids else "no request that it names"
        text = f"{order.key} on {order.engine} is not unloaded after {age} ms: held by {held}"
        self._notify(Notice("RECLAIM_STUCK", text, order.engine))


async def holders(executor: object, lora_name: str) -> tuple[str, ...]:
    """The rids that hold a version on an engine, by its own word; empty where it cannot say."""
    if not hasattr(executor, "status"):
        return ()
    try:
        status: Mapping[str, Any] = await executor.status()
        lines = [line for line in status.get("adapters", ()) if line.get("lora_name") == lora_name]
        return tuple(str(rid) for line in lines for rid in line.get("held_by", ()))[:_RIDS_SHOWN]
    except Exception:
        return ()  # this is for people only; whatever ails the engine shows in its orders


async def _dropped(drains: dict[Name, _Drain]) -> None:
    tasks = [drain.naming for drain in drains.values() if drain.naming is not None]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
