"""Rank 0's part of a publication: freeze, reserve, store, drive, and say for certain how it ended (RFC 3, 6).

The registry has the last word: what a driver raised or a reply that was lost decides nothing, the attempt's stored
outcome does (`AttemptOutcome`).  Blocking, for a training process without an event loop of its own.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError
from contextlib import nullcontext
from typing import Any, TypeAlias, TypeVar

from attrs import define, field

from lorafsm.errors import LoraFsmError
from lorafsm.events import Abort, ArtifactStored, Event, Reserve, Takeover
from lorafsm.identity import VersionKey
from lorafsm.lifecycle import VersionState
from lorafsm.manifest import Plan, store_plan
from lorafsm.outcomes import Aborted, Code, Committed, Outcome, Refusal, Reserved, TakenOver, VersionStatus
from lorafsm_asyncio import Publisher, RegistryClient, RegistryUnavailable
from lorafsm_asyncio.questions import AttemptOutcome, Question, VersionOf
from lorafsm_torch.bucket_sender import BucketSender
from lorafsm_torch.freeze import Snapshot, freeze_snapshot
from lorafsm_torch.ranks import Exported, Flag, StepResult
from lorafsm_torch.store import ArtifactStore

log = logging.getLogger(__name__)

T = TypeVar("T")

Drive: TypeAlias = Callable[[Reserved | TakenOver, str, Snapshot], Awaitable[object]]
"""(attempt, token, snapshot): carry out everything that the publisher's policy orders of its attempt, until it
orders nothing more.  May be called again, may raise, may be cancelled."""

_NO_SLOT = frozenset({Code.CAPACITY_ERROR, Code.PUBLICATION_UNRESOLVED, Code.PUBLICATION_IN_PROGRESS})
_AGAIN_S = 0.05
_SERVED = frozenset(
    {VersionState.PUBLISHED, VersionState.RETIRED, VersionState.RECLAIMING, VersionState.RECLAIMED}
)  # it was the default once; publishing it again changes nothing (RFC 3.4)


def driven_by(publisher: Publisher, sender: BucketSender) -> Drive:
    """The publisher service, with this sender's buckets; its `send` is the sender's."""

    async def drive(attempt: Reserved | TakenOver, token: str, snapshot: Snapshot) -> None:
        # After a takeover no bucket is authorised any more (rule 5): there is nothing to stand ready for.
        ready = sender.attempt(attempt, token, snapshot) if isinstance(attempt, Reserved) else nullcontext()
        with ready:
            await publisher.publish(attempt.key, token)

    return drive


class EventLoop:
    """An event loop on a thread of its own, for code that may not wait for ever."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="lorafsm-loop", daemon=True).start()

    def run(self, work: Coroutine[Any, Any, T], deadline_s: float) -> T:
        """The result; TimeoutError after the deadline, the work cancelled then."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(deadline_s)
        except (TimeoutError, CancelledError) as error:
            future.cancel()
            raise TimeoutError(f"no end within {deadline_s:g} s") from error


@define
class RegistryPublisher:
    """Publishes what rank 0 has exported; `refused` counts the registry's refusals by code.

    `share_s` of a publication's deadline (seconds) are kept for giving up: abort and cleanup.  `plan` answers how
    the snapshot travels; engines that read the artifact store need no bucket.
    """

    client: RegistryClient
    epoch: str
    store: ArtifactStore
    drive: Drive
    clock: Callable[[], int]
    plan: Callable[[Snapshot], Plan] = lambda _: store_plan()
    registry_s: float = 30.0
    share_s: float = 30.0
    refused: Counter[str] = field(factory=Counter)
    _loop: EventLoop = field(factory=EventLoop)

    def publish(self, version_id: int, exported: Exported, deadline_s: float) -> StepResult:
        """As `ranks.Publisher`; raises nothing but bugs."""
        config, tensors = exported
        try:
            snapshot = freeze_snapshot(config, tensors)
            key = VersionKey(self.epoch, version_id)
        except LoraFsmError as error:
            return StepResult(Flag.FAILED_CLEAN, f"nothing was begun: {error}")
        try:
            return self._loop.run(self._publish(key, snapshot, time.monotonic() + deadline_s), deadline_s + 1)
        except TimeoutError as error:
            return StepResult(Flag.FATAL, f"UNRESOLVED {key}: {error}")

    async def _publish(self, key: VersionKey, snapshot: Snapshot, until: float) -> StepResult:
        token = secrets.token_hex(16)
        reserve = Reserve(
            key=key,
            digest=snapshot.digest,
            plan=self.plan(snapshot),
            token=token,
            tensors=len(snapshot.manifest.tensors),
            nbytes=snapshot.manifest.nbytes,
            now=self.clock(),
        )
        try:
            outcome = await self._apply(reserve, min(until, time.monotonic() + self.registry_s))
        except RegistryUnavailable as error:
            # Should it have arrived all the same: no engine heard of it, and its lease runs out (rule 5).
            return StepResult(Flag.FAILED_CLEAN, f"nothing was begun: {error}")
        if isinstance(outcome, Refusal):
            self.refused[outcome.code] += 1
            flag = Flag.SKIPPED_CAPACITY if outcome.code in _NO_SLOT else Flag.FAILED_CLEAN
            return StepResult(flag, str(outcome))
        if isinstance(outcome, VersionStatus):
            if outcome.state in _SERVED:
                return StepResult(Flag.OK, f"NO_OP: {key} was published already")
            return await self._continued(key, outcome.number, snapshot, until)
        assert isinstance(outcome, Reserved)
        return await self._driven(outcome, token, snapshot, until)

    async def _continued(self, key: VersionKey, number: int, snapshot: Snapshot, until: float) -> StepResult:
        """An attempt of a driver that may be dead: taken over once its lease has run out (rule 5)."""
        token = secrets.token_hex(16)
        try:
            while time.monotonic() < until - self.share_s:
                outcome = await self._apply(Takeover(key=key, token=token, now=self.clock()), until)
                if isinstance(outcome, TakenOver):
                    return await self._driven(outcome, token, snapshot, until)
                if outcome.code is not Code.DRIVER_ALIVE:
                    break
                await asyncio.sleep(_AGAIN_S)
        except RegistryUnavailable as error:
            return StepResult(Flag.FATAL, f"UNRESOLVED {key}: {error}")
        return await self._ended(key, number, None, until)

    async def _driven(self, attempt: Reserved | TakenOver, token: str, snapshot: Snapshot, until: float) -> StepResult:
        key, number, fault = attempt.key, attempt.number, ""
        try:
            async with asyncio.timeout(max(0.0, until - self.share_s - time.monotonic())):
                await asyncio.to_thread(self.store.put, key, snapshot)
                stored = ArtifactStored(key=key, digest=snapshot.digest, now=self.clock())
                await self._apply(stored, until - self.share_s)
                await self.drive(attempt, token, snapshot)
        except TimeoutError:
            fault = "the publication's deadline passed"
        except Exception as error:
            log.exception("the publication of %s broke off", key)
            fault = f"{type(error).__name__}: {error}"
        try:
            outcome = await self._ask(AttemptOutcome(number), until)
            if outcome is None:
                why = fault or "the driver stopped before the end"
                abort = Abort(key=key, token=token, reason=why[:400], now=self.clock())
                await self._apply(abort, until)  # refused where it was committed meanwhile: asked again below
            if not isinstance(outcome, Committed):
                await self._cleaned_up(attempt, token, snapshot, until)
        except RegistryUnavailable as error:
            return StepResult(Flag.FATAL, f"UNRESOLVED {key}: {fault or error}")
        return await self._ended(key, number, fault, until)

    async def _cleaned_up(self, attempt: Reserved | TakenOver, token: str, snapshot: Snapshot, until: float) -> None:
        """Let the policy order the cleanup; the registry says later how far that came."""
        try:
            async with asyncio.timeout(max(0.0, until - time.monotonic())):
                await self.drive(attempt, token, snapshot)
        except Exception:
            log.exception("the cleanup of %s broke off; whoever drives next goes on", attempt.key)

    async def _ended(self, key: VersionKey, number: int, fault: str | None, until: float) -> StepResult:
        """The registry's word on an attempt, waited for while it is another driver's; `fault` is None then."""
        try:
            while True:
                outcome = await self._ask(AttemptOutcome(number), until)
                version = await self._ask(VersionOf(key), until)
                if isinstance(outcome, Committed):
                    return StepResult(Flag.OK, f"{key} is the default, revision {outcome.revision}")
                clean = version is not None and version.state is VersionState.FAILED_CLEAN
                over = time.monotonic() >= until
                if isinstance(outcome, Aborted) and (clean or over or fault is not None):
                    left = "" if clean else "; its slot is held until every engine has confirmed its cleanup"
                    return StepResult(Flag.FAILED_CLEAN, f"{key} was aborted: {outcome.reason}{left}")
                if over:
                    return StepResult(Flag.FATAL, f"UNRESOLVED {key}: attempt {number} is still open")
                await asyncio.sleep(_AGAIN_S)
        except RegistryUnavailable as error:
            return StepResult(Flag.FATAL, f"UNRESOLVED {key}: {error}")

    async def _apply(self, event: Event, until: float) -> Outcome:
        return await self._until(until, lambda: self.client.apply(event))

    async def _ask(self, question: Question[T], until: float) -> T:
        return await self._until(until, lambda: self.client.ask(question))

    async def _until(self, until: float, call: Callable[[], Awaitable[T]]) -> T:
        """Call until there is an answer: each call may be repeated (rules 1, 3), and one whose reply was lost is."""
        while True:
            try:
                async with asyncio.timeout(max(0.0, until - time.monotonic())):
                    return await call()
            except TimeoutError:
                raise RegistryUnavailable("the registry did not answer in time") from None
            except RegistryUnavailable:
                if time.monotonic() + _AGAIN_S >= until:
                    raise
                await asyncio.sleep(_AGAIN_S)
