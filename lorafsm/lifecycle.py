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


V, A, T, O, S = VersionState, AttemptState, TargetState, OwnerState, SessionState
U, P, E = UnloadState, RepairState, EngineState

VERSION: Mapping[V | None, Mapping[str, tuple[V, ...]]] = {
    None: {"reserve": (V.LOADING,)},
    V.LOADING: {"commit": (V.PUBLISHED,), "abort": (V.ABORTED, V.FAILED_CLEAN)},
    V.PUBLISHED: {"commit": (V.RETIRED,), "rollback": (V.RETIRED,)},
    V.RETIRED: {"rollback": (V.PUBLISHED,), "claim_reclaim": (V.RECLAIMING, V.RECLAIMED)},
    V.RECLAIMING: {"confirm_reclaim": (V.RECLAIMED,), "engine_up": (V.RECLAIMED,), "engine_dead": (V.RECLAIMED,)},
    V.RECLAIMED: {},
    V.ABORTED: {"cleaned": (V.FAILED_CLEAN,), "engine_up": (V.FAILED_CLEAN,), "engine_dead": (V.FAILED_CLEAN,)},
    V.FAILED_CLEAN: {"reserve": (V.LOADING,)},
}

ATTEMPT: Mapping[A | None, Mapping[str, tuple[A, ...]]] = {
    None: {"reserve": (A.OPEN,)},
    A.OPEN: {"commit": (A.COMMITTED,), "abort": (A.ABORTED, A.CLEAN)},
    A.COMMITTED: {},
    A.ABORTED: {"cleaned": (A.CLEAN,), "engine_up": (A.CLEAN,), "engine_dead": (A.CLEAN,)},
    A.CLEAN: {},
}

_ANSWERS: Mapping[str, tuple[T, ...]] = {
    "target_failed": (T.FAILED,),
    "target_unknown": (T.UNKNOWN,),
    "cleaned": (T.CLEANED,),
    "engine_up": (T.FAILED, T.CLEANED),
    "engine_dead": (T.CLEANED,),
}

TARGET: Mapping[T | None, Mapping[str, tuple[T, ...]]] = {
    None: {"reserve": (T.RESERVED,)},
    T.RESERVED: {"prepared": (T.PREPARED,), **_ANSWERS},
    T.PREPARED: {"bucket_done": (T.RECEIVING,), "ready": (T.READY,), **_ANSWERS},
    T.RECEIVING: {"ready": (T.READY,), **_ANSWERS},
    T.READY: {**_ANSWERS},
    T.FAILED: {"cleaned": (T.CLEANED,), "engine_up": (T.CLEANED,), "engine_dead": (T.CLEANED,)},
    T.UNKNOWN: {
        "prepared": (T.PREPARED,),
        "bucket_done": (T.RECEIVING,),
        "ready": (T.READY,),
        "target_failed": (T.FAILED,),
        "cleaned": (T.CLEANED,),
        "engine_up": (T.FAILED, T.CLEANED),
        "engine_dead": (T.CLEANED,),
    },
    T.CLEANED: {},
}

OWNER: Mapping[O | None, Mapping[str, tuple[O, ...]]] = {
    None: {"owner_up": (O.LIVE,)},
    O.LIVE: {"owner_expired": (O.EXPIRED,), "owner_gone": (O.GONE,)},
    O.EXPIRED: {"owner_gone": (O.GONE,)},
    O.GONE: {},
}

_ENDS: Mapping[str, tuple[S, ...]] = {
    "close_and_release": (S.CLOSED,),
    "owner_expired": (S.EXPIRED,),
    "owner_gone": (S.EXPIRED,),
}

SESSION: Mapping[S | None, Mapping[str, tuple[S, ...]]] = {
    None: {"open": (S.OPEN,), "bind_first": (S.BOUND,), "begin_close": (S.FINALIZING,), **_ENDS},
    S.OPEN: {"bind_first": (S.BOUND,), "begin_close": (S.FINALIZING,), **_ENDS},
    S.BOUND: {"begin_close": (S.FINALIZING,), **_ENDS},
    S.FINALIZING: {**_ENDS},
    S.CLOSED: {},
    S.EXPIRED: {},
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

UNLOAD: Mapping[U | None, Mapping[str, tuple[U, ...]]] = {
    None: {"claim_reclaim": (U.ORDERED,)},
    U.ORDERED: {
        "reclaim_unknown": (U.UNKNOWN,),
        "confirm_reclaim": (U.UNLOADED,),
        "engine_up": (U.UNLOADED,),
        "engine_dead": (U.UNLOADED,),
    },
    U.UNKNOWN: {"confirm_reclaim": (U.UNLOADED,), "engine_up": (U.ORDERED, U.UNLOADED), "engine_dead": (U.UNLOADED,)},
    U.UNLOADED: {},
}

_WITHDRAWALS: Mapping[str, tuple[P, ...]] = {
    "claim_reclaim": (P.WITHDRAWN,),
    "engine_up": (P.WITHDRAWN,),
    "engine_dead": (P.WITHDRAWN,),
    "quarantine": (P.WITHDRAWN,),
}

REPAIR: Mapping[P | None, Mapping[str, tuple[P, ...]]] = {
    None: {"order_repair": (P.ORDERED,)},
    P.ORDERED: {"repair_ready": (P.READY,), "repair_failed": (P.FAILED,), **_WITHDRAWALS},
    P.READY: {},
    P.FAILED: {},
    P.WITHDRAWN: {},
}

_ALIVE: Mapping[str, tuple[E, ...]] = {
    "engine_lost": (E.LOST,),
    "engine_dead": (E.DEAD,),
    "quarantine": (E.QUARANTINED,),
}

ENGINE: Mapping[E | None, Mapping[str, tuple[E, ...]]] = {
    None: {"engine_join": (E.UP, E.REPAIRING)},
    E.UP: {"engine_up": (E.REPAIRING,), "commit": (E.REPAIRING,), **_ALIVE},
    E.LOST: {"engine_up": (E.UP, E.REPAIRING), "engine_dead": (E.DEAD,), "quarantine": (E.QUARANTINED,)},
    E.REPAIRING: {
        "engine_up": (E.UP,),
        "repair_ready": (E.UP,),
        "claim_reclaim": (E.UP,),
        "repair_failed": (E.QUARANTINED,),
        **_ALIVE,
    },
    E.QUARANTINED: {"engine_up": (E.UP, E.REPAIRING), "engine_dead": (E.DEAD,)},
    E.DEAD: {"engine_up": (E.UP, E.REPAIRING), "engine_remove": (E.REMOVED,)},
    E.REMOVED: {"engine_join": (E.UP, E.REPAIRING)},
}

HOLDS_A_SLOT = frozenset({V.LOADING, V.PUBLISHED, V.RETIRED, V.RECLAIMING, V.ABORTED})
SERVES = frozenset({V.PUBLISHED, V.RETIRED})
ALIVE = frozenset({E.UP, E.REPAIRING})
