"""What a `SendBucket` order means: arm on all, then authorise, then one broadcast, then all acknowledge (rule 6)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Protocol, TypeVar

from attrs import frozen

from lorafsm.engine.answers import Answer, Armed, BucketDone
from lorafsm_torch.deadlines import Deadlines
from lorafsm_torch.errors import TransferCode, TransferError
from lorafsm_torch.sender import Sender

A = TypeVar("A", Armed, BucketDone)


class Port(Protocol):
    """How the source reaches the agent of one engine; both calls block, and may raise what the wire raises."""

    @property
    def engine(self) -> str:
        """The engine's name."""

    def arm(self, number: int, bucket: int) -> Answer:
        """Give `ArmBucket`."""

    def receive(self, number: int, bucket: int, wait_s: float) -> Answer:
        """Give `ReceiveBucket`, and again while it is Pending and time is left."""


@frozen
class Round:
    """One bucket that every engine has; times in seconds."""

    bucket: int
    arm_s: float
    wire_s: float
    acknowledge_s: float
    answers: Mapping[str, BucketDone]


def send_bucket(
    sender: Sender,
    ports: Sequence[Port],
    bucket: int,
    authorize: Callable[[], object],
    *,
    deadlines: Deadlines = Deadlines(),  # noqa: B008 - frozen
) -> Round:
    """Arm on all, authorise, broadcast once, wait for all.

    `authorize` makes the registry write down that the bucket is sent (AuthorizeBucket), and raises if it may not be.
    Raises TransferError: GROUP_SIZE, OUT_OF_ORDER or ARM_REFUSED (nothing was sent, and nothing will be),
    BROADCAST_FAILED, DEADLINE, NOT_RECEIVED, or whatever `authorize` raised.  After any of them the sender's group
    is gone: the attempt is to be aborted, and the next one makes a new sender.
    """
    expected = sorted(name for name, _ in sender.announcement.engines)
    if sorted(port.engine for port in ports) != expected:
        raise TransferError(TransferCode.GROUP_SIZE, f"the group is the source and {', '.join(expected)}", "engines")
    sender.require_next(bucket)
    pool = ThreadPoolExecutor(len(ports), thread_name_prefix="lorafsm-port")
    try:
        start = time.monotonic()
        armed = {p.engine: pool.submit(p.arm, sender.number, bucket) for p in ports}
        _require(armed, Armed, TransferCode.ARM_REFUSED, deadlines.arm)
        arm_s = time.monotonic() - start
        authorize()
        wire_s = sender.broadcast(bucket)
        start = time.monotonic()
        received = {p.engine: pool.submit(p.receive, sender.number, bucket, deadlines.settle) for p in ports}
        answers = _require(received, BucketDone, TransferCode.NOT_RECEIVED, deadlines.settle)
        return Round(bucket, arm_s, wire_s, time.monotonic() - start, answers)
    except BaseException as error:
        sender.abort(f"bucket {bucket}: {error}"[:400])
        raise
    finally:
        pool.shutdown(wait=False)  # a silent engine's call ends when its wire does


def _require(
    calls: Mapping[str, Future[Answer]], wanted: type[A], code: TransferCode, deadline_s: float
) -> dict[str, A]:
    """Every engine's answer, if each is of the kind wanted."""
    wait(calls.values(), deadline_s)
    answers: dict[str, A] = {}
    for engine, call in calls.items():
        if not call.done():
            raise TransferError(code, f"{engine} did not answer within {deadline_s:g} s", engine)
        if (error := call.exception()) is not None:
            raise TransferError(code, f"{engine}: {type(error).__name__}: {error}", engine) from error
        if not isinstance(answer := call.result(), wanted):
            raise TransferError(code, f"{engine} answered {answer}", engine)
        answers[engine] = answer
    return answers
