"""The states of every record and which event may change which state into which.

Everything that affects a record's `state` is listed here.  A key of a table is a state (`None`: the record does
not exist yet), its value maps the name of an event to the states that the event may lead to.  Where an event
has two results, a guard decides (the last target cleaned, or not yet); where a state lacks an event, the event
is refused, answered with what is stored, or leaves that state alone.  `spec/*.toml` says the same with the
refusal codes and the clauses; a test keeps both equal, and `invariants.check_change` holds every step to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class VersionState(StrEnum):
    """Lifecycle of an immutable LoRA version (RFC 3.3, 3.4, 5.2)."""

    LOADING = "LOADING"  # reserved: holds a slot, no session can see it
    PUBLISHED = "PUBLISHED"  # the default: every target proved READY and the commit is decided
    RETIRED = "RETIRED"  # no longer the default; sessions bound to it go on
    RECLAIMING = "RECLAIMING"  # no session can use it any more; engines are unloading it
    RECLAIMED = "RECLAIMED"  # every engine confirmed its absence; the slot is free
    ABORTED = "ABORTED"  # the attempt failed; engines may still hold parts of it
    FAILED_CLEAN = "FAILED_CLEAN"  # every target is clean; the slot is free


class AttemptState(StrEnum):
    """Lifecycle of one publication attempt."""

    OPEN = "OPEN"  # has a driver and a token
    COMMITTED = "COMMITTED"  # its version became the default
    ABORTED = "ABORTED"  # decided against; cleanup is ordered
    CLEAN = "CLEAN"  # nothing of it is left on any engine


class TargetState(StrEnum):
    """Lifecycle of one engine's share of an attempt (RFC 3.2)."""

    RESERVED = "RESERVED"  # frozen with its incarnation; begin may be on its way
    PREPARED = "PREPARED"  # identity, plan and local resources accepted
    RECEIVING = "RECEIVING"  # at least one bucket is complete here
    READY = "READY"  # loaded, verified and probed under the exact digest
    FAILED = "FAILED"  # the engine said no
    UNKNOWN = "UNKNOWN"  # an order's result could not be learnt
    CLEANED = "CLEANED"  # observed absent, or its incarnation is dead


class OwnerState(StrEnum):
    """Lifecycle of a process that holds sessions."""

    LIVE = "LIVE"
    EXPIRED = "EXPIRED"  # its lease ran out: its refs are gone, its sessions read EXPIRED
    GONE = "GONE"  # it left, or nobody will ask for its sessions again


class SessionState(StrEnum):
    """Lifecycle of a session (RFC 4.1, 4.3).  CLOSED and EXPIRED are final."""

    OPEN = "OPEN"  # registered; not bound
    BOUND = "BOUND"  # bound to one version for ever; holds one ref
    FINALIZING = "FINALIZING"  # no new dispatch; the ref is held until released
    CLOSED = "CLOSED"  # released
    EXPIRED = "EXPIRED"  # ended with its owner


class ReclaimState(StrEnum):
    """Lifecycle of a reclaim as a whole."""

    OPEN = "OPEN"
    DONE = "DONE"


class UnloadState(StrEnum):
    """Lifecycle of one engine's share of a reclaim (RFC 5.1)."""

    ORDERED = "ORDERED"
    UNKNOWN = "UNKNOWN"
    UNLOADED = "UNLOADED"


class RepairState(StrEnum):
    """Lifecycle of the reload of one version on one engine that lacks it (protocol rule 15)."""

    ORDERED = "ORDERED"
    READY = "READY"
    FAILED = "FAILED"
    WITHDRAWN = "WITHDRAWN"


class EngineState(StrEnum):
    """Lifecycle of a member of the fleet (protocol rules 14, 15)."""

    UP = "UP"  # alive and proved to hold every version that sessions may need
    LOST = "LOST"  # silent; nothing is concluded from silence
    REPAIRING = "REPAIRING"  # alive; some version is still missing on it
    QUARANTINED = "QUARANTINED"  # three repairs failed, or an operator said so; serves nothing
    DEAD = "DEAD"  # its process is proved to have ended
    REMOVED = "REMOVED"  # no longer a member


