"""Buckets over torch.distributed into this engine's process: between the agent's actions and `lorafsm_torch.Receiver`.

The receives run on threads of SGLang's tokenizer process, into shared memory: neither its event loop nor the scheduler
waits for them, and generation goes on.  A number without an announcement gets its buckets over HTTP (`stash`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from lorafsm.engine.orders import BucketFinished
from lorafsm.orders import Begin
from lorafsm_sglang.guard.stash import StashError

if TYPE_CHECKING:
    from lorafsm_torch.receiver import Receiver


class Receiving:
    """The receives of one engine's process under `root`, which nobody else uses.

    `give` takes the agent's BucketFinished, on the event loop that `prepare` was called on.
    """

    def __init__(self, root: Path, engine: str, incarnation: int, give: Callable[[BucketFinished], object]) -> None:
        self._root, self._engine, self._incarnation, self._give = root, engine, incarnation, give
        self._numbers: set[int] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    @cached_property
    def _receiver(self) -> Receiver:
        from lorafsm_torch.receiver import Receiver

        return Receiver(self._root, self._engine, self._incarnation, self._finished)

    def __contains__(self, number: int) -> bool:
        """Whether this number was announced here."""
        return number in self._numbers

    async def prepare(self, document: object, order: Begin) -> None:
        """Check the announcement and hold the memory, before the agent hears of the order.

        Raises LoraFsmError (InvalidField, TransferError) and leaves nothing behind then.
        """
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._prepare, document, order)
        self._numbers.add(order.number)

    def _prepare(self, document: object, order: Begin) -> None:
        from lorafsm_torch.announcement import Announcement

        self._receiver.prepare(Announcement.parse(document), order)

    def post(self, number: int, bucket: int) -> None:
        """Post the receive of a bucket (rule 6)."""
        self._receiver.post(number, bucket)

    def abort(self, number: int) -> None:
        """End the number's group; what is posted ends with a fault."""
        if number in self._numbers:
            self._receiver.abort(number, "the engine gave the attempt up")

    def drop(self, number: int) -> None:
        """Free the number's memory."""
        if number in self._numbers:
            self._numbers.discard(number)
            self._receiver.drop(number)

    def sealed(self, number: int, digest: str) -> Path:
        """The folder to load, every byte compared with the digest; raises LoraFsmError.  Waits for the hashing."""
        folder = self._receiver.sealed(number, digest)
        if not (folder / "adapter_model.safetensors").is_file():
            raise StashError("stash", "somebody removed the file that was received")
        return folder

    def _finished(self, number: int, bucket: int, fault: str | None) -> None:
        assert self._loop is not None
        text = "".join(c if c.isprintable() else " " for c in fault or "")[:512]
        done = BucketFinished(number=number, bucket=bucket, ok=fault is None, detail=text)
        self._loop.call_soon_threadsafe(self._give, done)
