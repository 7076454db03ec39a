"""The records of the registry: frozen, hashable where small, without a clock or any I/O.

One `Registry` value is the whole state.  Its maps are persistent (`immutables.Map`): a step shares everything
it does not change, so it costs the same with 10^2 and with 10^6 sessions (protocol section 1).
Times are integers in milliseconds, taken from the events; 0 means that nobody told the time yet.
"""

from __future__ import annotations

from typing import TypeAlias

from attrs import field, frozen
from immutables import Map

from lorafsm.errors import InvalidField
from lorafsm.holders import Holders
from lorafsm.identity import VersionKey, fault_in_count, fault_in_epoch
from lorafsm.lifecycle import (
    AttemptState,
    EngineState,
    OwnerState,
    ReclaimState,
    RepairState,
    SessionState,
    TargetState,
    UnloadState,
    VersionState,
)
from lorafsm.manifest import Plan
from lorafsm.outcomes import Outcome

MAX_CAPACITY = 8
MAX_ENGINES = 16


@frozen(kw_only=True)
class Config:
    """What is fixed for the life of a registry.  Times in milliseconds; 0 switches a limit off where it says so."""

    capacity: int = 2  # logical versions that may hold a slot (RFC 5.2)
    engine_slots: int = 3  # adapter slots of each engine; at least capacity + 1, since managed adapters are pinned
    base_fingerprint: str = ""  # every engine must report this fingerprint of base weights and tokenizer
    require_artifact: bool = True  # commit needs the bytes in the artifact store (rule 3)
    publish_past_lost: bool = False  # leave LOST and QUARANTINED members out of a publication (rule 1)
    max_version_lag: int = 0  # revoke versions this many publications behind, or more, at commit; 0: never (rule 9)
    owner_lease: int = 30_000  # an owner that is silent for longer may be expired (rule 9)
    driver_lease: int = 60_000  # a publisher without progress for longer may be taken over (rule 5)
    repair_backoff: int = 1_000  # wait after a failed repair, doubled each time (rule 15)
    repair_limit: int = 3  # the failed repair that quarantines the engine

    def __attrs_post_init__(self) -> None:
        for name in ("max_version_lag", "owner_lease", "driver_lease", "repair_backoff"):
            if fault := fault_in_count(getattr(self, name)):
                raise InvalidField(name, fault)
        if type(self.capacity) is not int or not 1 <= self.capacity <= MAX_CAPACITY:
            raise InvalidField("capacity", f"must be 1 to {MAX_CAPACITY}")
        if type(self.engine_slots) is not int or self.engine_slots < self.capacity + 1:
            raise InvalidField(
                "engine_slots",
                "must be at least capacity + 1: pinned adapters may fill all slots but one, and the "
                "base model takes one in a batch",
            )
        if type(self.repair_limit) is not int or self.repair_limit < 1:
            raise InvalidField("repair_limit", "must be at least 1")


@frozen
class Version:
    """One immutable LoRA version and what has become of it."""

    key: VersionKey
    digest: str
    lora_name: str
    state: VersionState
    number: int  # its latest attempt
    since: int  # when `state` was entered
    session_refs: int = 0  # live sessions that hold a ref; 0 once revoked (I4)
    published_revision: int = 0  # the default revision of its latest commit or rollback; 0: never
    reclaim_id: str = ""
    artifact: bool = False  # its bytes are in the artifact store
    revoked: bool = False  # taken from its sessions by max_version_lag; for ever
    failure: str = ""  # why its latest attempt was aborted
    tensors: int = 0  # for status only, as told at reserve
    nbytes: int = 0


@frozen
class Target:
    """One engine's share of an attempt, under the incarnation frozen at reserve."""

    engine: str
    incarnation: int
    state: TargetState = TargetState.RESERVED
    buckets_done: int = 0
    seq: int = -1  # of the engine's latest answer about it; -1: none yet
    detail: str = ""  # the engine's words when FAILED


@frozen
class Attempt:
    """One try at a publication.  The number is its identity, the token its driver's authority (rule 2)."""

    number: int
    key: VersionKey
    token: str
    plan: Plan
    state: AttemptState
    revision: int  # the default revision seen at reserve
    driver_until: int  # end of the driver's lease
    targets: Map[str, Target] = Map()
    authorized: int = 0  # buckets whose broadcast was permitted
    taken_over: bool = False  # no bucket is authorised any more (rule 5)
    reason: str = ""


