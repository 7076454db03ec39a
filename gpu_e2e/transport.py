"""How a version's bytes reach the engines: over torch.distributed in buckets, or through the shared artifact folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

from attrs import define, field

from gpu_e2e.recording import Recorder
from gpu_e2e.services import Services
from lorafsm.manifest import Plan, store_plan
from lorafsm.orders import Begin
from lorafsm.outcomes import Reserved
from lorafsm_torch import Snapshot
from lorafsm_torch.bucket_sender import BucketSender, Gives, Step
from lorafsm_torch.deadlines import Deadlines
from lorafsm_torch.sender import Lobby

Kind: TypeAlias = Literal["torch", "store"]
KINDS: tuple[Kind, ...] = ("torch", "store")

CAP = 32 << 10  # bytes of a bucket: three of them for an adapter of the tiny model


@define
class Transport:
    """One run's transport; `connect` it before anything is published."""

    kind: Kind
    sender: BucketSender | None = None
    cap: int = CAP
    backend: str = "gloo"
    deadlines: Deadlines = field(factory=Deadlines)

    def connect(self, services: Services, engines: Mapping[str, Gives], recorder: Recorder) -> None:
        """Let the publisher's SendBucket orders reach these engines."""
        if self.kind == "store":
            return

        def told(step: Step) -> None:
            with recorder.operation(step.engine, step.op, recorder.letter(step.key)) as entry:
                entry["outcome"] = "OK" if step.ok else "FAILED"
                entry["bucket"] = step.bucket
            entry["start"], entry["end"] = recorder.at(step.start), recorder.at(step.end)

        apply, clock = services.apply, services.clock
        self.sender = BucketSender(
            Lobby(), engines, apply, clock, cap=self.cap, backend=self.backend, deadlines=self.deadlines, told=told
        )
        services.send = self.sender.send

    def plan(self, snapshot: Snapshot) -> Plan:
        """What to reserve with."""
        return store_plan() if self.sender is None else self.sender.plan(snapshot)

    def announcement(self, begin: Begin) -> Mapping[str, Any] | None:
        """What goes with a begin."""
        return None if self.sender is None else self.sender.announcement(begin)

    @contextmanager
    def attempt(self, reserved: Reserved, token: str, snapshot: Snapshot) -> Iterator[None]:
        """From the reserve to the end of the publication."""
        if self.sender is None:
            yield
            return
        with self.sender.attempt(reserved, token, snapshot):
            yield
