"""One engine's executor, first cut: carries the policies' orders out over `EnginePort` and answers with events.

It runs beside the engine, in the publisher's process.  An operation runs once: a repeat of an order joins the
running task or gets the stored answer (RFC 3.4).  What only a guard inside the engine can promise (no implicit
reload, requests that come around this port) is not promised here; `lorafsm_sglang`'s README says what is.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from attrs import define, evolve, field

from lorafsm.errors import LoraFsmError
from lorafsm.events import (
    Cleaned,
    ConfirmReclaim,
    EngineUp,
    Event,
    Prepared,
    Ready,
    ReclaimUnknown,
    RepairFailed,
    RepairReady,
    TargetFailed,
    TargetUnknown,
)
from lorafsm.identity import MANAGED_PREFIX, VersionKey
from lorafsm.orders import AskStatus, Begin, Cleanup, End, Load, Order, SendBucket, TakeInventory, Unload, UnloadStray
from lorafsm.records import Resident
from lorafsm_sglang.port import EnginePort
from lorafsm_sglang.replies import OK, Refused, Reply, Unknown

Observer: TypeAlias = Callable[[str, str, Awaitable[Any]], Awaitable[Any]]
"""Called with the operation's name, the lora_name and the call itself; returns the call's result."""


class ArtifactSource(Protocol):
    """The copies of versions on the engine's host (`lorafsm_torch.Replica`); each raises LoraFsmError."""

    def fetch(self, key: VersionKey, digest: str) -> None:
        """Copy the version to this host and prove the copy."""

    def check(self, lora_name: str, digest: str) -> Path:
        """The folder to load, proved again just now."""

    def discard(self, lora_name: str) -> None:
        """Remove the copy, damaged or not."""


async def _unobserved(op: str, lora_name: str, call: Awaitable[Any]) -> Any:
    return await call


