"""Relax's rollout engines: as seats that a watcher looks at (rules 14, 15), and as whom a shard or a trainer asks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from attrs import define, field, frozen

from lorafsm.engine.answers import Answer
from lorafsm.engine.orders import EngineOrder, Settle
from lorafsm.errors import LoraFsmError
from lorafsm.events import Event
from lorafsm.lifecycle import EngineState
from lorafsm.orders import Begin, Order, SendBucket
from lorafsm_asyncio.owner import monotonic_ms
from lorafsm_asyncio.questions import Fleet, Question
from lorafsm_asyncio.services import run_services
from lorafsm_asyncio.watcher import Seat

if TYPE_CHECKING:
    from lorafsm_sglang.guard import GuardedEngine

__all__ = ["guarded_engines", "guarded_seats", "run_services", "wait_for_engines"]

_LOOK_S = 1.0

Announce: TypeAlias = Callable[[Begin], Mapping[str, Any] | None]
"""The document that goes with a begin (`lorafsm_torch.BucketSender.announcement`)."""


def _nothing(begin: Begin) -> None:
    return None


@frozen
class _Door:
    """Makes clients of the guarded processes at one seat."""

    engine: str
    url_of: Callable[[str], str]
    token: str = field(repr=False)
    clock: Callable[[], int] = monotonic_ms
    announce: Announce = _nothing

    def __call__(self, incarnation: int) -> GuardedEngine:
        from lorafsm_sglang.guard import GuardedEngine  # needs httpx, which a process without engines may lack

        url = self.url_of(self.engine)
        return GuardedEngine(self.engine, incarnation, url, self.token, self.clock, announce=self.announce)


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


@define
class GuardedMember:
    """One engine by its name, process after process: each order goes to the process that it is addressed to.

    Belongs to one event loop.  Clients of ended processes are kept until `aclose`: there are as many as restarts.
    """

    _door: _Door
    _clients: dict[tuple[int, str], GuardedEngine] = field(factory=dict)

    async def carry_out(self, order: Order) -> Event | None:
        """As `GuardedEngine`."""
        if isinstance(order, SendBucket):
            raise TypeError("SendBucket is an order to the transport")
        return await self._client(order.incarnation).carry_out(order)

    async def give(self, order: EngineOrder, wait_s: float = 0.0) -> Answer | None:
        """As `GuardedEngine`."""
        return await self._client(order.incarnation).give(order, wait_s)

    async def settle(self, settle: Settle) -> Answer | None:
        """As `GuardedEngine`, of whichever process answers: a dead one runs nothing."""
        return await self._client(0).settle(settle)

    async def aclose(self) -> None:
        """Close all connections."""
        while self._clients:
            await self._clients.popitem()[1].aclose()

    def _client(self, incarnation: int) -> GuardedEngine:
        place = incarnation, self._door.url_of(self._door.engine)
        if place not in self._clients:
            self._clients[place] = self._door(incarnation)
        return self._clients[place]


def guarded_engines(
    engines: Iterable[str],
    url_of: Callable[[str], str],
    token: str,
    *,
    clock: Callable[[], int] = monotonic_ms,
    announce: Announce = _nothing,
) -> dict[str, GuardedMember]:
    """The engines by name, for a process that runs no watcher: a shard's `ask_engines`, a trainer's publisher.

    `url_of` is asked at each call, because a recovered engine may have another port.
    """
    return {name: GuardedMember(_Door(name, url_of, token, clock, announce)) for name in engines}


class Blocking(Protocol):
    """A client without an event loop (`lorafsm_ray.connect_blocking`)."""

    def ask(self, question: Question[Any]) -> Any:
        """The registry's answer."""

    def changed(self, seen: int, timeout_s: float) -> int:
        """Wait for a change; the number of events accepted by now."""


def wait_for_engines(client: Blocking, engines: Iterable[str], within_s: float = 600.0) -> None:
    """Block until all of these are members that serve: before the first update, which needs them.

    Raises LoraFsmError (ENGINES_MISSING) naming those that did not join in time.
    """
    names, seen, end = frozenset(engines), -1, time.monotonic() + within_s
    while missing := names - {m.engine for m in client.ask(Fleet()) if m.state is EngineState.UP}:
        if (left := end - time.monotonic()) <= 0:
            text = f"{', '.join(sorted(missing))} did not join within {within_s:g} s; the watcher's notices say why"
            raise LoraFsmError("ENGINES_MISSING", text)
        seen = client.changed(seen, min(_LOOK_S, left))
