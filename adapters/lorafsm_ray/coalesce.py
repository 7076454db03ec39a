"""Many callers, few calls: what concurrent callers of one process want applied travels together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from attrs import frozen

from lorafsm.events import Event
from lorafsm.outcomes import Outcome
from lorafsm_asyncio.client import RegistryUnavailable

Outcomes = tuple[Outcome, ...]


@frozen(eq=False)
class _Wanted:
    events: tuple[Event, ...]
    done: asyncio.Future[Outcomes]


class Coalescer:
    """Sends what was asked for since the last call as one call, each caller's events together and in order.

    At most `in_flight` calls are under way, so a burst grows into larger calls and not into more of them; a lone
    caller waits for nobody.  An outage is every caller's of a call; another error is nobody's yet, and each is sent
    again alone.  A caller that goes away takes nothing back.  For one event loop.
    """

    def __init__(
        self, send: Callable[[tuple[Event, ...]], Awaitable[Outcomes]], in_flight: int = 2, largest: int = 512
    ) -> None:
        self._send = send
        self._free = in_flight
        self._largest = largest
        self._waiting: list[_Wanted] = []
        self._scheduled = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def apply_all(self, events: Sequence[Event]) -> Outcomes:
        """The outcomes of these events; raises what `send` raises."""
        loop = asyncio.get_running_loop()
        wanted = _Wanted(tuple(events), loop.create_future())
        self._waiting.append(wanted)
        if not self._scheduled:  # after this turn of the loop, so that all who ask in it are in
            self._scheduled = True
            loop.call_soon(self._go)
        return await wanted.done

    def _go(self) -> None:
        self._scheduled = False
        while self._waiting and self._free:
            count, size = 0, 0
            while count < len(self._waiting) and (
                not count or size + len(self._waiting[count].events) <= self._largest
            ):
                size += len(self._waiting[count].events)
                count += 1
            batch, self._waiting = self._waiting[:count], self._waiting[count:]
            self._free -= 1
            task = asyncio.get_running_loop().create_task(self._carry(batch))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(self, batch: list[_Wanted]) -> None:
        try:
            await self._deliver(batch)
        except RegistryUnavailable as error:
            for wanted in batch:
                _fail(wanted, error)
        except Exception as error:
            if len(batch) == 1:
                _fail(batch[0], error)
            else:
                await asyncio.gather(*[self._carry_alone(wanted) for wanted in batch])
        except asyncio.CancelledError:  # the loop is ending
            for wanted in (*batch, *self._waiting):
                wanted.done.cancel()
            self._waiting.clear()
            raise
        finally:
            self._free += 1
            self._go()

    async def _carry_alone(self, wanted: _Wanted) -> None:
        if wanted.done.done():  # its caller has gone
            return
        try:
            await self._deliver([wanted])
        except Exception as error:
            _fail(wanted, error)

    async def _deliver(self, batch: list[_Wanted]) -> None:
        outcomes = await self._send(tuple([event for wanted in batch for event in wanted.events]))
        at = 0
        for wanted in batch:
            if not wanted.done.done():
                wanted.done.set_result(outcomes[at : at + len(wanted.events)])
            at += len(wanted.events)


def _fail(wanted: _Wanted, error: Exception) -> None:
    if not wanted.done.done():
        wanted.done.set_exception(error)
