"""What a step answers: one small frozen value per kind of answer, and `Refusal` for every no.

A stored outcome that is returned again is the receipt of the first time; that nothing was done again shows in
`Step.registry`, which is then the very registry that went in.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, TypeAlias

from attrs import frozen

from lorafsm.identity import SessionKey, VersionKey
from lorafsm.lifecycle import SessionState, VersionState


class Code(StrEnum):
    """Outcome codes.  `spec/codes.toml` has a sentence for each."""

    OK = "OK"
    ALREADY_CLOSED = "ALREADY_CLOSED"
    # input
    BAD_INPUT = "BAD_INPUT"
    OTHER_EPOCH = "OTHER_EPOCH"
    UNKNOWN_VERSION = "UNKNOWN_VERSION"
    UNKNOWN_OWNER = "UNKNOWN_OWNER"
    UNKNOWN_ENGINE = "UNKNOWN_ENGINE"
    UNKNOWN_RECLAIM = "UNKNOWN_RECLAIM"
    OPERATION_CONFLICT = "OPERATION_CONFLICT"
    # publication
    VERSION_CONFLICT = "VERSION_CONFLICT"
    VERSION_BACKWARDS = "VERSION_BACKWARDS"
    PUBLICATION_IN_PROGRESS = "PUBLICATION_IN_PROGRESS"
    CAPACITY_ERROR = "CAPACITY_ERROR"
    PUBLICATION_UNRESOLVED = "PUBLICATION_UNRESOLVED"
    TARGET_UNAVAILABLE = "TARGET_UNAVAILABLE"
    BAD_TOKEN = "BAD_TOKEN"
    STALE_ATTEMPT = "STALE_ATTEMPT"
    ENGINE_RESTARTED = "ENGINE_RESTARTED"
    OUT_OF_ORDER = "OUT_OF_ORDER"
    READY_MISMATCH = "READY_MISMATCH"
    STALE_SEQ = "STALE_SEQ"
    ALREADY_AUTHORIZED = "ALREADY_AUTHORIZED"
    NOT_READY = "NOT_READY"
    MEMBERSHIP_CHANGED = "MEMBERSHIP_CHANGED"
    REVISION_CONFLICT = "REVISION_CONFLICT"
    ARTIFACT_MISSING = "ARTIFACT_MISSING"
    ALREADY_COMMITTED = "ALREADY_COMMITTED"
    ALREADY_ABORTED = "ALREADY_ABORTED"
    NOT_ABORTED = "NOT_ABORTED"
    DRIVER_ALIVE = "DRIVER_ALIVE"
    # sessions
    NO_PUBLISHED_VERSION = "NO_PUBLISHED_VERSION"
    NO_BINDING = "NO_BINDING"
    SESSION_CLOSED = "SESSION_CLOSED"
    SESSION_EXPIRED = "SESSION_EXPIRED"
    VERSION_GONE = "VERSION_GONE"
    VERSION_RETIRED_BY_POLICY = "VERSION_RETIRED_BY_POLICY"
    RETRY_UNSAFE = "RETRY_UNSAFE"
    OWNER_ALIVE = "OWNER_ALIVE"
    # reclaim and rollback
    NOT_RETIRED = "NOT_RETIRED"
    SESSION_REFS_HELD = "SESSION_REFS_HELD"
    NOT_ABSENT = "NOT_ABSENT"
    NOT_RESIDENT = "NOT_RESIDENT"
    # fleet
    STALE_INCARNATION = "STALE_INCARNATION"
    BASE_MISMATCH = "BASE_MISMATCH"
    ALREADY_MEMBER = "ALREADY_MEMBER"
    FLEET_FULL = "FLEET_FULL"
    NOT_DEAD = "NOT_DEAD"
    NOT_NEEDED = "NOT_NEEDED"
    BACKING_OFF = "BACKING_OFF"
    STALE_REPAIR = "STALE_REPAIR"


@frozen
class Blocker:
    """A version that holds a slot, and what would free it (rules 1, 11, 16)."""

    key: VersionKey
    state: VersionState
    session_refs: int
    waits_for: str
    oldest: SessionKey | None = None
    oldest_age: int = 0  # ms

    def __str__(self) -> str:
        return f"{self.key} {self.state}: {self.waits_for}"


@frozen
class Refusal:
    """No.  The registry is unchanged; `reason` is one sentence that says what to do."""

    ok: ClassVar[bool] = False
    code: Code
    reason: str
    field: str | None = None  # the offending field of the event, for malformed input
    blockers: tuple[Blocker, ...] = ()
    engines: tuple[str, ...] = ()  # the engines that it is about
    default: VersionKey | None = None  # REVISION_CONFLICT: the default and its revision as they are
    revision: int | None = None

    def __str__(self) -> str:
        return f"{self.code}: {self.reason}"


@frozen
class Done:
    """Yes, and there is nothing more to say."""

    ok: ClassVar[bool] = True
    code: ClassVar[Code] = Code.OK


@frozen
class Reserved:
    """A slot and the right to drive the attempt `number` with the token of the request (RFC 3.2)."""

    ok: ClassVar[bool] = True
    code: ClassVar[Code] = Code.OK
    key: VersionKey
    number: int
    lora_name: str
    revision: int  # the default revision to expect at commit
    targets: tuple[tuple[str, int], ...]  # (engine, incarnation), frozen


@frozen
class VersionStatus:
    """The version is known with this content; the caller has no driving rights (rule 1)."""

    ok: ClassVar[bool] = True
    code: ClassVar[Code] = Code.OK
    key: VersionKey
    state: VersionState
    digest: str
    number: int


@frozen
class Authorized:
    """Permission for one broadcast of one bucket; never given twice (rule 6)."""

    ok: ClassVar[bool] = True
    code: ClassVar[Code] = Code.OK
    number: int
    bucket: int


@frozen
class Committed:
    """The commit receipt: the version became the default at `revision`, in place of `replaced` (RFC 3.3)."""

    ok: ClassVar[bool] = True
    code: ClassVar[Code] = Code.OK
    key: VersionKey
    number: int
    revision: int
    replaced: VersionKey | None


@frozen
class Aborted:
    """The abort receipt (RFC 3.4)."""

    ok: ClassVar[bool] = True
    code: ClassVar[Code] = Code.OK
    key: VersionKey
    number: int
    reason: str


@frozen
class TakenOver:
    """The new driver's rights: same number, same revision seen at reserve; `all_ready` says commit, else abort."""

    ok: ClassVar[bool] = True
    code: ClassVar[Code] = Code.OK
    key: VersionKey
    number: int
    revision: int
    all_ready: bool


