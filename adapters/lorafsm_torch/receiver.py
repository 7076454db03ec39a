"""An engine's end of the transfer: buckets into shared memory, on threads of its own, each with a deadline (rule 6).

The agent decides what is received; this carries its actions out.  See `Receiver`.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path
from queue import SimpleQueue

from lorafsm.orders import Begin
from lorafsm_torch.announcement import Announcement
from lorafsm_torch.deadlines import Deadlines
from lorafsm_torch.errors import TransferCode, TransferError
from lorafsm_torch.group import Group
from lorafsm_torch.stash import StashFile
from lorafsm_torch.tensor_bytes import Hashing

log = logging.getLogger(__name__)

Finished = Callable[[int, int, "str | None"], None]

_GRACE_S = 1.0  # an aborted receive ends at once; should it not, its result is told without it


class Receiver:
    """The stash of one engine's process: one safetensors file per number, filled bucket by bucket.

    `root` is a folder in shared memory that nobody else uses.  `finished(number, bucket, fault)` is called once for
    each bucket that was posted, from a thread of this object; fault None means complete.  Methods may be called from
    any thread; none but `prepare` and `sealed` waits.  With `hash_on_arrival` false everything is hashed by `sealed`,
    which leaves the cores to the engine until then and makes the end longer.
    """

    def __init__(
        self,
        root: Path,
        engine: str,
        incarnation: int,
        finished: Finished,
        *,
        deadlines: Deadlines = Deadlines(),  # noqa: B008 - frozen
        hash_on_arrival: bool = True,
    ) -> None:
        self._hash_on_arrival = hash_on_arrival
        self._root, self._engine, self._incarnation = root, engine, incarnation
        self._finished, self._deadlines = finished, deadlines
        self._transfers: dict[int, _Transfer] = {}
        self._lock = threading.Lock()
        root.mkdir(mode=0o700, parents=True, exist_ok=True)

    def prepare(self, announcement: Announcement, order: Begin) -> None:
        """Check everything and reserve the memory, before the agent is given `order`; the same again is a no-op.

        Raises TransferError before anything is there: NOT_A_TARGET, ENGINE_RESTARTED, PLAN_MISMATCH,
        DIGEST_MISMATCH, OPERATION_CONFLICT, NO_RESOURCES.  Should the agent refuse the order, `drop` the number.
        """
        rank = self._check(announcement, order)
        with self._lock:
            known = self._transfers.get(order.number)
            if known is not None:
                if known.announcement != announcement:
                    raise TransferError(
                        TransferCode.OPERATION_CONFLICT, f"number {order.number} was announced otherwise", "number"
                    )
                return
            longest_s = max(self._deadlines.join, self._deadlines.receive)
            group = Group(announcement.meeting, rank, announcement.size, longest_s)
            file = StashFile(self._root / str(order.number), announcement.plan, announcement.manifest)
            transfer = _Transfer(announcement, file, group, self._finished, self._deadlines, self._hash_on_arrival)
            self._transfers[order.number] = transfer
        transfer.start()

    def post(self, number: int, bucket: int) -> None:
        """Wait for this bucket on a thread of its own; `finished` is called once with the result."""
        transfer = self._transfers.get(number)
        if transfer is None:
            fault = f"{TransferCode.NOT_PREPARED}: number {number} was not announced here"
            threading.Thread(target=self._finished, args=(number, bucket, fault), daemon=True).start()
        else:
            transfer.post(bucket)

    def abort(self, number: int, reason: str = "aborted") -> None:
        """Destroy the number's group: what is posted ends with a fault, within a second."""
        if transfer := self._transfers.get(number):
            transfer.abort(reason)

    def sealed(self, number: int, digest: str) -> Path:
        """The folder to load, once every byte has been compared with the manifest of `digest`; ends the transfer.

        Raises TransferError: NOT_PREPARED, OUT_OF_ORDER (buckets are missing), DIGEST_MISMATCH naming the tensor,
        DEADLINE.
        """
        transfer = self._transfers.get(number)
        if transfer is None:
            raise TransferError(TransferCode.NOT_PREPARED, f"number {number} was not announced here", "number")
        return transfer.sealed(digest)

    def drop(self, number: int) -> None:
        """Forget the number and free its memory."""
        with self._lock:
            transfer = self._transfers.pop(number, None)
        if transfer is not None:
            transfer.abort("dropped")
            transfer.file.remove()

    def close(self) -> None:
        """Drop everything."""
        for number in list(self._transfers):
            self.drop(number)
        shutil.rmtree(self._root, ignore_errors=True)

    def _check(self, announcement: Announcement, order: Begin) -> int:
        """This engine's rank, if the announcement is for it and is what the order begins."""
        rank = announcement.rank_of(self._engine)
        if rank is None:
            raise TransferError(TransferCode.NOT_A_TARGET, f"the announcement does not name {self._engine}", "engines")
        incarnation = announcement.engines[rank - 1][1]
        if incarnation != self._incarnation:
            raise TransferError(
                TransferCode.ENGINE_RESTARTED,
                f"{self._engine} is incarnation {self._incarnation}, not {incarnation}; look up its engines again",
                "engines",
            )
        if (announcement.epoch, announcement.number) != (order.epoch, order.number):
            raise TransferError(TransferCode.OPERATION_CONFLICT, "announcement and order are of two attempts", "number")
        if announcement.manifest.digest() != order.digest:
            raise TransferError(
                TransferCode.DIGEST_MISMATCH, "names, shapes, dtypes or config are not those of the digest", "digest"
            )
        if announcement.plan.plan != order.plan:
            raise TransferError(
                TransferCode.PLAN_MISMATCH,
                f"buckets of at most {announcement.cap} bytes are not what was begun",
                "plan",
            )
        return rank


