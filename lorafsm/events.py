"""Everything that can happen to the registry: one frozen record per event.

Constructors check nothing, so that `step` can answer any event, however malformed, with a refusal
(`lorafsm.forms`).  Tokens, ids and times are made by adapters and arrive here as data; `now` is in milliseconds.
"""

from __future__ import annotations

import re
from typing import ClassVar, TypeAlias, get_args

from attrs import frozen

from lorafsm.identity import SessionKey, VersionKey
from lorafsm.manifest import Plan
from lorafsm.records import Resident


@frozen(kw_only=True)
class _Event:
    name: ClassVar[str]
    now: int = 0

    def __init_subclass__(cls) -> None:
        cls.name = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


# Publication (RFC 3, rules 1-6, 17)


@frozen(kw_only=True)
class Reserve(_Event):
    """Ask for a slot and the right to publish (RFC 3.2).  `token` is fresh and unguessable; `tensors` and `nbytes`
    describe the snapshot for status only."""

    key: VersionKey
    digest: str
    plan: Plan
    token: str
    tensors: int = 0
    nbytes: int = 0


@frozen(kw_only=True)
class ArtifactStored(_Event):
    """The version's bytes are durable in the artifact store (rule 3)."""

    key: VersionKey
    digest: str


@frozen(kw_only=True)
class Prepared(_Event):
    """An engine answered PREPARED to begin (RFC 3.2)."""

    number: int
    engine: str
    incarnation: int
    seq: int


@frozen(kw_only=True)
class AuthorizeBucket(_Event):
    """The driver asks to broadcast bucket `bucket` (0, 1, ...), once (rule 6)."""

    number: int
    token: str
    bucket: int


@frozen(kw_only=True)
class BucketDone(_Event):
    """An engine completed a bucket into the attempt's own stash (RFC 3.2)."""

    number: int
    engine: str
    incarnation: int
    seq: int
    bucket: int


@frozen(kw_only=True)
class Ready(_Event):
    """READY_LOCAL: verified manifest, fresh load, exact-version probe (RFC 3.2, 3.3)."""

    number: int
    engine: str
    incarnation: int
    seq: int
    key: VersionKey
    digest: str
    base_fingerprint: str
    probe_ok: bool


@frozen(kw_only=True)
class TargetFailed(_Event):
    """An engine refused or failed an order of the attempt, and knows it."""

    number: int
    engine: str
    incarnation: int
    seq: int
    reason: str


@frozen(kw_only=True)
class TargetUnknown(_Event):
    """The driver could not learn an order's result within its deadline (RFC 3.4)."""

    number: int
    engine: str
    incarnation: int


@frozen(kw_only=True)
class Commit(_Event):
    """Make the version the default (RFC 3.3)."""

    key: VersionKey
    token: str
    expected_revision: int


@frozen(kw_only=True)
class Abort(_Event):
    """Give the attempt up (RFC 3.4)."""

    key: VersionKey
    token: str
    reason: str


@frozen(kw_only=True)
class Cleaned(_Event):
    """An engine observed that nothing of the attempt is left on it (RFC 3.4)."""

    number: int
    engine: str
    incarnation: int
    seq: int


@frozen(kw_only=True)
class Takeover(_Event):
    """Another publisher takes a silent driver's attempt; `handover` may be the old token (rule 5)."""

    key: VersionKey
    token: str
    handover: str = ""


@frozen(kw_only=True)
class Rollback(_Event):
    """Make a resident RETIRED version the default again, without a transfer (rule 17)."""

    key: VersionKey
    expected_revision: int
    operation_id: str


# Sessions (RFC 4, rules 7-9)


@frozen(kw_only=True)
class OwnerUp(_Event):
    """A process that will hold sessions registers, under an id that was never used."""

    owner: str


@frozen(kw_only=True)
class Heartbeat(_Event):
    """An owner renews its lease; the answer carries revocations (rule 10)."""

    owner: str


@frozen(kw_only=True)
class OwnerExpired(_Event):
    """Somebody noticed that an owner's lease ran out."""

    owner: str


@frozen(kw_only=True)
class OwnerGone(_Event):
    """An owner leaves, or is known to have ended; its live sessions end with it."""

    owner: str


