"""The trainer, the three policies, and the driver's transport of buckets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attrs import evolve

from lorafsm import events as ev
from lorafsm.engine.orders import ArmBucket, ReceiveBucket
from lorafsm.events import EVENTS
from lorafsm.lifecycle import TargetState, VersionState
from lorafsm.orders import SendBucket
from lorafsm.outcomes import Reserved
from lorafsm.records import Attempt, Registry
from lorafsm.system import actions as do
from lorafsm.system.invariants import commit_on
from lorafsm.system.records import Cell, Driver, Message, System
from lorafsm.system.replies import answers
from lorafsm.system.world import EPOCH, World, open_attempt

POLICIES = ("publisher", "reclaimer", "repairer")
_MID_BUCKET = (TargetState.PREPARED, TargetState.RECEIVING)


def moves(world: World, state: System) -> Iterator[do.Action]:
    """Reserve, store, give orders, decide, send."""
    for action in world.remembered(_of_trainer, state.registry):
        again = isinstance(action, do.Reserve) and action.key in state.registry.value.versions
        if not again or world.may(state, "retry"):
            yield action
    for policy in POLICIES:
        if _to_give(world, state, policy):
            yield do.GiveOrders(policy)
    for action, event in world.remembered(_decisions, state.registry, state.driver):
        if event not in state.network:
            yield action
    yield from world.remembered(_of_driver, state.registry, state.driver)


def _of_trainer(world: World, registry: Cell[Registry]) -> tuple[do.Action, ...]:
    r, wanted = registry.value, []
    for number in range(1, world.box.versions + 1):
        key = world.key(number)
        version = r.versions.get(key)
        if version is None:
            wanted.append(do.Reserve(key))
            break
        if version.state is VersionState.FAILED_CLEAN:
            wanted.append(do.Reserve(key))
    stores = [do.StoreArtifact(v.key) for v in r.versions.values() if world.box.stored_late and not v.artifact]
    return (*wanted, *sorted(stores, key=lambda store: store.key))


def _policy(world: World, registry: Cell[Registry], driver: Cell[Driver], policy: str) -> tuple[Any, ...]:
    r, rules = registry.value, world.rules
    if policy == "publisher":
        return rules.publisher(r, driver.value.token, 0)
    return rules.reclaimer(r, 0) if policy == "reclaimer" else rules.repairer(r, 0)


def _orders(world: World, registry: Cell[Registry], driver: Cell[Driver], policy: str) -> tuple[Cell[Message], ...]:
    """The engine orders of a policy; the transport's stand for a SendBucket."""
    orders: list[Message] = []
    for item in world.remembered(_policy, registry, driver, policy):
        if isinstance(item, SendBucket):
            orders += _to_arm(registry.value, driver.value, item)
        elif not isinstance(item, EVENTS):
            orders.append(item)
    attempt = open_attempt(registry.value)
    if policy == "publisher" and attempt is not None and attempt.token == driver.value.token:
        orders += _to_receive(attempt)
    return tuple(world.cell(order) for order in orders)


def _to_arm(r: Registry, driver: Driver, send: SendBucket) -> list[ArmBucket]:
    targets = r.attempts[send.number].targets
    return [
        ArmBucket(
            epoch=EPOCH,
            engine=engine,
            incarnation=targets[engine].incarnation,
            number=send.number,
            bucket=send.bucket,
        )
        for engine in send.engines
        if engine not in driver.armed
    ]


def _to_receive(attempt: Attempt) -> list[ReceiveBucket]:
    return [
        ReceiveBucket(
            epoch=EPOCH,
            engine=target.engine,
            incarnation=target.incarnation,
            number=attempt.number,
            bucket=target.buckets_done,
        )
        for _, target in sorted(attempt.targets.items())
        if target.state in _MID_BUCKET and target.buckets_done < attempt.authorized
    ]


def _to_give(world: World, state: System, policy: str) -> tuple[Cell[Message], ...]:
    """The orders that are not on their way, and whose answers are not either."""
    orders = world.remembered(_orders, state.registry, state.driver, policy)
    return tuple(
        order
        for order in orders
        if order not in state.network and not any(world.remembered(answers, m, order) for m in state.network)
    )


def _decisions(
    world: World, registry: Cell[Registry], driver: Cell[Driver]
) -> tuple[tuple[do.Action, Cell[Message]], ...]:
    """What a policy submits to the registry."""
    found: list[tuple[do.Action, Cell[Message]]] = []
    for policy in POLICIES:
        for item in world.remembered(_policy, registry, driver, policy):
            action: do.Action | None = None
            match item:
                case ev.Commit() | ev.Abort():
                    action = do.Decide()
                    item = evolve(item, reason=item.reason.split(":")[0]) if isinstance(item, ev.Abort) else item
                case ev.ClaimReclaim():
                    action = do.Claim(item.key)
                case ev.OrderRepair():
                    action = do.AskRepair(item.engine, item.key)
                case _:
                    continue
            found.append((action, world.cell(item)))
    return tuple(found)


