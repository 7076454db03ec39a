"""How long a client goes on asking: one deadline for a call, a limit for each try, and growing pauses between."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from attrs import frozen

from lorafsm.errors import InvalidField
from lorafsm_asyncio.client import RegistryUnavailable


@frozen(kw_only=True)
class Patience:
    """Seconds.  A registry whose process is killed is back within a few; a client should outlast that."""

    deadline_s: float = 30.0  # for a call with all its tries
    try_s: float = 5.0  # after this a try is given up; the event may be applied all the same
    pause_s: float = 0.02  # before the second try; doubled each time
    longest_pause_s: float = 0.5

    def __attrs_post_init__(self) -> None:
        for name in ("deadline_s", "try_s", "pause_s", "longest_pause_s"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 < value <= 86_400:
                raise InvalidField(name, "must be more than 0 and at most 86,400 seconds")


PATIENT = Patience()


class Tries:
    """The tries of one call.  `extra_s` is time that the call itself is meant to take (a long poll)."""

    def __init__(
        self, patience: Patience, what: str, extra_s: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._patience = patience
        self._what = what
        self._extra = extra_s
        self._clock = clock
        self._end = clock() + patience.deadline_s + extra_s
        self._pause = patience.pause_s
        self.made = 0

    def timeout(self) -> float:
        """Seconds for the next try."""
        self.made += 1
        return max(0.001, min(self._patience.try_s + self._extra, self._end - self._clock()))

    def pause(self, why: str) -> float:
        """Seconds to wait before the next try; raises RegistryUnavailable if the deadline comes first."""
        pause = self._pause * random.uniform(0.5, 1.0)  # noqa: S311  # spreads callers, protects nothing
        self._pause = min(2 * self._pause, self._patience.longest_pause_s)
        if self._clock() + pause >= self._end:
            raise RegistryUnavailable(
                f"{self._what}: no answer within {self._patience.deadline_s + self._extra:g} s and {self.made} "
                f"tries (last: {why}); it may have been applied: ask again with the same event"
            )
        return pause
