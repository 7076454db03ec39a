"""One attempt's process group: formed when every member is there, ended by anybody at any time (rule 6).

The members meet in the source's TCPStore.  Each says there that it has come, and enters the group's constructor only
when all have: so nobody waits in it for a member that was refused.

Torch 2.13 has no way to make gloo or a TCPStore client give up: `abort` of a gloo group wakes nobody, and a client
waits without end for a server that is stopped.  So each call into torch is made on a thread of its own, the caller
waits for it, for an abort or for the deadline, and an abort shuts the group's sockets down (NCCL: aborts the
communicator).  That ends the call, here and at the other members; about one in five waits of gloo survives even
this, and such a thread stays until gloo's own time-out, with nothing but its own group in its hands.
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
from lorafsm_torch.sockets import Address, Connection, address_towards, connections, listeners, resolved, shut_down

_LOOK_AGAIN_S = (0.001, 0.02)  # shortest and longest pause between two looks into the store
_CONNECT_S = 10.0
_SHUT_AGAIN_S = 0.1
_LATER_S = 1.0  # than our deadlines are gloo's own time-outs
_OPENING = threading.Lock()  # a new listener is told from others by looking before and after


class Group:
    """This process's membership; `join` and `broadcast` belong to one thread, `abort` and `close` to any.

    `longest_s` is the longest deadline that will be asked for.
    """

    def __init__(self, meeting: Meeting, rank: int, size: int, longest_s: float) -> None:
        self._meeting, self._rank, self._size = meeting, rank, size
        self._longest = timedelta(seconds=longest_s + _LATER_S)
        self._over, self._idle, self._wake = threading.Event(), threading.Event(), threading.Event()
        self._idle.set()
        self._lock = threading.Lock()
        self._why: tuple[TransferCode, str] | None = None
        self._ours: list[Address] = []  # where gloo listens for this group
        self._theirs: list[Address] = []  # where the others do
        self._lobby = resolved(meeting.host, meeting.port)
        self._others: frozenset[Connection] = frozenset()  # to the lobby, and not of this group
        self._visiting: frozenset[Connection] = frozenset()  # to the lobby, and of this group
        self._entering = False
        self._formed: frozenset[Connection] | None = None  # of the group, once it stands
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
        self._await(TransferCode.GROUP_FAILED, deadline_s, lambda: self._form(end))

    def broadcast(self, data: torch.Tensor, deadline_s: float) -> None:
        """Send (rank 0) or receive these bytes on the CPU; returns when they are there, on the device and here."""
        self._await(TransferCode.BROADCAST_FAILED, deadline_s, lambda: self._carry(data))

    def abort(self, reason: str, code: TransferCode = TransferCode.ABORTED) -> None:
        """End it: what waits raises at once, here and at the other members.  The first reason stays."""
        with self._lock:
            self._why = self._why or (code, reason)
            self._over.set()
            self._wake.set()
            if self._group is not None and self._device is not None:
                self._group.abort()
            shut_down(self._connections())
            busy = not self._idle.is_set()
            if not busy:
                self._forget()
        if busy:  # torch may be opening the next connection just now
            threading.Thread(target=self._keep_shutting, name="lorafsm-abort", daemon=True).start()

    def close(self) -> None:
        """Leave; after this nothing of the group is left in the process, once what waited has ended."""
        self.abort("the transfer is over")

    def _forget(self) -> None:
        self._group = self._staging = None
        self._formed = frozenset()

    def _keep_shutting(self) -> None:
        while not self._idle.wait(_SHUT_AGAIN_S):
            shut_down(self._connections())

    def _connections(self) -> frozenset[Connection]:
        """Those of this group and of no other, however far it has come: a later attempt may be under way."""
        if self._formed is not None:
            return self._formed
        lobby = self._visiting or (connections((), self._lobby) - self._others if self._entering else frozenset())
        return lobby | connections(self._ours, self._theirs)

    def _await(self, code: TransferCode, deadline_s: float, step: Callable[[], None]) -> None:
        with self._lock:
            self._raise_if_over()
            self._idle.clear()
            self._wake.clear()
        # No daemon: one that returns from gloo while the interpreter ends takes the process down with it.
        threading.Thread(target=self._call, args=(code, step), name="lorafsm-group").start()
        if not self._wake.wait(deadline_s):
            self.abort(f"no end within {deadline_s:g} s", TransferCode.DEADLINE)
        self._raise_if_over()

    def _call(self, code: TransferCode, step: Callable[[], None]) -> None:
        try:
            step()
        except TransferError as error:
            self.abort(error.message, TransferCode(error.code))
        except (RuntimeError, OSError) as error:  # torch's DistError is a RuntimeError
            # The others must not wait for somebody who will not take part any more.
            self.abort(f"{type(error).__name__}: {error}"[:400], code)
        with self._lock:
            if self._over.is_set():
                shut_down(self._connections())
                self._forget()  # a group is let go where nothing waits in it, as that waits too
            self._idle.set()
            self._wake.set()

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
            options._devices, options._timeout, options._threads = [transport], self._longest, 1
            group = dist.ProcessGroupGloo(group_store, self._rank, self._size, options)
        else:
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = self._longest
            group = dist.ProcessGroupNCCL(group_store, self._rank, self._size, options)
        with self._lock:
            self._group = group
            self._formed = connections(self._ours, self._theirs) | self._visiting

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
        self._others = connections((), self._lobby)
        self._entering = True
        client = dist.TCPStore(meeting.host, meeting.port, is_master=False, timeout=left, wait_for_workers=False)
        self._visiting = connections((), self._lobby) - self._others
        self._entering = False
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