@define
class StagedEngine:
    """Executor of orders for one incarnation of one engine.

    `clock` gives ms for the events.  Deadlines are in seconds; an unload may take as long as the engine's longest
    request.
    """

    engine: str
    incarnation: int
    port: EnginePort
    source: ArtifactSource
    base_fingerprint: str
    clock: Callable[[], int]
    visible_timeout_s: float = 5.0  # how long a begin looks for an artifact that is not visible yet
    load_timeout_s: float = 60.0
    unload_timeout_s: float = 600.0
    observe: Observer = _unobserved
    seq: int = 0
    loaded: dict[str, Resident] = field(factory=dict)  # by lora_name: what was asked of the engine, by which number
    fence: int = 0  # numbers up to here create nothing any more, unless they are under way
    tombstones: set[int] = field(factory=set)
    closed: set[str] = field(factory=set)  # lora_names that are reclaimed: never loaded again
    _operations: dict[str, asyncio.Task[Event | None]] = field(factory=dict)
    _turns: defaultdict[str, asyncio.Lock] = field(factory=lambda: defaultdict(asyncio.Lock))  # by lora_name

    async def carry_out(self, order: Order) -> Event | None:
        """The event that reports the order's result; None where there is nothing to report."""
        if isinstance(order, SendBucket):
            raise TypeError("SendBucket is an order to the transport")
        if order.incarnation != self.incarnation or order.engine != self.engine:
            return None  # another process's order: this one creates nothing and claims nothing
        match order:
            case TakeInventory():
                return await self._inventory()
            case AskStatus():
                return await self._status(order.number)
            case Begin():
                return await self._once(f"begin-{order.number}", self._begin(order))
            case End():
                return await self._once(f"end-{order.number}", self._end(order))
            case Load():
                return await self._once(f"load-{order.number}", self._repair(order))
            case Cleanup():
                return await self._once(f"cleanup-{order.number}", self._cleanup(order), repeat_unknown=True)
            case Unload():
                return await self._once(f"unload-{order.reclaim_id}", self._unload(order), repeat_unknown=True)
            case UnloadStray():
                return await self._once(order.operation_key, self._remove_stray(order), repeat_unknown=True)

    async def _once(
        self, operation: str, work: Coroutine[Any, Any, Event | None], *, repeat_unknown: bool = False
    ) -> Event | None:
        task = self._operations.get(operation)
        if task is not None and task.done() and repeat_unknown and _is_open(task):
            task = None
        if task is None:
            task = self._operations[operation] = asyncio.create_task(work, name=f"{self.engine} {operation}")
        else:
            work.close()
        return await asyncio.shield(task)

    async def _stored(self, operation: str) -> Event | None:
        task = self._operations.get(operation)
        return await asyncio.shield(task) if task is not None else None

    async def _status(self, number: int) -> Event | None:
        """What is stored of an attempt; that begin was accepted is still so, hence said with a fresh seq."""
        event = await self._stored(f"end-{number}") or await self._stored(f"begin-{number}")
        return evolve(event, seq=self._next_seq(), now=self.clock()) if isinstance(event, Prepared) else event

    def _next_seq(self) -> int:
        self.seq += 1
        return self.seq

    # -- publication ----------------------------------------------------------------------------------

    async def _begin(self, order: Begin) -> Event:
        if order.number in self.tombstones or order.number <= self.fence or order.lora_name in self.closed:
            return self._failed(order.number, "this number is fenced or its version closed; nothing was created")
        self.fence = order.number
        try:
            await self._fetch_when_visible(order)
        except (LoraFsmError, OSError) as error:
            return self._failed(order.number, f"the artifact could not be staged: {error}")
        return Prepared(
            number=order.number,
            engine=self.engine,
            incarnation=self.incarnation,
            seq=self._next_seq(),
            now=self.clock(),
        )

    async def _end(self, order: End) -> Event:
        if order.number in self.tombstones:
            return self._failed(order.number, "this number was cleaned; nothing was created")
        proof = await self._load_and_probe(order)
        if isinstance(proof, str):
            return self._failed(order.number, proof)
        if isinstance(proof, Unknown):
            return TargetUnknown(
                number=order.number, engine=self.engine, incarnation=self.incarnation, now=self.clock()
            )
        return Ready(
            number=order.number,
            engine=self.engine,
            incarnation=self.incarnation,
            seq=self._next_seq(),
            key=order.key,
            digest=order.digest,
            base_fingerprint=self.base_fingerprint,
            probe_ok=True,
            now=self.clock(),
        )

    async def _repair(self, order: Load) -> Event | None:
        failed: str | Unknown | None = "its version is closed" if order.lora_name in self.closed else None
        if failed is None:
            try:
                await self._fetch(order)
                failed = await self._load_and_probe(order)
            except (LoraFsmError, OSError) as error:
                failed = f"the artifact could not be staged: {error}"
        if isinstance(failed, Unknown):
            return None  # still ORDERED: the repeat of the order finds this stored and a new incarnation withdraws it
        common: dict[str, Any] = {
            "number": order.number,
            "engine": self.engine,
            "incarnation": self.incarnation,
            "seq": self._next_seq(),
        }
        if failed is not None:
            return RepairFailed(reason=failed[:512], now=self.clock(), **common)
        return RepairReady(
            key=order.key,
            digest=order.digest,
            base_fingerprint=self.base_fingerprint,
            probe_ok=True,
            now=self.clock(),
            **common,
        )

    async def _fetch_when_visible(self, order: Begin) -> None:
        """Fetch; an artifact that a shared file system does not show yet is looked for again, inside this attempt."""
        pause, left = 0.1, self.visible_timeout_s
        while True:
            try:
                return await self._fetch(order)
            except LoraFsmError as error:
                if error.code != "ARTIFACT_MISSING" or left <= 0:
                    raise
            wait = min(left, pause * random.uniform(0.5, 1.5))  # noqa: S311 - engines should not ask all at once
            await asyncio.sleep(wait)
            pause, left = pause * 2, left - wait

    async def _fetch(self, order: Begin | Load) -> None:
        copy = asyncio.to_thread(self.source.fetch, order.key, order.digest)
        await self.observe("begin", order.lora_name, copy)

    async def _load_and_probe(self, order: End | Load) -> str | Unknown | None:
        """None: loaded and probed.  A text: a clean no.  Bytes are verified before the engine is called."""
        async with self._turns[order.lora_name]:
            if order.lora_name in self.closed:
                return "its version is closed"
            return await self._load_and_probe_now(order)

    async def _load_and_probe_now(self, order: End | Load) -> str | Unknown | None:
        lora_name = order.lora_name
        check = asyncio.to_thread(self.source.check, lora_name, order.digest)
        try:
            folder: Path = await self.observe("verify", lora_name, check)
        except (LoraFsmError, OSError) as error:
            return str(error)
        # Noted before the call: an unknown load is this number's to remove, whenever it comes true.
        before = self.loaded.get(lora_name)
        self.loaded[lora_name] = Resident(order.key, order.digest, order.number)
        loaded: Reply[Any] = await self.observe(
            "load", lora_name, self.port.load(lora_name, folder, timeout_s=self.load_timeout_s)
        )
        if isinstance(loaded, Refused):
            if before is None:
                del self.loaded[lora_name]
            else:
                self.loaded[lora_name] = before
            return f"load refused: {loaded.message}"
        if isinstance(loaded, Unknown):
            return loaded
        probed: Reply[Any] = await self.observe("probe", lora_name, self.port.probe(lora_name, uuid.uuid4().hex))
        if isinstance(probed, Refused):
            return f"probe refused: {probed.message}"
        return probed if isinstance(probed, Unknown) else None

    async def _cleanup(self, order: Cleanup) -> Event:
        self.tombstones.add(order.number)
        for operation in (f"begin-{order.number}", f"end-{order.number}"):
            await self._stored(operation)  # a load that runs is awaited, never overtaken
        unknown = TargetUnknown(number=order.number, engine=self.engine, incarnation=self.incarnation, now=self.clock())
        async with self._turns[order.lora_name]:
            resident = self.loaded.get(order.lora_name)
            if resident is None and not await self._absent(order.lora_name):
                return unknown
            if resident is not None and resident.number == order.number and not await self._remove(order.lora_name):
                return unknown
            if order.lora_name not in self.loaded:
                try:
                    await asyncio.to_thread(self.source.discard, order.lora_name)
                except (LoraFsmError, OSError):
                    return unknown  # damaged bytes may still lie there
        return Cleaned(
            number=order.number,
            engine=self.engine,
            incarnation=self.incarnation,
            seq=self._next_seq(),
            now=self.clock(),
        )

    # -- reclaim and strays ---------------------------------------------------------------------------

    async def _unload(self, order: Unload) -> Event:
        self.closed.add(order.lora_name)
        unknown = ReclaimUnknown(
            reclaim_id=order.reclaim_id, engine=self.engine, incarnation=self.incarnation, now=self.clock()
        )
        async with self._turns[order.lora_name]:  # a load of it that runs is awaited; no other begins any more
            # What an executor before this one loaded must go as well; nobody can need a closed version.
            wanted = order.lora_name in self.loaded or not await self._absent(order.lora_name)
            if wanted and not await self._remove(order.lora_name):
                return unknown
        return ConfirmReclaim(
            reclaim_id=order.reclaim_id,
            engine=self.engine,
            incarnation=self.incarnation,
            seq=self._next_seq(),
            observed_absent=True,
            now=self.clock(),
        )

    async def _remove(self, lora_name: str) -> bool:
        """Unload, which waits for the engine's own requests; False: not known to be gone.

        A refusal is no failure by itself: the engine takes one unload after another, so a repeat of one whose
        answer was lost is refused once that one ended.  What the engine lists afterwards decides.
        """
        reply: Reply[Any] = await self.observe(
            "unload", lora_name, self.port.unload(lora_name, timeout_s=self.unload_timeout_s)
        )
        if isinstance(reply, Unknown) or not await self._absent(lora_name):
            return False
        self.loaded.pop(lora_name, None)
        return True

    async def _absent(self, lora_name: str) -> bool:
        """Whether the engine answers that it does not list the name."""
        listed = await self.port.models()
        return isinstance(listed, OK) and lora_name not in listed.data

    async def _remove_stray(self, order: UnloadStray) -> None:
        async with self._turns[order.lora_name]:
            resident = self.loaded.get(order.lora_name)
            if resident is not None and resident.number != order.number:
                return  # a later number loaded it again: not this stray
            await self._remove(order.lora_name)  # whether it is gone, the next inventory tells

    async def _inventory(self) -> EngineUp | None:
        seq = self._next_seq()
        listed = await self.port.models()
        if not isinstance(listed, OK):
            return None
        managed = {name for name in listed.data if name.startswith(MANAGED_PREFIX)}
        return EngineUp(
            engine=self.engine,
            incarnation=self.incarnation,
            seq=seq,
            base_fingerprint=self.base_fingerprint,
            residents=frozenset(self.loaded[name] for name in managed & set(self.loaded)),
            foreign=frozenset(managed - set(self.loaded)),
            now=self.clock(),
        )

    def _failed(self, number: int, reason: str) -> TargetFailed:
        return TargetFailed(
            number=number,
            engine=self.engine,
            incarnation=self.incarnation,
            seq=self._next_seq(),
            reason=" ".join(reason.split())[:512],
            now=self.clock(),
        )


def _is_open(task: asyncio.Task[Event | None]) -> bool:
    """Whether the operation ended without saying how: a repeat of the order runs it again."""
    if task.cancelled() or task.exception() is not None:
        return True
    event = task.result()
    return event is None or isinstance(event, TargetUnknown | ReclaimUnknown)
