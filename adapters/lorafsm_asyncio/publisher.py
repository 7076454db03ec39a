"""The publisher as an asyncio service: drive an attempt to its end, stand by for those whose driver died (RFC 3).

What to do next is `lorafsm.publisher`'s answer on the registry as it is; so a driver may be stopped anywhere, and
another one goes on.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from lorafsm.events import Takeover
from lorafsm.identity import VersionKey
from lorafsm.lifecycle import AttemptState
from lorafsm.outcomes import Aborted, Code, Committed
from lorafsm_asyncio.client import RegistryClient
from lorafsm_asyncio.errands import Errands, Executor, Send
from lorafsm_asyncio.notices import Notice, Notify, log_notice
from lorafsm_asyncio.owner import monotonic_ms
from lorafsm_asyncio.questions import Driven, DrivenAttempt, PublisherOrders, UnresolvedAttempt, VersionOf
from lorafsm_asyncio.refusals import Refused
from lorafsm_asyncio.rounds import Rounds, Told, untold

_NOBODY = "nobody"  # a token that drives nothing: cleanup of an aborted attempt needs none (rule 4)


class Publisher:
    """Drives attempts over `engines` (an executor for each engine's name; looked up at each order).

    `send` carries out SendBucket orders; an attempt whose engines read the artifact store themselves needs none.
    """

    def __init__(
        self,
        client: RegistryClient,
        engines: Mapping[str, Executor],
        *,
        send: Send | None = None,
        clock: Callable[[], int] = monotonic_ms,
        notify: Notify = log_notice,
        told: Told = untold,
    ) -> None:
        self.client = client
        self._engines = engines
        self._send = send
        self._clock = clock
        self._notify = notify
        self._told = told

    async def publish(self, key: VersionKey, token: str, *, patience: int | None = 30) -> Committed | Aborted:
        """Drive the reserved version to its commit, or to its abort and cleanup; the attempt's one outcome (RFC 6).

        `token` is the reserve's.  Another driver may decide meanwhile: the outcome is the same for all.  Raises
        EngineSilent after `patience` repeats of one order without a result (about a minute; None: never), and Refused
        (UNKNOWN_VERSION).  While the registry does not answer, it waits.
        """
        version = await self.client.ask(VersionOf(key))
        if version is None:
            raise Refused(Code.UNKNOWN_VERSION, f"{key} was never reserved; reserve it first", "key")
        number = version.number
        seen: Driven | None = None

        async def wanted() -> tuple[Any, ...]:
            nonlocal seen
            seen = await self.client.ask(DrivenAttempt(key, number, token, self._clock()))
            return seen.orders

        async def is_done() -> bool:
            ended = None if seen is None else seen.outcome
            return isinstance(ended, Committed) or (seen is not None and ended is not None and seen.clean)

        await self._rounds().go(wanted, is_done, patience)
        assert seen is not None
        assert seen.outcome is not None
        return seen.outcome

    async def run(self) -> None:
        """Stand by until cancelled: clean up what was aborted, take over what its driver's lease has left (rules 4, 5).

        One of these runs wherever the registry can be reached, outside the training processes.
        """
        tokens: dict[int, str] = {}

        async def wanted() -> tuple[Any, ...]:
            now = self._clock()
            found = await self.client.ask(UnresolvedAttempt(now))
            if found is None:
                tokens.clear()
                return ()
            if found.state is AttemptState.OPEN and not found.driver_lease and found.number not in tokens:
                tokens[found.number] = token = secrets.token_hex(16)
                text = f"attempt {found.number} of {found.key} has no living driver; taking it over"
                self._notify(Notice("TAKEOVER", text))
                return (Takeover(key=found.key, token=token, now=now),)
            orders = await self.client.ask(PublisherOrders(tokens.get(found.number, _NOBODY), now))
            if not orders and found.state is AttemptState.OPEN and not found.driver_lease:
                del tokens[found.number]  # this takeover did not arrive, or another's came later
            return orders

        await self._rounds().go(wanted)

    def _rounds(self) -> Rounds:
        errands = Errands(self._engines, self._clock, self._notify, self._send)
        return Rounds(self.client, errands, self._notify, self._told)
