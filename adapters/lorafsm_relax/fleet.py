"""Relax's rollout engines as the watcher's seats: loss and recovery become events by themselves (rules 14, 15)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from attrs import field, frozen

from lorafsm_asyncio.owner import monotonic_ms
from lorafsm_asyncio.services import run_services
from lorafsm_asyncio.watcher import Seat

if TYPE_CHECKING:
    from lorafsm_sglang.guard import GuardedEngine

__all__ = ["guarded_seats", "run_services"]


@frozen
class _Door:
    """Makes clients of the guarded processes at one seat."""

    engine: str
    url_of: Callable[[str], str]
    token: str = field(repr=False)
    clock: Callable[[], int] = monotonic_ms

    def __call__(self, incarnation: int) -> GuardedEngine:
        from lorafsm_sglang.guard import GuardedEngine  # needs httpx, which a process without engines may lack

        return GuardedEngine(self.engine, incarnation, self.url_of(self.engine), self.token, self.clock)


def _unseen(engine: str) -> str | None:
    return None


def guarded_seats(
    engines: Iterable[str],
    url_of: Callable[[str], str],
    token: str,
    *,
    exited: Callable[[str], str | None] = _unseen,
    clock: Callable[[], int] = monotonic_ms,
) -> tuple[Seat, ...]:
    """One seat an engine, by its name (for Relax "engine-<rank>", since a recovered engine keeps its rank).

    `url_of` is asked for each new process, because a recovered engine may have another port; `exited` says how the
    process which last ran there was seen to end (a dead Ray actor, an exit status), or None.
    """
    return tuple(Seat(name, _Door(name, url_of, token, clock), partial(exited, name)) for name in engines)
