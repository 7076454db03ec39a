"""What a `SendBucket` order means: arm on all, then authorise, then one broadcast, then all acknowledge (rule 6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from attrs import frozen

from lorafsm.engine.answers import Answer, BucketDone
from lorafsm_torch.deadlines import Deadlines
from lorafsm_torch.sender import Sender


class Port(Protocol):
    """How the source reaches the agent of one engine; both calls block, and may raise what the wire raises."""

    engine: str

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
    """Arm on all, authorise, broadcast once, wait for all; a TransferError means: the attempt is to be aborted."""
    raise NotImplementedError