class _Transfer:
    """One number: its group, its file and its digests.  One thread joins and receives, a watch tells if it does not."""

    def __init__(
        self,
        announcement: Announcement,
        file: StashFile,
        group: Group,
        finished: Finished,
        deadlines: Deadlines,
        hash_on_arrival: bool,
    ) -> None:
        self._hash_on_arrival = hash_on_arrival
        self.announcement, self.file = announcement, file
        self._group, self._finished, self._deadlines = group, finished, deadlines
        self._hashing = Hashing()
        self._posted: SimpleQueue[int | None] = SimpleQueue()
        self._waiting: dict[int, threading.Timer] = {}  # posted and not finished, with their watch
        self._done = 0  # buckets complete
        self._over: str | None = None  # why nothing more is received
        self._lock = threading.Lock()

    def start(self) -> None:
        name = f"lorafsm-receive-{self.announcement.number}"
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def post(self, bucket: int) -> None:
        late = f"bucket {bucket} did not come within {self._deadlines.receive:g} s"
        watch = threading.Timer(self._deadlines.receive, self.abort, (late,))
        watch.daemon = True
        with self._lock:
            self._waiting[bucket] = watch
            over = self._over
            if over is None:
                watch.start()
                self._posted.put(bucket)
        if over is not None:
            self._give_up_after(0, [bucket], over)

    def abort(self, reason: str) -> None:
        with self._lock:
            if self._over is None:
                self._over = reason
                self._posted.put(None)
            left = list(self._waiting)
        self._group.abort(reason)
        self._hashing.close()
        if left:
            self._give_up_after(_GRACE_S, left, reason)

    def sealed(self, digest: str) -> Path:
        plan, manifest = self.announcement.plan, self.announcement.manifest
        if self._done < len(plan.buckets):
            raise TransferError(
                TransferCode.OUT_OF_ORDER, f"{self._done} of {len(plan.buckets)} buckets are here", "number"
            )
        if manifest.digest() != digest:
            raise TransferError(TransferCode.DIGEST_MISMATCH, "the stash is of another digest", "digest")
        if not self._hash_on_arrival:
            for bucket in plan.buckets:
                self._hashing.add(self.file.pieces(bucket.index))
        try:
            seen = self._hashing.result(self._deadlines.settle)
        except TimeoutError as error:
            raise TransferError(TransferCode.DEADLINE, "hashing did not end in time", "stash") from error
        except CancelledError as error:
            raise TransferError(TransferCode.ABORTED, "the attempt was given up meanwhile", "number") from error
        for entry in manifest.tensors:
            if seen[entry.name] != entry.sha256:
                raise TransferError(
                    TransferCode.DIGEST_MISMATCH, "the bytes that came are not those of the manifest", entry.name
                )
        self._posted.put(None)  # its thread leaves the group
        self._hashing.close()
        return self.file.folder

    def _work(self) -> None:
        try:
            self._group.join(self._deadlines.join)
        except TransferError as error:
            log.warning("number %s: %s", self.announcement.number, error)
            # What is posted later ends below, in the same way.
        while (bucket := self._posted.get()) is not None:
            self._finish(bucket, self._receive(bucket))
        self._group.close()

    def _receive(self, bucket: int) -> str | None:
        if bucket != self._done or bucket >= len(self.announcement.plan.buckets):
            return f"{TransferCode.OUT_OF_ORDER}: bucket {self._done} is the next"
        try:
            self._group.broadcast(self.file.tensor(bucket), self._deadlines.receive)
        except TransferError as error:
            return f"{error.code}: {error.message}"
        if self._hash_on_arrival:
            self._hashing.add(self.file.pieces(bucket))
        self._done += 1
        return None

    def _finish(self, bucket: int, fault: str | None) -> None:
        with self._lock:
            watch = self._waiting.pop(bucket, None)
        if watch is not None:  # else it was told already
            watch.cancel()
            self._finished(self.announcement.number, bucket, fault)

    def _give_up_after(self, wait_s: float, buckets: list[int], reason: str) -> None:
        grace = threading.Timer(wait_s, self._give_up, (buckets, reason))
        grace.daemon = True
        grace.start()

    def _give_up(self, buckets: list[int], reason: str) -> None:
        for bucket in buckets:
            self._finish(bucket, f"{TransferCode.ABORTED}: {reason}")
