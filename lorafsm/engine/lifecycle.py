"""The states of what an agent remembers, and which order or result may change which into which.

`None` is "nothing is remembered".  A state that a table does not list under an order stays as it is: the order is
refused, or answered with what is known.  `cleanup`, `unload` and `unload_stray` doom a work that is running; it
goes when its running part has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class WorkState(StrEnum):
    """How far one number (an attempt or a repair) has come on this engine (RFC 3.2)."""

    PREPARED = "PREPARED"  # begun: identity, plan and local resources accepted; no receive is posted
    ARMED = "ARMED"  # the receive of the next bucket is posted
    LOADING = "LOADING"  # the engine is loading it
    PROBING = "PROBING"  # loaded; the exact-version probe is running
    READY = "READY"  # loaded and proved
    FAILED = "FAILED"  # the engine said no


class AdapterState(StrEnum):
    """How far the removal of an adapter has come (protocol rule 13)."""

    PRESENT = "PRESENT"  # the engine holds it
    UNREGISTERING = "UNREGISTERING"  # its name is being taken away; no request is admitted any more
    DRAINING = "DRAINING"  # unregistered; requests of it are in flight
    COUNTING = "COUNTING"  # no request known here; the engine's own count is being read
    UNKNOWN = "UNKNOWN"  # the engine's count was negative or unreadable: that is not zero
    UNLOADING = "UNLOADING"  # the one physical unload is running
    LINGERING = "LINGERING"  # unloaded, and still observed there


RUNNING = frozenset({WorkState.ARMED, WorkState.LOADING, WorkState.PROBING})
"""Something runs on the engine whose result must come first."""

HOLDS_A_FREE_SLOT = frozenset({WorkState.PREPARED, WorkState.ARMED, WorkState.LOADING})
"""No adapter yet, but one is to come."""

_GONE: Mapping[str, tuple[None]] = {"cleanup": (None,), "unload": (None,), "unload_stray": (None,)}

WORK: Mapping[WorkState | None, Mapping[str, tuple[WorkState | None, ...]]] = {
    None: {"begin": (WorkState.PREPARED,), "load": (WorkState.LOADING,)},
    WorkState.PREPARED: {"arm_bucket": (WorkState.ARMED,), "end": (WorkState.LOADING,), **_GONE},
    WorkState.ARMED: {"bucket_finished": (WorkState.PREPARED, WorkState.FAILED, None)},
    WorkState.LOADING: {"load_finished": (WorkState.PROBING, WorkState.FAILED, None)},
    WorkState.PROBING: {"probe_finished": (WorkState.READY, WorkState.FAILED, None)},
    WorkState.READY: {"listed": (WorkState.FAILED,), **_GONE},
    WorkState.FAILED: {"begin": (None,), "load": (None,), **_GONE},  # a later number of the same key replaces it
}

_REMOVED: Mapping[str, tuple[AdapterState, ...]] = {
    "cleanup": (AdapterState.UNREGISTERING,),
    "unload": (AdapterState.UNREGISTERING,),
    "unload_stray": (AdapterState.UNREGISTERING,),
}
_COUNTED: Mapping[str, tuple[AdapterState, ...]] = {
    "cleanup": (AdapterState.COUNTING,),
    "unload": (AdapterState.COUNTING,),
    "unload_stray": (AdapterState.COUNTING,),
}

ADAPTER: Mapping[AdapterState | None, Mapping[str, tuple[AdapterState | None, ...]]] = {
    None: {
        "load_finished": (AdapterState.PRESENT, AdapterState.UNREGISTERING),
        "listed": (AdapterState.PRESENT,),
    },
    AdapterState.PRESENT: {"listed": (None,), "probe_finished": (AdapterState.UNREGISTERING,), **_REMOVED},
    AdapterState.UNREGISTERING: {"unregistered": (AdapterState.DRAINING, AdapterState.COUNTING)},
    AdapterState.DRAINING: {"release": (AdapterState.COUNTING,), **_COUNTED},
    AdapterState.COUNTING: {"counted": (AdapterState.UNLOADING, AdapterState.DRAINING, AdapterState.UNKNOWN)},
    AdapterState.UNKNOWN: {**_COUNTED},
    AdapterState.UNLOADING: {"unload_finished": (None, AdapterState.LINGERING)},
    AdapterState.LINGERING: {"listed": (None,)},
}
