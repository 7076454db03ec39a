"""Two agents, the policies and the registry together: what an agent answers is what the registry needs to hear."""

from typing import Any

import pytest

from lorafsm import events as ev
from lorafsm import orders, publisher, reclaimer, repairer
from lorafsm.engine import agent_step, new_agent
from lorafsm.engine import orders as inputs
from lorafsm.engine.actions import AskQuarantine
from lorafsm.engine.answers import Armed, Noted, Pending, Refused, StrayGone, Unknown, Unseen
from lorafsm.engine.report import as_event
from lorafsm.identity import SessionKey
from lorafsm.lifecycle import EngineState, VersionState
from lorafsm.outcomes import Code
from lorafsm.records import Config, Registry, new_registry
from lorafsm.registry import step
from lorafsm.registry.view import routable
from tests.core.agent_story import BASE, EPOCH, Desk, digest_of, key_of, plan_of


class Fleet:
    """A registry, its policies, and a desk per engine; the network loses nothing here."""

    def __init__(self, *engines: str) -> None:
        self.r: Registry = new_registry(EPOCH, Config(base_fingerprint=BASE, repair_backoff=0))
        self.desks: dict[str, Desk] = {}
        self.incarnations = dict.fromkeys(engines, 1)
        self.fail: set[tuple[str, str]] = set()  # (engine, action) that fails
        self.tell(ev.OwnerUp(owner="o1"))
        for engine in engines:
            self.start(engine)
            self.tell(ev.EngineJoin(engine=engine, incarnation=1, seq=0, base_fingerprint=BASE))

    def start(self, engine: str) -> None:
        self.desks[engine] = Desk()
        self.desks[engine].agent = new_agent(engine, self.incarnations[engine], EPOCH, base_fingerprint=BASE)

    def tell(self, event: Any) -> Any:
        done = step(self.r, event)
        self.r = done.registry
        return done.outcome

    def order(self, order: Any) -> None:
        desk = self.desks[order.engine]
        before = self.r
        event = as_event(desk.give(order), order.engine, self.r.now)
        outcome = self.tell(event) if event is not None else None
        if outcome is not None and not outcome.ok:
            assert self.r is before
        while desk.todo:
            name = type(desk.todo[0]).__name__
            if isinstance(desk.todo[0], AskQuarantine):
                self.tell(as_event(desk.todo[0], order.engine, self.r.now))
            desk.do(ok=(order.engine, name) not in self.fail)

    def run(self, token: str = "") -> None:
        """Let the policies work until they have nothing left to say."""
        for _ in range(60):
            found = (*publisher.next_orders(self.r, token, self.r.now), *reclaimer.next_orders(self.r, self.r.now))
            found += repairer.next_orders(self.r, self.r.now)
            if not found:
                return
            for each in found:
                match each:
                    case orders.SendBucket():
                        self.send(each, token)
                    case ev.Commit() | ev.Abort() | ev.ClaimReclaim() | ev.OrderRepair():
                        self.tell(each)
                    case _:
                        self.order(each)
        raise AssertionError(f"the policies never finish: {found}")

    def send(self, bucket: orders.SendBucket, token: str) -> None:
        words = {"epoch": EPOCH, "number": bucket.number, "bucket": bucket.bucket}
        where = [{"engine": engine, "incarnation": self.incarnations[engine], **words} for engine in bucket.engines]
        for to in where:
            assert isinstance(self.desks[to["engine"]].give(inputs.ArmBucket(**to)), Armed)
        assert self.tell(ev.AuthorizeBucket(number=bucket.number, token=token, bucket=bucket.bucket)).ok
        for to in where:
            assert self.desks[to["engine"]].do() == "PostReceive"
            self.order(inputs.ReceiveBucket(**to))

    def publish(self, letter: str, buckets: int = 0) -> Any:
        token = f"t-{letter}-{self.r.next_number}"
        words = {"key": key_of(letter), "digest": digest_of(letter)}
        reserved = self.tell(ev.Reserve(**words, plan=plan_of(buckets), token=token))
        self.tell(ev.ArtifactStored(**words))
        self.run(token)
        return reserved

    def state(self, letter: str) -> VersionState:
        return self.r.versions[key_of(letter)].state

    def held(self) -> dict[str, tuple[str, ...]]:
        out = {}
        for engine, desk in self.desks.items():
            residents = [a.resident for a in desk.agent.adapters.values() if a.resident is not None]
            out[engine] = tuple(sorted("ABCDEF"[x.key.version_id - 1] + str(x.number) for x in residents))
        return out


