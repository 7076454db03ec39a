"""One attempt's process group: formed when every member is there, ended by anybody at any time (rule 6).

The members meet in the source's TCPStore.  Each says there that it has come, and enters the group's constructor only
when all have: so nobody waits in it for a member that was refused.  What can block, blocks on a socket that `abort`
shuts down (TCPStore, gloo) or in a communicator that it aborts (NCCL).  Time-outs of torch do not do: a TCPStore
client waits without end for a server that is stopped, and gloo's own are fixed when the group is made.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from lorafsm_torch.announcement import Meeting
from lorafsm_torch.errors import TransferCode, TransferError
from lorafsm_torch.sockets import Address, address_towards, listeners, resolved, shut_down

_LOOK_AGAIN_S = (0.001, 0.02)  # shortest and longest pause between two looks into the store
_CONNECT_S = 10.0
_SHUT_AGAIN_S = 0.1
_LONGEST = timedelta(hours=1)  # gloo's own time-out of an operation; our deadlines are shorter
_OPENING = threading.Lock()  # a new listener is told from others by looking before and after


class Group:
    """This process's membership; `join` and `broadcast` belong to one thread, `abort` to any."""

    def __init__(self, meeting: Meeting, rank: int, size: int) -> None:
        self._meeting, self._rank, self._size = meeting, rank, size
        self._over, self._idle = threading.Event(), threading.Event()
        self._idle.set()
        self._lock = threading.Lock()
        self._why: tuple[TransferCode, str] | None = None
        self._ours: list[Address] = []
        # Rank 0 is the host of the meeting, and stays its own guest for later attempts.
        self._theirs: list[Address] = resolved(meeting.host, meeting.port) if rank else []
        self._group: Any = None
        self._device = torch.device("cuda", torch.cuda.current_device()) if meeting.backend == "nccl" else None
        self._staging: torch.Tensor | None = None

    @property
    def stands(self) -> bool:
        """Whether the group was formed and not given up."""
        return self._group is not None and not self._over.is_set()

    def join(self, deadline_s: float) -> None:
        """Come to the meeting and form the group; TransferError GROUP_FAILED, GROUP_SIZE, DEADLINE or ABORTED."""
        end = time.monotonic() + deadline_s
        self._guarded(TransferCode.GROUP_FAILED, deadline_s, lambda: self._form(end))

    def broadcast(self, data: torch.Tensor, deadline_s: float) -> None:
        """Send (rank 0) or receive these bytes on the CPU; returns when they are there, on the device and here."""
        self._guarded(TransferCode.BROADCAST_FAILED, deadline_s, lambda: self._carry(data))

    def abort(self, reason: str, code: TransferCode = TransferCode.ABORTED) -> None:
        """End it: what waits raises, here and at the other members.  The first reason stays."""
        with self._lock:
            self._why = self._why or (code, reason)
            self._over.set()
            if self._group is not None and self._device is not None:
                self._group.abort()
            shut_down(self._ours, self._theirs)
        if not self._idle.is_set():  # torch may be opening the next connection just now
            threading.Thread(target=self._keep_shutting, name="lorafsm-abort", daemon=True).start()

    def close(self) -> None:
        """Leave; after this nothing of the group is left in the process, once what waited has ended."""
        self.abort("the transfer is over")
        self._group = self._staging = None

    def _keep_shutting(self) -> None:
        while not self._idle.wait(_SHUT_AGAIN_S):
            shut_down(self._ours, self._theirs)

    def _guarded(self, code: TransferCode, deadline_s: float, step: Callable[[], None]) -> None:
        self._raise_if_over()
        late = threading.Timer(deadline_s, self.abort, (f"no end within {deadline_s:g} s", TransferCode.DEADLINE))
        late.daemon = True
        self._idle.clear()
        late.start()
        try:
            step()
        except TransferError as error:
            self.abort(error.message, TransferCode(error.code))
        except (RuntimeError, OSError) as error:  # torch's DistError is a RuntimeError
            self._raise_if_over()
            # The others must not wait for somebody who will not take part any more.
            self.abort(f"{type(error).__name__}: {error}"[:400], code)
        finally:
            late.cancel()
            self._idle.set()
        self._raise_if_over()

    def _raise_if_over(self) -> None:
        if self._over.is_set():
            assert self._why is not None
            raise TransferError(*self._why)

    # -- forming ------------------------------------------------------------------------------------

    def _form(self, end: float) -> None:
        meeting = self._meeting
        here = address_towards(meeting.host, meeting.port)
        with _OPENING:
            before = listeners()
            transport = dist.ProcessGroupGloo.create_device(hostname=here) if self._device is None else None
            self._ours += listeners() - before
        store = self._visit(end)
        members = self._all_present(store, end)
        for rank, member in enumerate(members):
            if rank != self._rank and self._device is None:
                host, port = member["listens"]
                self._theirs.append((host, port))
        group_store = dist.PrefixStore("group", store)
        if transport is not None:
            options = dist.ProcessGroupGloo._Options()
            options._devices, options._timeout, options._threads = [transport], _LONGEST, 1
            group = dist.ProcessGroupGloo(group_store, self._rank, self._size, options)
        else:
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = _LONGEST
            group = dist.ProcessGroupNCCL(group_store, self._rank, self._size, options)
        with self._lock:
            self._group = group

    def _carry(self, data: torch.Tensor) -> None:
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        if self._device is None:
            self._group.broadcast([data], options).wait()
            return
        if self._staging is None or self._staging.numel() < data.numel():
            self._staging = torch.empty(data.numel(), dtype=torch.uint8, device=self._device)
        there = self._staging[: data.numel()]
        if self._rank == 0:
            there.copy_(data, non_blocking=True)
        self._group.broadcast([there], options).wait()
        if self._rank:
            data.copy_(there, non_blocking=True)
        torch.cuda.current_stream().synchronize()  # completion on the device, not only its place in the queue

    def _visit(self, end: float) -> dist.Store:
        meeting = self._meeting
        left = timedelta(seconds=max(0.1, min(_CONNECT_S, end - time.monotonic())))
        client = dist.TCPStore(meeting.host, meeting.port, is_master=False, timeout=left, wait_for_workers=False)
        return dist.PrefixStore(meeting.group, client)

    def _all_present(self, store: dist.Store, end: float) -> list[Any]:
        if store.add(f"claim/{self._rank}", 1) != 1:
            raise TransferError(TransferCode.GROUP_SIZE, f"rank {self._rank} is taken by another process", "engines")
        here = self._ours[0] if self._ours else ("", 0)
        store.set(f"present/{self._rank}", json.dumps({"size": self._size, "listens": here}))
        keys = [f"present/{rank}" for rank in range(self._size)]
        pause, longest = _LOOK_AGAIN_S
        while not store.check(keys):
            if self._over.wait(min(pause, max(0.0, end - time.monotonic()))):
                self._raise_if_over()
            pause = min(2 * pause, longest)
        members = [json.loads(store.get(key)) for key in keys]
        sizes = sorted({member["size"] for member in members})
        if sizes != [self._size]:
            raise TransferError(TransferCode.GROUP_SIZE, f"members expect groups of {sizes}; begin again", "engines")
        return members