VERSION: Mapping[VersionState | None, Mapping[str, tuple[VersionState, ...]]] = {
    None: {"reserve": (VersionState.LOADING,)},
    VersionState.LOADING: {
        "commit": (VersionState.PUBLISHED,),
        "abort": (VersionState.ABORTED, VersionState.FAILED_CLEAN),
    },
    VersionState.PUBLISHED: {"commit": (VersionState.RETIRED,), "rollback": (VersionState.RETIRED,)},
    VersionState.RETIRED: {
        "rollback": (VersionState.PUBLISHED,),
        "claim_reclaim": (VersionState.RECLAIMING, VersionState.RECLAIMED),
    },
    VersionState.RECLAIMING: {
        "confirm_reclaim": (VersionState.RECLAIMED,),
        "engine_up": (VersionState.RECLAIMED,),
        "engine_dead": (VersionState.RECLAIMED,),
    },
    VersionState.RECLAIMED: {},
    VersionState.ABORTED: {
        "cleaned": (VersionState.FAILED_CLEAN,),
        "engine_up": (VersionState.FAILED_CLEAN,),
        "engine_dead": (VersionState.FAILED_CLEAN,),
    },
    VersionState.FAILED_CLEAN: {"reserve": (VersionState.LOADING,)},
}

ATTEMPT: Mapping[AttemptState | None, Mapping[str, tuple[AttemptState, ...]]] = {
    None: {"reserve": (AttemptState.OPEN,)},
    AttemptState.OPEN: {"commit": (AttemptState.COMMITTED,), "abort": (AttemptState.ABORTED, AttemptState.CLEAN)},
    AttemptState.COMMITTED: {},
    AttemptState.ABORTED: {
        "cleaned": (AttemptState.CLEAN,),
        "engine_up": (AttemptState.CLEAN,),
        "engine_dead": (AttemptState.CLEAN,),
    },
    AttemptState.CLEAN: {},
}

_ANSWERS: Mapping[str, tuple[TargetState, ...]] = {
    "target_failed": (TargetState.FAILED,),
    "target_unknown": (TargetState.UNKNOWN,),
    "cleaned": (TargetState.CLEANED,),
    "engine_up": (TargetState.FAILED, TargetState.CLEANED),
    "engine_dead": (TargetState.CLEANED,),
}

TARGET: Mapping[TargetState | None, Mapping[str, tuple[TargetState, ...]]] = {
    None: {"reserve": (TargetState.RESERVED,)},
    TargetState.RESERVED: {"prepared": (TargetState.PREPARED,), **_ANSWERS},
    TargetState.PREPARED: {"bucket_done": (TargetState.RECEIVING,), "ready": (TargetState.READY,), **_ANSWERS},
    TargetState.RECEIVING: {"ready": (TargetState.READY,), **_ANSWERS},
    TargetState.READY: {**_ANSWERS},
    TargetState.FAILED: {
        "cleaned": (TargetState.CLEANED,),
        "engine_up": (TargetState.CLEANED,),
        "engine_dead": (TargetState.CLEANED,),
    },
    TargetState.UNKNOWN: {
        "prepared": (TargetState.PREPARED,),
        "bucket_done": (TargetState.RECEIVING,),
        "ready": (TargetState.READY,),
        "target_failed": (TargetState.FAILED,),
        "cleaned": (TargetState.CLEANED,),
        "engine_up": (TargetState.FAILED, TargetState.CLEANED),
        "engine_dead": (TargetState.CLEANED,),
    },
    TargetState.CLEANED: {},
}

OWNER: Mapping[OwnerState | None, Mapping[str, tuple[OwnerState, ...]]] = {
    None: {"owner_up": (OwnerState.LIVE,)},
    OwnerState.LIVE: {"owner_expired": (OwnerState.EXPIRED,), "owner_gone": (OwnerState.GONE,)},
    OwnerState.EXPIRED: {"owner_gone": (OwnerState.GONE,)},
    OwnerState.GONE: {},
}

_ENDS: Mapping[str, tuple[SessionState, ...]] = {
    "close_and_release": (SessionState.CLOSED,),
    "owner_expired": (SessionState.EXPIRED,),
    "owner_gone": (SessionState.EXPIRED,),
}

SESSION: Mapping[SessionState | None, Mapping[str, tuple[SessionState, ...]]] = {
    None: {
        "open": (SessionState.OPEN,),
        "bind_first": (SessionState.BOUND,),
        "begin_close": (SessionState.FINALIZING,),
        **_ENDS,
    },
    SessionState.OPEN: {"bind_first": (SessionState.BOUND,), "begin_close": (SessionState.FINALIZING,), **_ENDS},
    SessionState.BOUND: {"begin_close": (SessionState.FINALIZING,), **_ENDS},
    SessionState.FINALIZING: {**_ENDS},
    SessionState.CLOSED: {},
    SessionState.EXPIRED: {},
}

