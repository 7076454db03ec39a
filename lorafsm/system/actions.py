"""What may happen in the composed system: one named action for each, grouped by who takes it."""

from __future__ import annotations

from typing import Literal, TypeAlias

from attrs import frozen

from lorafsm.engine import orders as inputs
from lorafsm.engine.actions import Action as ExecutorAction
from lorafsm.identity import VersionKey
from lorafsm.system.records import Message


def message_name(message: Message) -> str:
    """begin, armed, request, ready, engine_up ..."""
    name = getattr(message, "name", None)
    return str(name) if name is not None else inputs.name_of(type(message))  # type: ignore[arg-type]


# The trainer


@frozen
class Reserve:
    """The trainer reserves a version, and becomes its driver when it is accepted."""

    key: VersionKey


@frozen
class StoreArtifact:
    """The version's bytes are durable."""

    key: VersionKey


# The policies


@frozen
class GiveOrders:
    """publisher, reclaimer or repairer: all its orders that are not on their way already."""

    policy: str


@frozen
class Decide:
    """The publisher submits its decision: commit or abort."""


@frozen
class Claim:
    """The reclaimer claims the reclaim of a version."""

    key: VersionKey


@frozen
class AskRepair:
    """The repairer has a repair numbered."""

    engine: str
    key: VersionKey


@frozen
class Authorize:
    """The driver asks for the permission to broadcast the next bucket."""


@frozen
class Broadcast:
    """The driver broadcasts the bucket that was authorised."""


@frozen
class Takeover:
    """A new publisher, which has no token, takes the open attempt over by hand-over."""


# The network


@frozen
class Deliver:
    """A message arrives."""

    message: Message

    @property
    def name(self) -> str:
        """deliver and the message's name."""
        return f"deliver {message_name(self.message)}"


@frozen
class Lose:
    """A message is lost."""

    message: Message
    name = "lose"


@frozen
class Duplicate:
    """A message arrives, and a copy of it stays on its way."""

    message: Message
    name = "duplicate"


# An engine


@frozen
class Finish:
    """The executor is done: "ok", "failed", or "corrupt" when the bytes that it was to load were not the version's."""

    engine: str
    action: ExecutorAction
    result: Literal["ok", "failed", "corrupt"] = "ok"

    @property
    def name(self) -> str:
        """finish and the action's name."""
        return f"finish {type(self.action).__name__}"


@frozen
class EndRequest:
    """A running request reaches its end."""

    engine: str
    rid: str


@frozen
class Report:
    """The engine's keeper sends its inventory: after a restart or a silence, or for no reason."""

    engine: str


# The owner of the sessions


@frozen
class Open:
    """The next session opens, and binds nothing."""

    sequence: int


@frozen
class Bind:
    """The next session opens and binds to the default."""

    sequence: int


@frozen
class Dispatch:
    """A bound session sends a request to an engine that proved its version."""

    sequence: int
    engine: str


@frozen
class Settle:
    """The owner asks the engine whether a request in doubt is running (rule 10)."""

    sequence: int


@frozen
class BeginClose:
    """No new dispatch of this session."""

    sequence: int


@frozen
class Close:
    """The session ends and releases its ref."""

    sequence: int


# Faults


@frozen
class CrashEngine:
    """An engine's process ends and an empty successor starts; the registry hears of it by a report."""

    engine: str


@frozen
class CrashPublisher:
    """The publisher forgets its token and its transport's state."""


@frozen
class Hush:
    """A driver or reclaimer waited in vain: `number` or `reclaim_id` is UNKNOWN on this engine."""

    engine: str
    number: int = 0
    reclaim_id: str = ""


@frozen
class LoseEngine:
    """An engine counts as silent."""

    engine: str


@frozen
class GiveUp:
    """The publisher's deadline has passed: it aborts."""


@frozen
class EndOwner:
    """The owner's process ends; its requests run on."""


@frozen
class Doubt:
    """The reply that admits a request is lost (rule 10)."""

    sequence: int


@frozen
class RollBack:
    """An operator makes a RETIRED version the default again."""

    key: VersionKey


@frozen
class RepeatReserve:
    """A late copy of the reserve that opened this attempt arrives."""

    number: int


@frozen
class RepeatBind:
    """A late copy of a session's first bind arrives."""

    sequence: int


@frozen
class DeclareDead:
    """An engine's process ends, with evidence, and an empty successor starts; the registry hears of the end at once."""

    engine: str


Action: TypeAlias = (
    Reserve
    | StoreArtifact
    | GiveOrders
    | Decide
    | Claim
    | AskRepair
    | Authorize
    | Broadcast
    | Takeover
    | Deliver
    | Lose
    | Duplicate
    | Finish
    | EndRequest
    | Report
    | Open
    | Bind
    | Dispatch
    | Settle
    | BeginClose
    | Close
    | CrashEngine
    | CrashPublisher
    | Hush
    | LoseEngine
    | GiveUp
    | EndOwner
    | Doubt
    | RollBack
    | RepeatReserve
    | RepeatBind
    | DeclareDead
)
