"""Relax's rollout engines as the watcher's seats: loss and recovery become events by themselves (rules 14, 15)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from lorafsm_asyncio.services import run_services
from lorafsm_asyncio.watcher import Seat

__all__ = ["guarded_seats", "run_services"]


def guarded_seats(
    engines: Iterable[str],
    url_of: Callable[[str], str],
    token: str,
    *,
    exited: Callable[[str], str | None] = lambda engine: None,
    clock: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
) -> tuple[Seat, ...]:
    """One seat an engine, by its name (Relax: "engine-<rank>", since a recovered engine keeps its rank).

    `url_of` is asked for each new process, because a recovered engine may have another port; `exited` says how the
    process which last ran there was seen to end (a dead Ray actor, an exit status), or None.
    """
    return tuple(
        Seat(engine, partial(_connected, engine, url_of, token, clock), partial(exited, engine)) for engine in engines
    )


def _connected(
    engine: str, url_of: Callable[[str], str], token: str, clock: Callable[[], int], incarnation: int
) -> Any:
    from lorafsm_sglang.guard import GuardedEngine

    return GuardedEngine(engine, incarnation, url_of(engine), token, clock)
