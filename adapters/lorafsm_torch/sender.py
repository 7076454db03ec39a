"""The source's end of the transfer: one process group per attempt, each bucket broadcast once (RFC 3.2, rule 6)."""

from __future__ import annotations

import secrets
import socket
import time
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

import torch
import torch.distributed as dist

from lorafsm.errors import LoraFsmError
from lorafsm_torch.announcement import Announcement, Meeting
from lorafsm_torch.deadlines import Deadlines
from lorafsm_torch.errors import TransferCode, TransferError
from lorafsm_torch.freeze import Snapshot
from lorafsm_torch.group import Group


class Lobby:
    """The source's TCPStore, in which the members of each attempt find each other; lives as long as the source.

    `host` is the address under which the engines reach this process; port 0 takes a free one.  The store knows
    nothing secret and is not authenticated: keep it in the trainers' network.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        # torch would listen on every interface.
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.create_server((host, port), family=family) as listener:
            self.host, self.port = host, int(listener.getsockname()[1])
            self._store = dist.TCPStore(
                host,
                self.port,
                is_master=True,
                wait_for_workers=False,
                multi_tenant=False,
                master_listen_fd=listener.detach(),
            )

    def meeting(self, epoch: str, number: int, backend: str = "gloo") -> Meeting:
        """A meeting under a name that no other attempt has or will have, a repeated call included."""
        group = f"{epoch}.{number}.{secrets.token_hex(8)}"
        return Meeting(host=self.host, port=self.port, group=group, backend=backend)


class Sender:
    """Rank 0 of one attempt.  `join` and `broadcast` come from one thread at a time, `abort` from any.

    With `check_while_sending` the whole snapshot is proved again (`Snapshot.verify`) while it is on the wire, and the
    last broadcast raises DIGEST_MISMATCH if it was written to; the engines would find it as well, later.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        announcement: Announcement,
        *,
        deadlines: Deadlines = Deadlines(),  # noqa: B008 - frozen
        check_while_sending: bool = False,
    ) -> None:
        if announcement.manifest != snapshot.manifest:
            raise TransferError(TransferCode.DIGEST_MISMATCH, "snapshot and announcement are of two versions", "digest")
        self.announcement, self._snapshot, self._deadlines = announcement, snapshot, deadlines
        longest_s = max(deadlines.join, deadlines.broadcast)
        self._group = Group(announcement.meeting, 0, announcement.size, longest_s)
        self._next = 0
        self._check = check_while_sending
        self._proof: Future[None] | None = None

    @property
    def number(self) -> int:
        """The attempt's number."""
        return self.announcement.number

    def join(self) -> None:
        """Wait until all members are one group, after PREPARED of all; no collective yet.

        Raises TransferError: GROUP_FAILED, GROUP_SIZE, DEADLINE, ABORTED.
        """
        self._group.join(self._deadlines.join)

    def require_next(self, bucket: int) -> None:
        """Refuse (OUT_OF_ORDER) any bucket but the next: none is sent twice, none is passed over (I8)."""
        if bucket != self._next or bucket >= len(self.announcement.plan.buckets):
            what = "was sent" if bucket < self._next else f"is not the next; that is {self._next}"
            raise TransferError(TransferCode.OUT_OF_ORDER, f"bucket {bucket} {what}; nothing is sent", "bucket")
        if not self._group.stands:
            raise TransferError(TransferCode.GROUP_FAILED, "there is no group; join first, or begin again", "number")

    def broadcast(self, bucket: int) -> float:
        """Send the next bucket, once, whatever becomes of it; seconds until it was complete at the source.

        Every receiver must have armed it.  Raises TransferError: OUT_OF_ORDER, BROADCAST_FAILED, DEADLINE, ABORTED,
        DIGEST_MISMATCH.
        """
        self.require_next(bucket)
        self._next += 1
        data = self.bytes_of(bucket)
        if self._check and self._proof is None:
            self._proof = ThreadPoolExecutor(1, "lorafsm-proof").submit(self._snapshot.verify)
        start = time.monotonic()
        self._group.broadcast(data, self._deadlines.broadcast)
        took = time.monotonic() - start
        if self._proof is not None and self._next == len(self.announcement.plan.buckets):
            self._wait_for_proof(self._proof)
        return took

    def abort(self, reason: str = "aborted") -> None:
        """Destroy the group: what waits raises within a second, here and at the receivers."""
        self._group.abort(reason)

    def close(self) -> None:
        """Leave the group."""
        self._group.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def bytes_of(self, bucket: int) -> torch.Tensor:
        """A bucket's bytes: a slice of the frozen sequence, or put together where the snapshot has none."""
        place = self.announcement.plan.buckets[bucket]
        sequence = self._snapshot.sequence
        if sequence is not None:
            data = sequence[place.start : place.end]
        else:
            flat = {name: t.view(-1).view(torch.uint8) for name, t in self._snapshot.tensors.items()}
            pieces = self.announcement.plan.pieces(bucket)
            data = torch.cat([flat[p.tensor.name][p.start - p.first : p.end - p.first] for p in pieces])
        if data.numel() != place.size:
            raise TransferError(
                TransferCode.PLAN_MISMATCH, f"bucket {bucket} has {data.numel()} bytes, not {place.size}", "bucket"
            )
        return data

    def _wait_for_proof(self, proof: Future[None]) -> None:
        try:
            proof.result(self._deadlines.settle)
        except LoraFsmError as error:
            raise TransferError(TransferCode.DIGEST_MISMATCH, error.message, error.field) from error
        except TimeoutError as error:
            raise TransferError(TransferCode.DEADLINE, "the snapshot was not proved in time", "digest") from error
