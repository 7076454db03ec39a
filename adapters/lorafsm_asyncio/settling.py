"""Where does a request stand whose reply was lost?  Every engine that it may have reached is asked (rule 10)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol, TypeAlias

from lorafsm.dispatch.records import Verdict
from lorafsm.engine.answers import Answer, Settled
from lorafsm.engine.answers import Verdict as Found
from lorafsm.engine.orders import Settle
from lorafsm.identity import VersionKey

AskAboutRequest: TypeAlias = Callable[[str, VersionKey], Awaitable[Verdict | None]]
"""(rid, version) -> what is known of the request; None: it cannot be said now."""


class Settler(Protocol):
    """An engine that can be asked about a request (`lorafsm_sglang.guard.GuardedEngine`)."""

    async def settle(self, settle: Settle) -> Answer | None:
        """RUNNING, or ABSENT and sealed from now on; None: no answer."""


def ask_engines(engines: Callable[[], Iterable[Settler]]) -> AskAboutRequest:
    """Ask all engines that are not proved dead: a router may have sent the request to any of them.

    ABSENT only if every one of them says so, and thereby refuses a late original; RUNNING if one does; None while one
    that may run it is silent.  A dead incarnation runs nothing, and its successor is asked in its place.
    """

    async def ask(rid: str, key: VersionKey) -> Verdict | None:
        asked = tuple(engines())
        answers = await asyncio.gather(*(engine.settle(Settle(rid=rid, key=key)) for engine in asked))
        found = {answer.verdict for answer in answers if isinstance(answer, Settled)}
        if Found.RUNNING in found:
            return Verdict.RUNNING
        complete = asked and all(isinstance(answer, Settled) for answer in answers)
        return Verdict.ABSENT if complete else None

    return ask