@frozen(kw_only=True)
class Recovered(_Event):
    """The registry came back from its journal: every lease is granted anew from `now` (protocol section 1)."""


@frozen(kw_only=True)
class Open(_Event):
    """Register a session; binds nothing (RFC 4.1)."""

    session: SessionKey
    label: str = ""


@frozen(kw_only=True)
class BindFirst(_Event):
    """The session's first generation: bind it to the default, once (RFC 4.1)."""

    session: SessionKey


@frozen(kw_only=True)
class BeginClose(_Event):
    """No new dispatch for this session; late open and bind are refused (RFC 4.3)."""

    session: SessionKey


@frozen(kw_only=True)
class CloseAndRelease(_Event):
    """The session ends: drop its ref, once (RFC 4.3)."""

    session: SessionKey


# Reclaim (RFC 5, rules 11-13)


@frozen(kw_only=True)
class ClaimReclaim(_Event):
    """Start the reclaim of a RETIRED version that no session holds (RFC 5.1)."""

    key: VersionKey
    reclaim_id: str


@frozen(kw_only=True)
class ConfirmReclaim(_Event):
    """An engine's UNLOADED receipt: the version is observed absent (RFC 5.1)."""

    reclaim_id: str
    engine: str
    incarnation: int
    seq: int
    observed_absent: bool


@frozen(kw_only=True)
class ReclaimUnknown(_Event):
    """An unload's result could not be learnt within its deadline."""

    reclaim_id: str
    engine: str
    incarnation: int


# Fleet (rules 14, 15)


@frozen(kw_only=True)
class EngineJoin(_Event):
    """A new member; it is no target of a publication that is under way."""

    engine: str
    incarnation: int
    seq: int
    base_fingerprint: str
    residents: frozenset[Resident] = frozenset()
    foreign: frozenset[str] = frozenset()


@frozen(kw_only=True)
class EngineUp(_Event):
    """A member's inventory: of its live incarnation, or of a new one whose predecessor is proved to have ended."""

    engine: str
    incarnation: int
    seq: int
    base_fingerprint: str
    residents: frozenset[Resident] = frozenset()
    foreign: frozenset[str] = frozenset()


@frozen(kw_only=True)
class EngineLost(_Event):
    """A member is silent.  Suspends; proves nothing."""

    engine: str
    incarnation: int


@frozen(kw_only=True)
class EngineDead(_Event):
    """A member's process is proved to have ended; `evidence` says how."""

    engine: str
    incarnation: int
    evidence: str


@frozen(kw_only=True)
class EngineRemove(_Event):
    """A dead member leaves the fleet."""

    engine: str


@frozen(kw_only=True)
class Quarantine(_Event):
    """A member must serve nothing: it broke a promise, such as a negative request count."""

    engine: str
    incarnation: int
    reason: str


@frozen(kw_only=True)
class OrderRepair(_Event):
    """Load a needed version on a member that lacks it; the answer numbers the repair."""

    key: VersionKey
    engine: str


@frozen(kw_only=True)
class RepairReady(_Event):
    """The repaired engine's READY, with the same proof as a publication's."""

    number: int
    engine: str
    incarnation: int
    seq: int
    key: VersionKey
    digest: str
    base_fingerprint: str
    probe_ok: bool


@frozen(kw_only=True)
class RepairFailed(_Event):
    """The engine refused or failed the repair, and knows it."""

    number: int
    engine: str
    incarnation: int
    seq: int
    reason: str


Event: TypeAlias = (
    Reserve
    | ArtifactStored
    | Prepared
    | AuthorizeBucket
    | BucketDone
    | Ready
    | TargetFailed
    | TargetUnknown
    | Commit
    | Abort
    | Cleaned
    | Takeover
    | Rollback
    | OwnerUp
    | Heartbeat
    | OwnerExpired
    | OwnerGone
    | Recovered
    | Open
    | BindFirst
    | BeginClose
    | CloseAndRelease
    | ClaimReclaim
    | ConfirmReclaim
    | ReclaimUnknown
    | EngineJoin
    | EngineUp
    | EngineLost
    | EngineDead
    | EngineRemove
    | Quarantine
    | OrderRepair
    | RepairReady
    | RepairFailed
)

EVENTS: tuple[type[Event], ...] = get_args(Event)