@frozen
class RolledBack:
    """The rollback receipt: `key` is the default again, `replaced` is RETIRED (rule 17)."""

    ok: ClassVar[bool] = True
    code: ClassVar[Code] = Code.OK
    key: VersionKey
    revision: int
    replaced: VersionKey


@frozen
class Lease:
    """The owner's lease, and the versions that policy took from its sessions (rules 9, 10)."""

    ok: ClassVar[bool] = True
    code: ClassVar[Code] = Code.OK
    owner: str
    until: int
    revoked: tuple[VersionKey, ...] = ()


@frozen
class SessionStatus:
    """Where the session stands."""

    ok: ClassVar[bool] = True
    code: ClassVar[Code] = Code.OK
    session: SessionKey
    state: SessionState


@frozen
class Binding:
    """The version that this session uses until its end; `lora_name` is the request's `lora_path` (RFC 4.1)."""

    ok: ClassVar[bool] = True
    code: ClassVar[Code] = Code.OK
    session: SessionKey
    key: VersionKey
    lora_name: str
    digest: str


@frozen
class Closed:
    """The session is at its end; `released` says whether this call dropped its ref (RFC 4.3)."""

    ok: ClassVar[bool] = True
    session: SessionKey
    code: Code = Code.OK  # or ALREADY_CLOSED
    released: VersionKey | None = None


@frozen
class ReclaimOrdered:
    """The reclaim of a version, whoever asked first: its id and the incarnations that must confirm (RFC 5.1)."""

    ok: ClassVar[bool] = True
    code: ClassVar[Code] = Code.OK
    reclaim_id: str
    key: VersionKey
    targets: tuple[tuple[str, int], ...]


@frozen
class RepairOrdered:
    """The repair's number and the incarnation that it is for (rule 15)."""

    ok: ClassVar[bool] = True
    code: ClassVar[Code] = Code.OK
    number: int
    key: VersionKey
    engine: str
    incarnation: int


Outcome: TypeAlias = (
    Done
    | Reserved
    | VersionStatus
    | Authorized
    | Committed
    | Aborted
    | TakenOver
    | RolledBack
    | Lease
    | SessionStatus
    | Binding
    | Closed
    | ReclaimOrdered
    | RepairOrdered
    | Refusal
)
