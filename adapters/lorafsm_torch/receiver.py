"""An engine's end of the transfer: buckets into shared memory, on threads of its own, each with a deadline (rule 6).

The agent decides what is received; this carries its actions out.  See `Receiver`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lorafsm.orders import Begin
from lorafsm_torch.announcement import Announcement
from lorafsm_torch.deadlines import Deadlines

Finished = Callable[[int, int, "str | None"], None]


class Receiver:
    """The stash of one engine's process: one safetensors file per number, filled bucket by bucket."""

    def __init__(
        self,
        root: Path,
        engine: str,
        incarnation: int,
        finished: Finished,
        *,
        deadlines: Deadlines = Deadlines(),  # noqa: B008 - frozen
    ) -> None:
        raise NotImplementedError

    def prepare(self, announcement: Announcement, order: Begin) -> None:
        """Check everything and reserve the memory, before the agent is given `order`; the same again is a no-op."""
        raise NotImplementedError

    def post(self, number: int, bucket: int) -> None:
        """Wait for this bucket on a thread of its own; `finished` is called once with the result."""
        raise NotImplementedError

    def abort(self, number: int, reason: str = "aborted") -> None:
        """Destroy the number's group: what is posted ends with a fault, within a second."""
        raise NotImplementedError

    def sealed(self, number: int, digest: str) -> Path:
        """The folder to load, once every byte has been compared with the manifest of `digest`."""
        raise NotImplementedError

    def drop(self, number: int) -> None:
        """Forget the number and free its memory."""
        raise NotImplementedError

    def close(self) -> None:
        """Drop everything."""
        raise NotImplementedError
