"""Runs the engine agent inside SGLang's process: takes orders and requests, does the agent's actions, each once.

Everything here happens on SGLang's own event loop; only file work goes to threads.  An order's caller may go away
at any time: what was started goes on in a task of its own and its result is the agent's to remember.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from attrs import evolve, frozen

from lorafsm.engine import actions as act
from lorafsm.engine import agent_step
from lorafsm.engine import orders as inp
from lorafsm.engine.answers import AgentCode, Answer, Cleaned, Failed, Pending, Prepared, Refused, Unloaded
from lorafsm.engine.lifecycle import WorkState
from lorafsm.engine.orders import RESULTS, EngineOrder, Input
from lorafsm.engine.records import Agent
from lorafsm.errors import LoraFsmError
from lorafsm.identity import VersionKey
from lorafsm.orders import Begin, Cleanup, End, Load, TakeInventory, Unload
from lorafsm_sglang.guard.receiving import Receiving
from lorafsm_sglang.guard.stash import Stash

log = logging.getLogger(__name__)

T = TypeVar("T")

LONGEST_WAIT_S = 60.0  # of one call; a caller that wants to wait longer asks again
_LOOK_AGAIN_S = 0.25
_KEPT_OPERATIONS = 512


@frozen
class Loaded:
    """What a load left behind: whether the adapter is observed there, and what went wrong (None: nothing)."""

    present: bool
    fault: str | None = None


class EngineSide(Protocol):
    """What the executor asks of SGLang; nothing of it is ever cancelled."""

    async def load(self, lora_name: str, folder: Path) -> Loaded:
        """One fresh pinned load."""

    async def probe(self, lora_name: str) -> str | None:
        """One token under exactly this adapter; None, or what went wrong."""

    async def unregister(self, lora_name: str) -> None:
        """Take the name away from requests."""

    async def count(self, lora_name: str) -> int | None:
        """SGLang's own count of requests, waiting a little for zero; None: not readable."""

    async def unload(self, lora_name: str) -> bool:
        """The physical unload; whether the adapter was then observed absent."""

    def listing(self) -> Coroutine[Any, Any, frozenset[str] | None]:
        """Managed names in memory; None: SGLang did not say."""


class Source(Protocol):
    """The artifact store as this host sees it (`lorafsm_torch.Replica`); each raises LoraFsmError."""

    def fetch(self, key: VersionKey, digest: str) -> None:
        """Copy the version to this host and prove the copy."""

    def check(self, lora_name: str, digest: str) -> Path:
        """The folder to load, proved again just now."""

    def discard(self, lora_name: str) -> None:
        """Remove the copy, damaged or not."""


@frozen
class Operation:
    """One thing that was done to the engine; times are seconds on the host's monotonic clock."""

    index: int
    op: str  # fetch, verify, load, probe, unload
    lora_name: str
    start: float
    end: float
    fault: str | None


