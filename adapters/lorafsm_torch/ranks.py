"""One outcome for all training ranks, within a deadline, whatever fails where (RFC 6, M15).

    publication = Publication(store, rank, world_size, publisher=... if rank == 0 else None)
    result = publication.step(version_id, export)        # on every rank
    flag = int(result)                                   # 0 to 3, the same everywhere; fits an all_reduce(MAX)

    every rank   export ── "exported" ──┐                      ┌── "seen" ──┐             ┌── "left"
    rank 0                              └─ publish ─ "proposal"┘            └─ decision ──┘

The ranks speak through a board with deadlines (`agreement`), never through a collective, so nobody waits for a rank
that will not come.  The first decision on the board is everybody's; a rank that finds none in time makes it FATAL.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, Protocol, TypeAlias

import torch
import torch.distributed as dist
from attrs import define, field, frozen

from lorafsm.errors import InvalidField
from lorafsm_torch.agreement import Board, BoardLost, Note

log = logging.getLogger(__name__)

Exported: TypeAlias = tuple[Mapping[str, Any], Mapping[str, torch.Tensor]]
"""Serving config and full adapter."""

Export: TypeAlias = Callable[[], Exported | None]
"""The collective export and gather of all ranks; what rank 0's returns is published."""


class Flag(IntEnum):
    """The small int that all ranks share.  The larger one wins where a framework takes the maximum."""

    OK = 0  # published; or NO_OP: it was already
    SKIPPED_CAPACITY = 1  # no slot was free: nothing was begun, the default is unchanged
    FAILED_CLEAN = 2  # it did not become the default, and will not; training goes on
    FATAL = 3  # a rank is dead or stuck, or nobody can say whether the default moved


@frozen
class StepResult:
    """What became of one publication; equal on all ranks.  `skipped` counts capacity refusals in a row."""

    flag: Flag
    reason: str
    skipped: int = 0

    def __int__(self) -> int:
        return int(self.flag)


@frozen(kw_only=True)
class Deadlines:
    """Seconds.  A step ends within `export_s + publish_s + 4 * agree_s` of its call on every rank that is alive.

    Groups that `export` uses should time out well before `export_s`: a rank that is still in a collective then makes
    the step FATAL.
    """

    export_s: float = 120.0
    publish_s: float = 600.0
    agree_s: float = 15.0

    def __attrs_post_init__(self) -> None:
        for name in ("export_s", "publish_s", "agree_s"):
            if not 0 < getattr(self, name) < 86_400:
                raise InvalidField(name, "must be more than 0 and less than a day, in seconds")


class Publisher(Protocol):
    """Rank 0's part (`lorafsm_torch.rank_zero.RegistryPublisher`)."""

    def publish(self, version_id: int, exported: Exported, deadline_s: float) -> StepResult:
        """Publish, and answer within the deadline; may raise, and then nobody knows what happened (FATAL)."""


@frozen
class _Done:
    """How this rank's export ended; `free`: this rank is in no collective any more."""

    exported: Exported | None
    fault: str
    free: bool


