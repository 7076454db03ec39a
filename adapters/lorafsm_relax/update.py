"""`DeviceDirectBackend.update_weights_for_rollout`: a publication in place of the push (RFC 6, M15).

Every training rank calls the same methods in the same order; the publication itself gives all ranks one small int.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Protocol

from lorafsm.errors import LoraFsmError

log = logging.getLogger(__name__)


class Flag(IntEnum):
    """The one outcome of all ranks, as their all_reduce(MAX) carries it (`lorafsm_torch.ranks.Flag`)."""

    OK = 0
    SKIPPED_CAPACITY = 1
    FAILED_CLEAN = 2
    FATAL = 3


class PublicationFatal(LoraFsmError, RuntimeError):
    """Nobody can say whether the default moved, or a rank is lost: the update must end on every rank."""

    def __init__(self, message: str) -> None:
        super().__init__("PUBLICATION_FATAL", message)

    def __reduce__(self) -> tuple[type[PublicationFatal], tuple[str]]:
        return type(self), (self.message,)


class Result(Protocol):
    """What a step answers (`lorafsm_torch.ranks.StepResult`): the same on all ranks."""

    @property
    def reason(self) -> str:
        """One sentence."""

    def __int__(self) -> int:
        """The flag, 0 to 3."""


Step = Callable[[int, Callable[[], Any]], Result]
"""`lorafsm_torch.ranks.Publication.step`: (version_id, export) -> the outcome; raises nothing that can go wrong."""


class VersionedUpdate:
    """One training rank's side of every update.

    `step` publishes a version, `export` is the collective export and gather that Relax has already.
    `bootstrapped`: a version was published before (by an earlier process), so nothing is paused any more.
    """

    def __init__(self, step: Step, export: Callable[[], Any], *, bootstrapped: bool = False) -> None:
        self._step = step
        self._export = export
        self._bootstrapped = bootstrapped

    def pauses(self, *, actor_fwd_only: bool) -> bool:
        """Whether this update pauses and flushes as before: only until the first version is published (RFC 6)."""
        return not actor_fwd_only and not self._bootstrapped

    def push(self, version_id: int, *, actor_fwd_only: bool = False) -> int:
        """In place of the adapter push, after the stop marker of actor_fwd and reference; the flag for all_reduce(MAX).

        Never raises: a rank that raised here would leave the others in the collective that follows.
        """
        if actor_fwd_only:
            return Flag.OK
        try:
            result = self._step(version_id, self._export)
            flag = Flag(int(result))
        except Exception:
            log.exception("publication of version %d failed", version_id)
            return Flag.FATAL
        if flag is not Flag.OK:
            log.warning("version %d: %s: %s", version_id, flag.name, result.reason)
        return flag

    def settle(self, flag: int) -> Flag:
        """After all_reduce(MAX) and the resume: what became of the update, the same on every rank.

        SKIPPED_CAPACITY and FAILED_CLEAN are no failures of the run: the default stands, training goes on and the next
        update publishes.  Raises PublicationFatal for FATAL, and for a first version that was not published: there is
        nothing to roll out with.
        """
        found = Flag(flag)
        if found is Flag.FATAL:
            raise PublicationFatal("the publication's outcome is unknown or a rank is lost; see the log of rank 0")
        if found is not Flag.OK and not self._bootstrapped:
            raise PublicationFatal(f"the first version was not published ({found.name}); see the log of rank 0")
        self._bootstrapped = self._bootstrapped or found is Flag.OK
        return found
