"""The repairer's policy: make every member hold what sessions may need, and nothing that should not be there (rule 15).

Stateless and idempotent, like the other two.
"""

from __future__ import annotations

from lorafsm.events import OrderRepair
from lorafsm.lifecycle import ALIVE
from lorafsm.orders import Load, Order, TakeInventory, UnloadStray
from lorafsm.records import Engine, Registry
from lorafsm.registry.view import lacks, members


def next_orders(r: Registry, now: int) -> tuple[Order | OrderRepair, ...]:
    """Repairs to number, loads to order, strays to remove and then to look for again."""
    return tuple(order for m in members(r) if m.state in ALIVE for order in _for_engine(r, m, now))


def _for_engine(r: Registry, m: Engine, now: int) -> tuple[Order | OrderRepair, ...]:
    orders: list[Order | OrderRepair] = []
    for stray in sorted(m.strays):
        orders.append(
            UnloadStray(
                epoch=r.epoch,
                engine=m.engine,
                incarnation=m.incarnation,
                lora_name=stray.lora_name,
                number=stray.number,
                operation_key=f"stray-{stray.lora_name}-{stray.number}",
            )
        )
    if m.strays:
        orders.append(TakeInventory(epoch=r.epoch, engine=m.engine, incarnation=m.incarnation))
    names = {stray.lora_name for stray in m.strays}
    for key in lacks(m, r):
        version = r.versions[key]
        if key in m.repairs:
            orders.append(
                Load(
                    epoch=r.epoch,
                    engine=m.engine,
                    incarnation=m.incarnation,
                    number=m.repairs[key],
                    key=key,
                    digest=version.digest,
                    lora_name=version.lora_name,
                )
            )
        elif version.artifact and now >= m.retry_at and version.lora_name not in names:
            orders.append(OrderRepair(key=key, engine=m.engine, now=now))
    return tuple(orders)