@frozen
class Session:
    """A live session.  Its key is (registry epoch, owner, sequence): where it lies in the maps."""

    state: SessionState
    label: str
    since: int
    binding: VersionKey | None = None
    position: int = -1  # in the owner's Holders of the binding; -1: holds no ref


@frozen
class Owner:
    """A process that holds sessions; a restarted process is a new owner (rule 9).

    A sequence is closed when it is not live, below `next_sequence` and in no gap: what is kept is what is *not*
    closed, so closed sessions cost nothing and no tombstone can be evicted (rule 8).  `sessions` of an owner that
    is not LIVE any more are those that ended with it.
    """

    owner: str
    state: OwnerState
    lease_until: int
    sessions: Map[int, Session] = Map()
    next_sequence: int = 0  # every sequence from here on is unseen
    gaps: tuple[tuple[int, int], ...] = ()  # unseen sequences below that, as sorted inclusive ranges
    held: Map[VersionKey, Holders] = Map()


@frozen
class Unload:
    """One engine's share of a reclaim."""

    engine: str
    incarnation: int
    state: UnloadState = UnloadState.ORDERED


@frozen
class Reclaim:
    """The order to unload one version everywhere, under one stable id (RFC 5.1)."""

    reclaim_id: str
    key: VersionKey
    state: ReclaimState
    unloads: Map[str, Unload]
    since: int


@frozen
class Repair:
    """The order to load one version on one engine that lacks it; numbered like an attempt (rule 15)."""

    number: int
    key: VersionKey
    engine: str
    incarnation: int
    state: RepairState
    reason: str = ""


@frozen(order=True)
class Resident:
    """An adapter that an engine says it holds: which version, under which digest, loaded by which number."""

    key: VersionKey
    digest: str
    number: int


@frozen
class Inventory:
    """What an engine's agent listed, and the `seq` of that answer.  Names with the managed prefix that cannot be
    attributed to a number of this epoch are listed by name in `foreign`."""

    seq: int
    residents: frozenset[Resident] = frozenset()
    foreign: frozenset[str] = frozenset()


@frozen(order=True)
class Stray:
    """A managed adapter that should not be on an engine: its name there, and the number that loaded it (0: unknown)."""

    lora_name: str
    number: int


@frozen
class Engine:
    """A member of the fleet as the registry knows it."""

    engine: str
    incarnation: int
    state: EngineState
    since: int
    seq: int = 0  # the highest seq of an accepted answer of this incarnation
    inventory: Inventory = Inventory(0)  # the latest
    residents: Map[VersionKey, Resident] = Map()  # proved present by READY, under this incarnation
    strays: frozenset[Stray] = frozenset()  # managed adapters that should not be there (rule 15)
    repairs: Map[VersionKey, int] = Map()  # the ORDERED repair of each version that it lacks
    repair_failures: int = 0
    retry_at: int = 0  # no repair is ordered before
    reason: str = ""  # why it is QUARANTINED or DEAD


OperationKey: TypeAlias = tuple[str, str]
"""(kind of operation, its token, number or id)."""


@frozen
class Registry:
    """The whole state.  Made by `new_registry`, changed only by `step`."""

    config: Config
    epoch: str
    now: int = 0  # the highest time seen
    versions: Map[VersionKey, Version] = Map()
    slots: tuple[VersionKey, ...] = ()  # the versions that hold one, in the order of their reserve
    default: VersionKey | None = None
    default_revision: int = 0
    owners: Map[str, Owner] = Map()
    engines: Map[str, Engine] = Map()
    attempts: Map[int, Attempt] = Map()
    unresolved: int = 0  # the attempt that is OPEN or ABORTED and not CLEAN; 0: none
    reclaims: Map[str, Reclaim] = Map()
    repairs: Map[int, Repair] = Map()
    tokens: Map[str, int] = Map()  # every token ever seen: the attempt that it was for
    receipts: Map[OperationKey, Outcome] = Map()
    next_number: int = 1  # one counter for attempts and repairs, never reused
    highest: int = field()  # version_id ever reserved; -1: none.  Kept, as versions are never removed

    @highest.default
    def _highest_of_versions(self) -> int:
        return max((key.version_id for key in self.versions), default=-1)


def new_registry(epoch: str, config: Config | None = None) -> Registry:
    """An empty registry of one deployment epoch; raises InvalidField naming `epoch`."""
    if fault := fault_in_epoch(epoch):
        raise InvalidField("epoch", fault)
    return Registry(config if config is not None else Config(), epoch)
