"""Which message on its way answers which order: a policy waits for it before it gives the order again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lorafsm import events as ev
from lorafsm import orders
from lorafsm.engine import orders as inputs
from lorafsm.system.records import ArmedBy, Cell, Message
from lorafsm.system.world import World

_FAILED = (ev.TargetFailed,)
_REPLIES: Mapping[type[Any], tuple[type[Any], ...]] = {
    orders.Begin: (ev.Prepared, ev.BucketDone, ev.Ready, *_FAILED),  # its repeat: the latest fact
    inputs.ArmBucket: (ArmedBy, *_FAILED),
    inputs.ReceiveBucket: (ev.BucketDone, *_FAILED),
    orders.End: (ev.Ready, *_FAILED),
    orders.AskStatus: (ev.Prepared, ev.BucketDone, ev.Ready, ev.Cleaned, *_FAILED),
    orders.Cleanup: (ev.Cleaned, ev.TargetUnknown),
    orders.Load: (ev.RepairReady, ev.RepairFailed),
    orders.Unload: (ev.ConfirmReclaim, ev.ReclaimUnknown),
    orders.UnloadStray: (),
    orders.TakeInventory: (ev.EngineUp,),
}


def answers(world: World, message: Cell[Message], order: Cell[Message]) -> bool:
    """Whether `message` is a reply to `order`, of this time or an earlier one."""
    reply, asked = message.value, order.value
    return isinstance(reply, _REPLIES[type(asked)]) and all(
        getattr(reply, name) == getattr(asked, name)
        for name in ("engine", "incarnation", "number", "bucket", "reclaim_id")
        if hasattr(reply, name) and hasattr(asked, name)
    )