class Executor:
    """One incarnation's agent and what runs for it."""

    def __init__(self, agent: Agent, side: EngineSide, source: Source, stash: Stash) -> None:
        self.agent = agent
        self.operations: deque[Operation] = deque(maxlen=_KEPT_OPERATIONS)
        self.quarantine: list[act.AskQuarantine] = []
        self._side, self._source, self._stash = side, source, stash
        self._receiving = Receiving(stash.folder / "received", agent.engine, agent.incarnation, self.give)
        self._tasks: set[asyncio.Task[None]] = set()
        self._fetches: dict[int, asyncio.Task[None]] = {}
        self._broken: dict[int, str] = {}  # by number: present, but not what was asked for
        self._news = asyncio.Event()
        self._done = 0

    # -- orders and requests --------------------------------------------------------------------------

    def give(self, item: Input) -> Answer:
        """One step, without waiting for anything; its actions start at once."""
        done = agent_step(self.agent, item)
        self.agent = done.agent
        for action in done.actions:
            self._start(action)
        if done.actions or isinstance(item, RESULTS):
            self._news.set()
            self._news = asyncio.Event()
        return done.answer

    async def carry_out(self, order: EngineOrder, wait_s: float = 0.0, transfer: object = None) -> Answer:
        """Give the order, and give it again while it is Pending and time is left; at most `LONGEST_WAIT_S`.

        `transfer` is the announcement that comes with a Begin whose buckets come over torch.distributed.
        """
        end = time.monotonic() + min(wait_s, LONGEST_WAIT_S)
        if isinstance(order, Begin) and transfer is not None:
            return await self._begin(order, transfer)
        if isinstance(order, TakeInventory):
            await self.list_names()
        while True:
            news, answer = self._news, self.give(order)
            if isinstance(order, Begin) and isinstance(answer, Prepared):
                await self._fetched(order, end)
                return answer
            left = end - time.monotonic()
            if not isinstance(answer, Pending) or left <= 0:
                break
            # Time alone can change a count that leaks, so the order is given again without news as well.
            with suppress(TimeoutError):
                await asyncio.wait_for(news.wait(), min(left, _LOOK_AGAIN_S))
        if isinstance(order, Cleanup | Unload | End | Load) and isinstance(answer, Cleaned | Unloaded | Failed):
            await self._discard(order.lora_name)
        return answer

    async def _begin(self, order: Begin, transfer: object) -> Answer:
        """Check and hold what the announcement needs, then let the agent decide."""
        known = order.number in self.agent.works
        try:
            await asyncio.shield(self._owned(self._receiving.prepare(transfer, order), "announcement"))
        except LoraFsmError as error:
            return Refused(
                code=AgentCode.NO_RESOURCES,
                reason=_text(str(error))[:400],
                incarnation=self.agent.incarnation,
                seq=self.agent.seq,
                number=order.number,
            )
        answer = self.give(order)
        if not known and not isinstance(answer, Prepared):
            self._receiving.drop(order.number)
        return answer

    async def deliver(self, number: int, bucket: int, data: bytes) -> None:
        """The bytes of a bucket whose receive is posted; StashError otherwise."""
        await self._stash.deliver(number, bucket, data)

    async def list_names(self) -> None:
        """Let the agent see what SGLang really holds."""
        seq = self.agent.seq
        names = await asyncio.shield(self._owned(self._side.listing(), "listing"))
        if names is not None:
            self.give(inp.Listed(names=names, seq=seq))

    def with_base(self, fingerprint: str) -> None:
        """From now on READY is proved over this base."""
        self.agent = evolve(self.agent, base_fingerprint=fingerprint)

    @property
    def stash_folder(self) -> Path:
        """Where this process receives buckets."""
        return self._stash.folder

    @property
    def in_use(self) -> bool:
        """Whether anything managed is here or on its way: the base must then stay as it is."""
        return bool(self.agent.adapters or self.agent.works)

    async def settle_tasks(self) -> None:
        """Wait until nothing runs any more (for tests and shutdown)."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    # -- actions --------------------------------------------------------------------------------------

    def _start(self, action: act.Action) -> None:
        match action:
            case act.PostReceive() if action.number in self._receiving:
                self._receiving.post(action.number, action.bucket)
            case act.PostReceive():
                self._run(self._receive(action), action)
            case act.AbortCommunicator():
                self._receiving.abort(action.number)
                self._stash.abort(action.number)
            case act.DropStash():
                self._receiving.drop(action.number)
                self._stash.drop(action.number)
            case act.StartLoad():
                self._run(self._load(action), action)
            case act.Probe():
                self._run(self._probe(action), action)
            case act.Unregister():
                self._run(self._unregister(action.lora_name), action)
            case act.CountRequests():
                self._run(self._count(action.lora_name), action)
            case act.PhysicalUnload():
                self._run(self._unload(action.lora_name), action)
            case act.TakeListing():
                self._run(self.list_names(), action)
            case act.AskQuarantine():
                log.error("this engine broke a promise: %s", action.reason)
                self.quarantine.append(action)

    def _run(self, work: Coroutine[Any, Any, None], action: act.Action) -> None:
        task = asyncio.get_running_loop().create_task(work, name=f"lorafsm {action}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s ended without a result", task.get_name(), exc_info=error)

    def _owned(self, call: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """A task that nobody's cancellation reaches."""
        task = asyncio.get_running_loop().create_task(call, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _receive(self, action: act.PostReceive) -> None:
        fault = await self._stash.receive(action.number, action.bucket)
        self.give(inp.BucketFinished(number=action.number, bucket=action.bucket, ok=fault is None, detail=_text(fault)))

    async def _load(self, action: act.StartLoad) -> None:
        try:
            folder = await self._staged(action)
        except (LoraFsmError, OSError) as error:
            self.give(inp.LoadFinished(number=action.number, ok=False, detail=_text(str(error))))
            return
        try:
            loaded = await self._timed("load", action.lora_name, self._side.load(action.lora_name, folder), _fault_of)
        except Exception as error:  # whatever SGLang raised: what it holds now decides
            log.exception("the load of %s did not end", action.lora_name)
            names = await self._side.listing()
            loaded = Loaded(names is None or action.lora_name in names, f"{type(error).__name__}: {error}")
        if loaded.present and loaded.fault:
            self._broken[action.number] = loaded.fault
        self.give(inp.LoadFinished(number=action.number, ok=loaded.present, detail=_text(loaded.fault)))

    async def _staged(self, action: act.StartLoad) -> Path:
        """The folder to load, every byte proved against the digest just now."""
        if action.source == "stash":
            put_together = self._receiving.sealed if action.number in self._receiving else self._stash.assemble
            call = asyncio.to_thread(put_together, action.number, action.digest)
            return await self._timed("verify", action.lora_name, call)
        try:
            await asyncio.shield(self._fetch(action.number, action.key, action.digest, action.lora_name))
        finally:
            self._fetches.pop(action.number, None)
        call = asyncio.to_thread(self._source.check, action.lora_name, action.digest)
        return await self._timed("verify", action.lora_name, call)

    def _fetch(self, number: int, key: VersionKey, digest: str, lora_name: str) -> asyncio.Task[None]:
        task = self._fetches.get(number)
        if task is None:
            call = asyncio.to_thread(self._source.fetch, key, digest)
            task = self._fetches[number] = asyncio.create_task(self._timed("fetch", lora_name, call))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # read where it is awaited
        return task

    async def _fetched(self, order: Begin, end: float) -> None:
        """Copy ahead while the caller waits; how it went decides the load, not the begin."""
        if order.plan.buckets == 0:
            task = self._fetch(order.number, order.key, order.digest, order.lora_name)
            await asyncio.wait({task}, timeout=max(0.0, end - time.monotonic()))

    async def _discard(self, lora_name: str) -> None:
        """The host's copy is not needed any more, unless another number of the name still stands."""
        still = any(w.lora_name == lora_name and w.state is not WorkState.FAILED for w in self.agent.works.values())
        if not still and lora_name not in self.agent.adapters:
            with suppress(LoraFsmError, OSError):  # left behind, not served: the next fetch proves what it finds
                await asyncio.to_thread(self._source.discard, lora_name)

    async def _probe(self, action: act.Probe) -> None:
        fault = self._broken.pop(action.number, None)
        if fault is None:
            fault = await self._timed("probe", action.lora_name, self._side.probe(action.lora_name), lambda said: said)
        self.give(inp.ProbeFinished(number=action.number, ok=fault is None, detail=_text(fault)))

    async def _unregister(self, lora_name: str) -> None:
        try:
            await self._side.unregister(lora_name)
        except Exception:  # the agent admits nobody any more; SGLang's own count is still asked for
            log.exception("%s could not be unregistered", lora_name)
        self.give(inp.Unregistered(lora_name=lora_name))

    async def _count(self, lora_name: str) -> None:
        try:
            count = await self._side.count(lora_name)
        except Exception:
            log.exception("the requests of %s could not be counted", lora_name)
            count = None
        self.give(inp.Counted(lora_name=lora_name, count=count))

    async def _unload(self, lora_name: str) -> None:
        def fault(absent: bool) -> str | None:
            return None if absent else "still there"

        try:
            absent = await self._timed("unload", lora_name, self._side.unload(lora_name), fault)
        except Exception:
            log.exception("the unload of %s did not end", lora_name)
            absent = False
        self.give(inp.UnloadFinished(lora_name=lora_name, absent=absent))

    async def _timed(
        self, op: str, lora_name: str, call: Awaitable[T], fault_of: Callable[[T], str | None] = lambda _: None
    ) -> T:
        start, fault = time.monotonic(), "did not end"
        try:
            result = await call
            fault = fault_of(result) or ""
            return result
        except Exception as error:
            fault = str(error) or type(error).__name__
            raise
        finally:
            self._done += 1
            self.operations.append(Operation(self._done, op, lora_name, start, time.monotonic(), fault or None))


def _fault_of(loaded: Loaded) -> str | None:
    return loaded.fault


def _text(fault: str | None) -> str:
    """At most 512 printable characters, whatever SGLang or the file system said."""
    return "".join(c if c.isprintable() else " " for c in fault or "")[:512]
