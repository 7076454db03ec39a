"""What an agent answers: each answer is true at the `seq` that it carries, under the incarnation that it names.

A higher seq knows more; where an answer and an inventory differ, the higher one decides (protocol section 2).
`agent_step` fills in `incarnation` and `seq`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, TypeAlias

from attrs import evolve, frozen

from lorafsm.engine.actions import Action
from lorafsm.engine.records import Agent
from lorafsm.identity import VersionKey
from lorafsm.outcomes import Code
from lorafsm.records import Resident


class AgentCode(StrEnum):
    """Codes of refusals that only an engine gives; the others are `lorafsm.outcomes.Code`."""

    VERSION_CLOSED = "VERSION_CLOSED"  # the key was closed on this incarnation for ever (rule 13)
    VERSION_MISSING = "VERSION_MISSING"  # the exact name is not served here; nothing else stands in for it
    NO_RESOURCES = "NO_RESOURCES"  # no free slot, or no memory for the stash (rule 6)
    DUPLICATE_RID = "DUPLICATE_RID"  # a request with this rid is in flight
    RID_SEALED = "RID_SEALED"  # the rid was declared absent; its late original must not start
    UNEXPECTED_RESULT = "UNEXPECTED_RESULT"  # the result of an action that is not running


class Verdict(StrEnum):
    """What a settle found (rule 10)."""

    RUNNING = "RUNNING"
    ABSENT = "ABSENT"  # not in flight, and sealed


@frozen(kw_only=True)
class _Answer:
    ok: ClassVar[bool] = True
    incarnation: int = 0
    seq: int = 0


@frozen(kw_only=True)
class Refused(_Answer):
    """No.  The agent is unchanged; `reason` is one sentence that says what to do."""

    ok: ClassVar[bool] = False
    code: Code | AgentCode
    reason: str
    field: str | None = None  # the offending field, for malformed input
    number: int = 0  # of the refused order
    repair: bool = False  # whether that was a repair's

    def __str__(self) -> str:
        return f"{self.code}: {self.reason}"


@frozen(kw_only=True)
class Prepared(_Answer):
    """Identity, plan and local resources are accepted (RFC 3.2)."""

    number: int


@frozen(kw_only=True)
class Armed(_Answer):
    """The receive of this bucket is posted, or was (rule 6)."""

    number: int
    bucket: int


@frozen(kw_only=True)
class BucketDone(_Answer):
    """This bucket and all before it are complete in the number's stash."""

    number: int
    bucket: int


@frozen(kw_only=True)
class Ready(_Answer):
    """READY_LOCAL: loaded, verified, probed, and still there (RFC 3.2)."""

    number: int
    repair: bool
    key: VersionKey
    digest: str
    base_fingerprint: str


@frozen(kw_only=True)
class Failed(_Answer):
    """The engine said no to this number, for good."""

    number: int
    repair: bool
    reason: str


@frozen(kw_only=True)
class Cleaned(_Answer):
    """Nothing of the attempt is left here, and nothing of it can come any more."""

    number: int


@frozen(kw_only=True)
class Unloaded(_Answer):
    """The receipt of a reclaim: the version is absent and its key closed on this incarnation."""

    reclaim_id: str
    key: VersionKey


@frozen(kw_only=True)
class StrayGone(_Answer):
    """What the stray order named is absent."""

    operation_key: str
    lora_name: str


@frozen(kw_only=True)
class Pending(_Answer):
    """Under way; give the same order again.  `waits_for` says what must happen first."""

    waits_for: str


@frozen(kw_only=True)
class Unknown(_Answer):
    """Whether it is gone cannot be said: that is neither yes nor zero (rules 13, 16)."""

    reason: str
    number: int = 0  # the cleanup that waits for it
    reclaim_id: str = ""  # or the reclaim


@frozen(kw_only=True)
class Unseen(_Answer):
    """Nothing was ever said here about this number."""

    number: int


@frozen(kw_only=True)
class Inventory(_Answer):
    """All that the engine holds: by the number that loaded it, and strangers by name."""

    base_fingerprint: str
    residents: frozenset[Resident]
    foreign: frozenset[str]


@frozen(kw_only=True)
class Acquired(_Answer):
    """The request may run, on exactly this adapter."""

    rid: str
    lora_name: str


@frozen(kw_only=True)
class Released(_Answer):
    """The request holds nothing any more; `released` says whether this call dropped its ref."""

    rid: str
    released: bool


@frozen(kw_only=True)
class Settled(_Answer):
    """Where the request stands (rule 10)."""

    rid: str
    verdict: Verdict


@frozen(kw_only=True)
class Noted(_Answer):
    """A result was taken in; whoever waits gives the order again."""


Answer: TypeAlias = (
    Refused
    | Prepared
    | Armed
    | BucketDone
    | Ready
    | Failed
    | Cleaned
    | Unloaded
    | StrayGone
    | Pending
    | Unknown
    | Unseen
    | Inventory
    | Acquired
    | Released
    | Settled
    | Noted
)


@frozen
class AgentStep:
    """The agent after the input (the same object when nothing changed), the answer, and what is to be done."""

    agent: Agent
    answer: Answer
    actions: tuple[Action, ...] = ()


def refuse(agent: Agent, code: Code | AgentCode, reason: str, *, field: str | None = None) -> AgentStep:
    """No, with a code and one sentence; nothing changes."""
    return AgentStep(agent, Refused(code=code, reason=reason, field=field))


def with_fact(agent: Agent) -> Agent:
    """The agent with a new fact to tell: the next seq."""
    return evolve(agent, seq=agent.seq + 1)
