"""The source's side of `SendBucket` orders, for any asyncio driver: arm, authorise, broadcast once, results (rule 6).

    sender = BucketSender(lobby, engines, apply, clock)
    with sender.attempt(reserved, token, snapshot):       # from the reserve to the end of the attempt
        ...                                               # begins carry `sender.announcement(begin)`
        events = await sender.send(order)                 # told to the registry by the driver

What blocks runs on threads; the driver's event loop, which serves begins, ends and other engines, goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias

from attrs import define, frozen

from lorafsm.engine.answers import Answer, Armed, BucketDone
from lorafsm.engine.orders import ArmBucket, EngineOrder, ReceiveBucket
from lorafsm.engine.report import as_event
from lorafsm.errors import LoraFsmError
from lorafsm.events import Abort, AuthorizeBucket, Event
from lorafsm.identity import VersionKey
from lorafsm.manifest import Plan
from lorafsm.orders import Begin, SendBucket
from lorafsm.outcomes import Authorized, Outcome, Reserved
from lorafsm_torch.announcement import Announcement
from lorafsm_torch.deadlines import Deadlines
from lorafsm_torch.errors import TransferCode, TransferError
from lorafsm_torch.freeze import Snapshot
from lorafsm_torch.plan import DEFAULT_CAP, bucket_plan
from lorafsm_torch.rounds import send_bucket
from lorafsm_torch.sender import Lobby, Sender

Apply: TypeAlias = Callable[[Event], Awaitable[Outcome]]
"""Tell the registry, journaled before the answer (`RegistryClient.apply`)."""


class Gives(Protocol):
    """An engine's agent behind its wire (`lorafsm_sglang.guard.GuardedEngine`)."""

    async def give(self, order: EngineOrder, wait_s: float = 0.0) -> Answer | None:
        """One call; None where no answer came."""


@frozen
class Step:
    """What one engine did for one bucket: `op` is arm or bucket; times in seconds of the monotonic clock."""

    engine: str
    key: VersionKey
    bucket: int
    op: str
    start: float
    end: float
    ok: bool


@define
class _Attempt:
    reserved: Reserved
    token: str
    sender: Sender
    joined: bool = False


@define
class _Port:
    """One engine as `send_bucket` sees it, from a thread."""

    engine: str
    incarnation: int
    attempt: _Attempt
    agent: Gives
    loop: asyncio.AbstractEventLoop
    told: Callable[[Step], None]
    deadline_s: float
    armed_at: float = 0.0

    def arm(self, number: int, bucket: int) -> Answer:
        start = time.monotonic()
        answer = self._give(ArmBucket(**self._to(number), bucket=bucket), 0.0)
        self.armed_at = time.monotonic()
        self._tell(bucket, "arm", start, isinstance(answer, Armed))
        return answer

    def receive(self, number: int, bucket: int, wait_s: float) -> Answer:
        answer = self._give(ReceiveBucket(**self._to(number), bucket=bucket), wait_s)
        self._tell(bucket, "bucket", self.armed_at, isinstance(answer, BucketDone))
        return answer

    def _give(self, order: EngineOrder, wait_s: float) -> Answer:
        asked = asyncio.run_coroutine_threadsafe(self.agent.give(order, wait_s), self.loop)
        answer = asked.result(wait_s + self.deadline_s)
        if answer is None:
            raise TransferError(TransferCode.NOT_RECEIVED, "no answer came", self.engine)
        return answer

    def _to(self, number: int) -> dict[str, Any]:
        epoch = self.attempt.reserved.key.epoch
        return {"epoch": epoch, "engine": self.engine, "incarnation": self.incarnation, "number": number}

    def _tell(self, bucket: int, op: str, start: float, ok: bool) -> None:
        step = Step(self.engine, self.attempt.reserved.key, bucket, op, start, time.monotonic(), ok)
        self.loop.call_soon_threadsafe(self.told, step)