RECLAIM: Mapping[ReclaimState | None, Mapping[str, tuple[ReclaimState, ...]]] = {
    None: {"claim_reclaim": (ReclaimState.OPEN, ReclaimState.DONE)},
    ReclaimState.OPEN: {
        "confirm_reclaim": (ReclaimState.DONE,),
        "engine_up": (ReclaimState.DONE,),
        "engine_dead": (ReclaimState.DONE,),
    },
    ReclaimState.DONE: {},
}

UNLOAD: Mapping[UnloadState | None, Mapping[str, tuple[UnloadState, ...]]] = {
    None: {"claim_reclaim": (UnloadState.ORDERED,)},
    UnloadState.ORDERED: {
        "reclaim_unknown": (UnloadState.UNKNOWN,),
        "confirm_reclaim": (UnloadState.UNLOADED,),
        "engine_up": (UnloadState.UNLOADED,),
        "engine_dead": (UnloadState.UNLOADED,),
    },
    UnloadState.UNKNOWN: {
        "confirm_reclaim": (UnloadState.UNLOADED,),
        "engine_up": (UnloadState.ORDERED, UnloadState.UNLOADED),
        "engine_dead": (UnloadState.UNLOADED,),
    },
    UnloadState.UNLOADED: {},
}

_WITHDRAWALS: Mapping[str, tuple[RepairState, ...]] = {
    "claim_reclaim": (RepairState.WITHDRAWN,),
    "engine_up": (RepairState.WITHDRAWN,),
    "engine_dead": (RepairState.WITHDRAWN,),
    "quarantine": (RepairState.WITHDRAWN,),
}

REPAIR: Mapping[RepairState | None, Mapping[str, tuple[RepairState, ...]]] = {
    None: {"order_repair": (RepairState.ORDERED,)},
    RepairState.ORDERED: {
        "repair_ready": (RepairState.READY,),
        "repair_failed": (RepairState.FAILED, RepairState.WITHDRAWN),
        **_WITHDRAWALS,
    },
    RepairState.READY: {},
    RepairState.FAILED: {},
    RepairState.WITHDRAWN: {},
}

_ALIVE: Mapping[str, tuple[EngineState, ...]] = {
    "engine_lost": (EngineState.LOST,),
    "engine_dead": (EngineState.DEAD,),
    "quarantine": (EngineState.QUARANTINED,),
}

ENGINE: Mapping[EngineState | None, Mapping[str, tuple[EngineState, ...]]] = {
    None: {"engine_join": (EngineState.UP, EngineState.REPAIRING)},
    EngineState.UP: {
        "engine_up": (EngineState.REPAIRING,),
        "commit": (EngineState.REPAIRING,),
        **_ALIVE,
    },
    EngineState.LOST: {
        "engine_up": (EngineState.UP, EngineState.REPAIRING),
        "engine_dead": (EngineState.DEAD,),
        "quarantine": (EngineState.QUARANTINED,),
        "repair_failed": (EngineState.QUARANTINED,),
    },
    EngineState.REPAIRING: {
        "repair_ready": (EngineState.UP,),
        "commit": (EngineState.UP,),
        "rollback": (EngineState.UP,),
        "close_and_release": (EngineState.UP,),
        "owner_expired": (EngineState.UP,),
        "owner_gone": (EngineState.UP,),
        "repair_failed": (EngineState.QUARANTINED,),
        **_ALIVE,
    },
    EngineState.QUARANTINED: {"engine_up": (EngineState.UP, EngineState.REPAIRING), "engine_dead": (EngineState.DEAD,)},
    EngineState.DEAD: {"engine_up": (EngineState.UP, EngineState.REPAIRING), "engine_remove": (EngineState.REMOVED,)},
    EngineState.REMOVED: {"engine_join": (EngineState.UP, EngineState.REPAIRING)},
}

HOLDS_A_SLOT = frozenset(
    {VersionState.LOADING, VersionState.PUBLISHED, VersionState.RETIRED, VersionState.RECLAIMING, VersionState.ABORTED}
)
SERVES = frozenset({VersionState.PUBLISHED, VersionState.RETIRED})
ALIVE = frozenset({EngineState.UP, EngineState.REPAIRING})
