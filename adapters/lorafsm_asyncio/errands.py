"""The orders of one service that are under way: each one once at a time, repeated after pauses that grow.

Nothing here is a state of the protocol.  A service that ends drops its errands: every order is one operation on the
engine, whose result a repeat returns, so whoever looks at the registry next goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias

from attrs import frozen

from lorafsm.events import Event, ReclaimUnknown, TargetUnknown
from lorafsm.orders import Order, SendBucket, UnloadStray
from lorafsm_asyncio.notices import Notice, Notify

_PAUSE_S = 0.1  # before the first repeat; doubled each time, up to
_LONGEST_PAUSE_S = 2.0

Send: TypeAlias = Callable[[SendBucket], Awaitable[Sequence[Event]]]
"""The transport: arm the bucket on every engine, have it authorised, broadcast it once; the events that came of it."""


class Executor(Protocol):
    """What carries out one engine's orders (`lorafsm_sglang.guard.GuardedEngine`)."""

    async def carry_out(self, order: Order) -> Event | None:
        """The event that reports the result; None where there is nothing to report, or nothing is known."""


@frozen
class Name:
    """An order's identity, the same each time it is given."""

    kind: str
    engine: str
    about: str
    incarnation: int = 0  # an order to a new process does not wait for one to its dead predecessor

    def __str__(self) -> str:
        return " ".join(filter(None, (self.kind, self.about)))


def name_of(order: Order) -> Name:
    """Kind, addressee, and the number or id that makes it one operation."""
    if isinstance(order, SendBucket):
        return Name("SendBucket", "", f"{order.number}/{order.bucket}")
    about = next((str(getattr(order, f)) for f in ("reclaim_id", "operation_key", "number") if hasattr(order, f)), "")
    return Name(type(order).__name__, order.engine, about, order.incarnation)


@frozen
class Errand:
    """One order that is being carried out, since `began` (ms)."""

    order: Order
    began: int
    task: asyncio.Task[tuple[Event, ...]]


class Errands:
    """`give` starts what is wanted, `finished` takes what came of it, `stop` drops the rest.

    `engines` is looked up at each order, so that a restarted engine's new executor is found.
    """

    def __init__(
        self, engines: Mapping[str, Executor], clock: Callable[[], int], notify: Notify, send: Send | None = None
    ) -> None:
        self.running: dict[Name, Errand] = {}
        self.silent: dict[Name, int] = {}  # how often in a row the result was not learnt
        self._first: dict[Name, int] = {}  # when the order was first wanted, ms
        self._tried: dict[Name, int] = {}  # how often it was carried out and wanted again
        self._engines = engines
        self._clock = clock
        self._notify = notify
        self._send = send

    def give(self, orders: Iterable[Order]) -> None:
        """Start what is wanted and not under way; forget what is not wanted any more.

        What is under way goes on to its end although the policy has moved on: its result is a fact.
        """
        wanted = {name_of(order): order for order in orders}
        now = self._clock()
        for counts in (self._first, self._tried, self.silent):
            for name in counts.keys() - wanted.keys() - self.running.keys():
                del counts[name]
        for name, order in wanted.items():
            self._first.setdefault(name, now)
            if name not in self.running:
                tried = self._tried.get(name, 0)
                pause = min(_LONGEST_PAUSE_S, _PAUSE_S * 2 ** min(tried - 1, 8)) if tried else 0.0
                task = asyncio.create_task(self._carry_out(order, pause), name=str(name))
                self.running[name] = Errand(order, now, task)

    def waited(self, name: Name) -> int:
        """For how long this order has been wanted, in ms."""
        return self._clock() - self._first.get(name, self._clock())

    def finished(self) -> tuple[Event, ...]:
        """The events of all errands that ended since."""
        events: list[Event] = []
        for name in [name for name, errand in self.running.items() if errand.task.done()]:
            came = self.running.pop(name).task.result()
            self._tried[name] = self._tried.get(name, 0) + 1
            if all(isinstance(event, TargetUnknown | ReclaimUnknown) for event in came) and not _is_mute(name):
                self.silent[name] = times = self.silent.get(name, 0) + 1
                events += came if times == 1 else ()  # told once: a silent engine must not fill the journal
            else:
                self.silent.pop(name, None)
                events += came
        return tuple(events)

    async def stop(self) -> None:
        """Drop what is under way; the engines go on with it."""
        tasks = [errand.task for errand in self.running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.running.clear()

    async def _carry_out(self, order: Order, pause_s: float) -> tuple[Event, ...]:
        await asyncio.sleep(pause_s)
        try:
            if isinstance(order, SendBucket):
                return await self._sent(order)
            executor = self._engines.get(order.engine)
            if executor is None:
                self._notify(Notice("NO_EXECUTOR", f"nothing here talks to {order.engine}", order.engine))
                return ()
            event = await executor.carry_out(order)
        except Exception as error:  # one engine's client must not stop the service of all the others
            engine = getattr(order, "engine", "")
            self._notify(Notice("EXECUTOR_FAILED", f"{name_of(order)}: {type(error).__name__}: {error}", engine))
            return ()
        return () if event is None else (event,)

    async def _sent(self, order: SendBucket) -> tuple[Event, ...]:
        if self._send is None:
            self._notify(Notice("NO_TRANSPORT", f"{name_of(order)}: this publisher was given no `send`"))
            return ()
        return tuple(await self._send(order))


def _is_mute(name: Name) -> bool:
    """Orders whose success is told by no event: a stray's absence shows in the next inventory."""
    return name.kind == UnloadStray.__name__