class BucketSender:
    """Carries out `SendBucket` orders of the attempts that are open here.

    `engines` is looked up at each bucket.  `cap` is the largest bucket in bytes; `told` hears of every step, on the
    event loop.
    """

    def __init__(
        self,
        lobby: Lobby,
        engines: Mapping[str, Gives],
        apply: Apply,
        clock: Callable[[], int],
        *,
        cap: int = DEFAULT_CAP,
        backend: str = "gloo",
        deadlines: Deadlines = Deadlines(),  # noqa: B008 - frozen
        told: Callable[[Step], None] = lambda _: None,
    ) -> None:
        self._lobby, self._engines, self._apply, self._clock = lobby, engines, apply, clock
        self._cap, self._backend, self._deadlines, self._told = cap, backend, deadlines, told
        self._attempts: dict[int, _Attempt] = {}

    def plan(self, snapshot: Snapshot) -> Plan:
        """The plan to reserve with (rule 1)."""
        return bucket_plan(snapshot.manifest, self._cap).plan

    @contextmanager
    def attempt(self, reserved: Reserved, token: str, snapshot: Snapshot) -> Iterator[Announcement]:
        """Stand ready for this attempt's buckets; at the end nothing of its group is left."""
        announcement = Announcement(
            epoch=reserved.key.epoch,
            number=reserved.number,
            manifest=snapshot.manifest,
            cap=self._cap,
            engines=reserved.targets,
            meeting=self._lobby.meeting(reserved.key.epoch, reserved.number, self._backend),
        )
        with Sender(snapshot, announcement, deadlines=self._deadlines) as sender:
            self._attempts[reserved.number] = _Attempt(reserved, token, sender)
            try:
                yield announcement
            finally:
                del self._attempts[reserved.number]

    def announcement(self, begin: Begin) -> Mapping[str, Any] | None:
        """The document that goes with a begin; None for an attempt that is not open here."""
        attempt = self._attempts.get(begin.number)
        return None if attempt is None else attempt.sender.announcement.render()

    async def send(self, order: SendBucket) -> Sequence[Event]:
        """The events that came of it: each engine's BucketDone, or the attempt's abort, since no bucket is sent twice.

        Nothing for an attempt that is not open here: its lease runs out, and the policy gives it up (rule 5).
        """
        attempt = self._attempts.get(order.number)
        if attempt is None:
            return ()
        loop = asyncio.get_running_loop()
        try:
            answers = await asyncio.to_thread(self._round, attempt, order.bucket, loop)
        except Exception as error:  # whatever it was: the bucket may be on its way, so the attempt is over
            attempt.sender.abort(str(error)[:400])
            return (self._abort(attempt, order.bucket, error),)
        events = (as_event(answer, engine, self._clock()) for engine, answer in sorted(answers.items()))
        return tuple(event for event in events if event is not None)

    def _round(self, attempt: _Attempt, bucket: int, loop: asyncio.AbstractEventLoop) -> Mapping[str, Answer]:
        if not attempt.joined:
            attempt.sender.join()
            attempt.joined = True
        limit = self._deadlines
        ports = [
            _Port(engine, incarnation, attempt, self._engines[engine], loop, self._told, limit.arm)
            for engine, incarnation in attempt.reserved.targets
        ]

        def authorize() -> None:
            outcome = asyncio.run_coroutine_threadsafe(self._authorized(attempt, bucket), loop).result(limit.settle)
            if not isinstance(outcome, Authorized):
                raise TransferError(TransferCode.ABORTED, f"the registry did not authorise it: {outcome}", "bucket")

        return send_bucket(attempt.sender, ports, bucket, authorize, deadlines=limit).answers

    async def _authorized(self, attempt: _Attempt, bucket: int) -> Outcome:
        number, token = attempt.reserved.number, attempt.token
        return await self._apply(AuthorizeBucket(number=number, token=token, bucket=bucket, now=self._clock()))

    def _abort(self, attempt: _Attempt, bucket: int, error: Exception) -> Abort:
        why = str(error) if isinstance(error, LoraFsmError) else f"{type(error).__name__}: {error}"
        text = "".join(c if c.isprintable() else " " for c in f"bucket {bucket}: {why}")[:400]
        return Abort(key=attempt.reserved.key, token=attempt.token, reason=text, now=self._clock())