@pytest.mark.parametrize("buckets", [0, 3])
def test_publish_replace_and_reclaim(buckets: int):
    f = Fleet("E0", "E1")
    assert f.publish("A", buckets).ok
    assert (f.state("A"), f.held()) == ("PUBLISHED", {"E0": ("A1",), "E1": ("A1",)})
    assert routable(f.r, key_of("A")) == ("E0", "E1")
    session = SessionKey(EPOCH, "o1", 0)
    assert f.tell(ev.BindFirst(session=session)).ok
    assert f.publish("B", buckets).ok
    assert (f.state("A"), f.state("B")) == ("RETIRED", "PUBLISHED")
    assert f.publish("C", buckets).code is Code.CAPACITY_ERROR
    f.tell(ev.CloseAndRelease(session=session))
    f.run()
    assert (f.state("A"), f.held()) == ("RECLAIMED", {"E0": ("B2",), "E1": ("B2",)})
    assert f.publish("C", buckets).ok
    assert f.state("C") == "PUBLISHED"


@pytest.mark.parametrize("fails", ["StartLoad", "Probe"])
def test_a_failed_engine_ends_in_failed_clean_and_a_new_attempt_publishes(fails: str):
    f = Fleet("E0", "E1")
    f.publish("A")
    f.fail = {("E1", fails)}
    f.publish("B")
    assert (f.state("B"), f.held()) == ("FAILED_CLEAN", {"E0": ("A1",), "E1": ("A1",)})
    f.fail = set()
    f.publish("B")
    assert (f.state("B"), f.held()["E1"]) == ("PUBLISHED", ("B3",))


def test_a_restarted_engine_is_repaired_and_routable_again():
    f = Fleet("E0", "E1")
    f.publish("A")
    f.incarnations["E1"] = 2
    f.start("E1")
    inventory = f.desks["E1"].give(orders.TakeInventory(epoch=EPOCH, engine="E1", incarnation=2))
    assert f.tell(as_event(inventory, "E1", 0)).ok
    assert routable(f.r, key_of("A")) == ("E0",)
    f.run()
    assert routable(f.r, key_of("A")) == ("E0", "E1")
    assert f.held() == {"E0": ("A1",), "E1": ("A2",)}


def test_a_repair_whose_probe_fails_leaves_a_stray_that_is_removed_before_the_next():
    f = Fleet("E0", "E1")
    f.publish("A")
    f.incarnations["E1"] = 2
    f.start("E1")
    f.tell(as_event(f.desks["E1"].give(orders.TakeInventory(epoch=EPOCH, engine="E1", incarnation=2)), "E1", 0))
    f.fail = {("E1", "Probe")}
    for order in repairer.next_orders(f.r, 0):
        f.tell(order)
    load = [o for o in repairer.next_orders(f.r, 0) if isinstance(o, orders.Load)]
    f.order(load[0])
    f.order(load[0])
    assert f.held()["E1"] == ("A2",)
    f.fail = set()
    f.tell(as_event(f.desks["E1"].give(orders.TakeInventory(epoch=EPOCH, engine="E1", incarnation=2)), "E1", 0))
    f.run()
    assert (f.held()["E1"], f.r.engines["E1"].state) == (("A3",), EngineState.UP)


def test_a_negative_count_quarantines_the_engine():
    f = Fleet("E0")
    f.publish("A")
    event = as_event(AskQuarantine(1, "request count is -1"), "E0", 5)
    assert f.tell(event).ok
    assert f.r.engines["E0"].state is EngineState.QUARANTINED


@pytest.mark.parametrize(
    "answer",
    [
        Armed(number=1, bucket=0),
        Pending(waits_for="x"),
        Noted(),
        StrayGone(operation_key="x", lora_name="x"),
        Unseen(number=1),
        Unknown(reason="x"),
        Refused(code=Code.STALE_INCARNATION, reason="x", number=1),
        Refused(code=Code.OTHER_EPOCH, reason="x", number=1),
        Refused(code=Code.OUT_OF_ORDER, reason="x", number=1),
        Refused(code=Code.OPERATION_CONFLICT, reason="x", number=1),
        Refused(code=Code.BAD_INPUT, reason="x", number=1),
        Refused(code=Code.STALE_ATTEMPT, reason="x"),
    ],
)
def test_nothing_follows_from(answer: Any):
    assert as_event(answer, "E0", 0) is None


def test_unknown_names_its_cleanup():
    event = as_event(Unknown(reason="x", number=4, incarnation=2), "E0", 9)
    assert event == ev.TargetUnknown(number=4, engine="E0", incarnation=2, now=9)


def test_a_malformed_order_gives_no_event():
    agent = new_agent("E0", 1, EPOCH)
    bad = orders.AskStatus(epoch=EPOCH, engine="E0", incarnation=1, number=-5)
    assert as_event(agent_step(agent, bad).answer, "E0", 0) is None