def _of_driver(world: World, registry: Cell[Registry], driver: Cell[Driver]) -> tuple[do.Action, ...]:
    if driver.value.permitted:
        return (do.Broadcast(),)
    if not driver.value.token:
        return (do.Takeover(),) if open_attempt(registry.value) is not None else ()
    for item in world.remembered(_policy, registry, driver, "publisher"):
        if isinstance(item, SendBucket):
            armed = driver.value.armed >= set(item.engines)
            return (do.Authorize(),) if armed or not world.rules.waits_for_armed else ()
    return ()


def reserve(world: World, state: System, action: do.Reserve) -> tuple[System, str]:
    """The trainer that is accepted drives the attempt."""
    r = state.registry.value
    token = f"t{r.next_number}"
    event = ev.Reserve(key=action.key, digest=world.digest(action.key), plan=world.plan(), token=token)
    after, outcome = world.tell(state, event)
    if not isinstance(outcome, Reserved):
        return after, outcome.code
    after = after._replace(driver=world.cell(evolve(after.driver.value, token=token)))
    if action.key in r.versions:
        after = world.spent(after, "retry")
    if not world.box.stored_late:
        after, _ = world.tell(after, ev.ArtifactStored(key=action.key, digest=event.digest))
    return after, outcome.code


def store_artifact(world: World, state: System, action: do.StoreArtifact) -> tuple[System, str]:
    """The bytes are durable."""
    after, outcome = world.tell(state, ev.ArtifactStored(key=action.key, digest=world.digest(action.key)))
    return after, outcome.code


def give_orders(world: World, state: System, action: do.GiveOrders) -> tuple[System, str]:
    """All that the policy wants now is on its way."""
    return world.sent(state, _to_give(world, state, action.policy)), "OK"


def submit(world: World, state: System, action: do.Action) -> tuple[System, str]:
    """Submit a decision; it arrives at once, or travels where the box says so."""
    for wanted, event in world.remembered(_decisions, state.registry, state.driver):
        if wanted == action:
            return (world.sent(state, (event,)), "SENT") if world.box.late_decisions else told(world, state, event)
    return state, "NONE"


def told(world: World, state: System, event: Cell[Any]) -> tuple[System, str]:
    """The registry hears an event; a commit is measured against what the engines physically hold."""
    after, outcome = world.tell_cell(state, event)
    if isinstance(event.value, ev.Commit) and after is not state:
        processes = tuple(cell.value for cell in state.engines)
        after = after._replace(wrong=after.wrong + commit_on(after.registry.value, event.value.key, processes))
    return after, outcome.code


def authorize(world: World, state: System, action: do.Authorize) -> tuple[System, str]:
    """Ask for the broadcast of the next bucket."""
    attempt = open_attempt(state.registry.value)
    assert attempt is not None
    event = ev.AuthorizeBucket(number=attempt.number, token=state.driver.value.token, bucket=attempt.authorized)
    after, outcome = world.tell(state, event)
    if not outcome.ok:
        return after, outcome.code
    return after._replace(driver=world.cell(evolve(after.driver.value, permitted=True))), outcome.code


def broadcast(world: World, state: System, action: do.Broadcast) -> tuple[System, str]:
    """The one broadcast of a bucket: every engine of the attempt must have posted its receive (rule 6, I8)."""
    attempt = open_attempt(state.registry.value)
    assert attempt is not None
    sent = (attempt.number, attempt.authorized - 1)
    wrong = [f"I8: bucket {sent[1]} of number {sent[0]} is broadcast twice"] * (sent in state.driver.value.sent)
    for cell in state.engines:
        p = cell.value
        target = attempt.targets.get(p.agent.engine)
        if target is None or target.incarnation != p.agent.incarnation:
            continue
        if ("receive", *sent) not in p.history:
            wrong.append(f"rule 6: bucket {sent[1]} is broadcast and {p.agent.engine} never armed it")
    driver = evolve(state.driver.value, armed=frozenset(), permitted=False, sent=state.driver.value.sent | {sent})
    return state._replace(driver=world.cell(driver), wrong=(*state.wrong, *wrong)), "OK"


def take_over(world: World, state: System, action: do.Takeover) -> tuple[System, str]:
    """A successor without a token gets one by hand-over (rule 5)."""
    attempt = open_attempt(state.registry.value)
    assert attempt is not None
    token = f"{attempt.token}u"
    after, outcome = world.tell(state, ev.Takeover(key=attempt.key, token=token, handover=attempt.token))
    if not outcome.ok:
        return after, outcome.code
    return after._replace(driver=world.cell(evolve(after.driver.value, token=token))), outcome.code


STEPS: Mapping[type[Any], Callable[[World, System, Any], tuple[System, str]]] = {
    do.Reserve: reserve,
    do.StoreArtifact: store_artifact,
    do.GiveOrders: give_orders,
    do.Decide: submit,
    do.Claim: submit,
    do.AskRepair: submit,
    do.Authorize: authorize,
    do.Broadcast: broadcast,
    do.Takeover: take_over,
}
