"""The reclaimer's policy: which unheld versions to reclaim, and which engines still have to unload (RFC 5).

Stateless and idempotent.  A version is reclaimed at most once in an epoch, so its reclaim_id follows from its
key; a restarted reclaimer finds the same id.  One stuck engine delays nothing but its own slot.
"""

from __future__ import annotations

from lorafsm.events import ClaimReclaim
from lorafsm.identity import VersionKey
from lorafsm.lifecycle import UnloadState, VersionState
from lorafsm.orders import Order, Unload
from lorafsm.records import Registry


def reclaim_id_of(key: VersionKey) -> str:
    """The stable id of a version's reclaim."""
    return f"reclaim-{key}"


def next_orders(r: Registry, now: int) -> tuple[Order | ClaimReclaim, ...]:
    """Claims to submit and unloads to order, in the order of the slots."""
    orders: list[Order | ClaimReclaim] = []
    for key in r.slots:
        version = r.versions[key]
        if version.state is VersionState.RETIRED and not version.session_refs:
            orders.append(ClaimReclaim(key=key, reclaim_id=reclaim_id_of(key), now=now))
        elif version.state is VersionState.RECLAIMING:
            orders += [
                Unload(
                    epoch=r.epoch,
                    engine=unload.engine,
                    incarnation=unload.incarnation,
                    reclaim_id=version.reclaim_id,
                    key=key,
                    digest=version.digest,
                    lora_name=version.lora_name,
                )
                for _, unload in sorted(r.reclaims[version.reclaim_id].unloads.items())
                if unload.state is not UnloadState.UNLOADED
            ]
    return tuple(orders)