@define
class Publication:
    """One training rank's side; `store` is any `torch.distributed` store that all ranks share.

    `release` is called at once on a rank whose export failed: it drops its groups, which ends the collectives that
    its peers wait in (without it, their time-out does).  `renew` is called on every rank after such a step: groups
    that a failed collective left in an unknown state are built anew there.  `counts` says how often each flag came out.
    """

    store: dist.Store
    rank: int
    size: int
    publisher: Publisher | None = None
    deadlines: Deadlines = field(factory=Deadlines)
    release: Callable[[], None] | None = None
    renew: Callable[[], None] | None = None
    counts: Counter[Flag] = field(factory=Counter)
    skipped: int = 0
    _turn: int = 0
    _board: Board = field(init=False)

    def __attrs_post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise InvalidField("rank", f"must be 0 to {self.size - 1}")
        if (self.rank == 0) != (self.publisher is not None):
            raise InvalidField("publisher", "rank 0 has one, and nobody else")
        self._board = Board(self.store, self.rank, self.size, answer_s=self.deadlines.agree_s)

    def step(self, version_id: int, export: Export) -> StepResult:
        """Export and publish a version; called by every rank, in the same order of versions.

        Raises nothing that an export, a registry or an engine does wrong: that is in the result.  What is not an
        Exception (KeyboardInterrupt) passes through, after the others were told.
        """
        self._turn += 1
        try:
            decision = self._decided(version_id, export)
        except BoardLost as error:
            decision = _note(Flag.FATAL, str(error))
        except Exception as error:
            log.exception("the step failed on rank %d", self.rank)
            decision = self._given_up(f"rank {self.rank} raised {_said(error)}")
        except BaseException as error:
            self._given_up(f"rank {self.rank} was stopped by {type(error).__name__}")
            raise
        return self._result(decision)

    def _decided(self, version_id: int, export: Export) -> Note:
        start = time.monotonic()
        own = self._exported(export)
        # Only then: a rank that posted is not in a collective, or says that it is.
        self._board.post(self._turn, "exported", {"version": version_id, "fault": own.fault, "free": own.free})
        if self.rank == 0:
            return self._lead(version_id, own, start)
        return self._follow(start)

    # -- rank 0 -----------------------------------------------------------------------------------------

    def _lead(self, version_id: int, own: _Done, start: float) -> Note:
        board, turn, limit = self._board, self._turn, self.deadlines
        others = range(1, self.size)
        exported = board.notes(turn, "exported", range(self.size), start + limit.export_s + limit.agree_s)
        proposal = self._judged(exported, version_id) or self._published(version_id, own)
        board.post(turn, "proposal", proposal)
        seen = board.notes(turn, "seen", others, time.monotonic() + limit.agree_s)
        if silent := [rank for rank in others if rank not in seen]:
            proposal = _note(Flag.FATAL, f"{_ranks(silent)} did not answer, after: {proposal['reason']}")
        decision = board.decide(turn, proposal)
        # The board may be in this process: rank 0 leaves last.
        if not silent:
            board.notes(turn, "left", others, time.monotonic() + limit.agree_s)
        if turn > 1:
            board.forget(turn - 1, ("exported", "proposal", "seen", "left"))
        return decision

    def _judged(self, exported: Mapping[int, Note], version_id: int) -> Note | None:
        """The end of a step whose export is not whole; None: it is."""
        if silent := [rank for rank in range(self.size) if rank not in exported]:
            return _note(Flag.FATAL, f"{_ranks(silent)} did not answer in the export")
        if stuck := [rank for rank, note in sorted(exported.items()) if not note["free"]]:
            return _note(Flag.FATAL, f"{_ranks(stuck)} is still in the export: {exported[stuck[0]]['fault']}")
        versions = {note["version"] for note in exported.values()}
        faults = {rank: note["fault"] for rank, note in sorted(exported.items()) if note["fault"]}
        if len(versions) > 1 and not faults:
            faults = {0: f"the ranks publish different versions: {sorted(versions)}"}
        if not faults:
            return None
        # The others' faults are mostly this one's echo: their collective broke.
        first = min(faults, key=lambda rank: (faults[rank].startswith("collective"), rank))
        return _note(Flag.FAILED_CLEAN, f"the export failed on rank {first}: {faults[first]}", renew=True)

    def _published(self, version_id: int, own: _Done) -> Note:
        assert self.publisher is not None
        if own.exported is None:
            return _note(Flag.FAILED_CLEAN, "the export gave rank 0 nothing to publish")
        try:
            result = self.publisher.publish(version_id, own.exported, self.deadlines.publish_s)
        except Exception as error:
            log.exception("the publication of version %d ended without an outcome", version_id)
            return _note(Flag.FATAL, f"nobody knows how the publication ended: {_said(error)}")
        return _note(result.flag, result.reason)

    # -- the others -------------------------------------------------------------------------------------

    def _follow(self, start: float) -> Note:
        board, turn, limit = self._board, self._turn, self.deadlines
        until = start + limit.export_s + limit.publish_s + 2 * limit.agree_s
        proposal = board.note(turn, "proposal", 0, until)
        if proposal is None:
            return self._given_up("rank 0 did not say how the publication ended")
        board.post(turn, "seen", {})
        decision = board.decision(turn, time.monotonic() + 2 * limit.agree_s)
        if decision is None:
            return self._given_up("rank 0 did not answer at the end")
        board.post(turn, "left", {})
        return decision

    # -- every rank -------------------------------------------------------------------------------------

    def _exported(self, export: Export) -> _Done:
        """Run the export on a thread, so that a collective without an end does not keep this rank."""
        ended: list[_Done] = []
        device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
        stream = torch.cuda.current_stream() if device is not None else None

        def run() -> None:
            try:
                if device is not None:
                    torch.cuda.set_device(device)  # devices and streams are per thread
                    torch.cuda.set_stream(stream)
                ended.append(_Done(export(), "", True))
            except BaseException as error:
                log.exception("the export failed on rank %d", self.rank)
                if self.release is not None:
                    self.release()
                ended.append(_Done(None, _said(error), True))

        thread = threading.Thread(target=run, name="lorafsm-export", daemon=True)
        thread.start()
        thread.join(self.deadlines.export_s)
        return ended[0] if ended else _Done(None, f"no end within {self.deadlines.export_s:g} s", False)

    def _given_up(self, reason: str) -> Note:
        note = _note(Flag.FATAL, reason)
        try:
            return self._board.decide(self._turn, note)
        except BoardLost as error:
            return _note(Flag.FATAL, f"{reason}; {error}")

    def _result(self, decision: Note) -> StepResult:
        flag = Flag(decision["flag"])
        self.counts[flag] += 1
        if flag is not Flag.FATAL and decision["renew"] and self.renew is not None:
            self.renew()
        self.skipped = self.skipped + 1 if flag is Flag.SKIPPED_CAPACITY else 0
        if flag is not Flag.OK and self.rank == 0:
            again = f" ({self.skipped} in a row)" if self.skipped else ""
            log.warning("publication: %s%s: %s", flag.name, again, decision["reason"])
        return StepResult(flag, decision["reason"], self.skipped)


def _note(flag: Flag, reason: str, *, renew: bool = False) -> Note:
    return {"flag": int(flag), "reason": reason, "renew": renew}


def _said(error: BaseException) -> str:
    """The error in one line.  What a process group raised when a peer left says so in front."""
    text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    from_group = isinstance(error, dist.DistError) or type(error) is RuntimeError
    return f"collective broken ({text})" if from_group and "gloo" in text.lower() else text


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
