"""The policies: from a snapshot of the registry to the next orders.  Each row is a situation and what is wanted then.

Every question is put twice and must get the same answer: a policy remembers nothing, so a restarted one goes on
where the last one stopped.  At the end whole lives are driven by policies that are asked afresh for every order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from lorafsm import events as ev
from lorafsm import orders as od
from lorafsm import publisher, reclaimer, repairer
from lorafsm.identity import VersionKey
from lorafsm.outcomes import Refusal
from lorafsm.records import Resident
from tests.core.story import World


def said(orders: Iterable[Any]) -> list[str]:
    """Orders in short words: `begin E0`, `unload E1 A`, `commit B`, `abort DEADLINE`."""
    return [_word(order) for order in orders]


def _word(o: Any) -> str:
    match o:
        case ev.Commit() | ev.ClaimReclaim():
            return f"{o.name} {_letter(o.key)}"
        case ev.Abort():
            return f"abort {o.reason.partition(':')[0]}"
        case ev.OrderRepair():
            return f"order_repair {o.engine} {_letter(o.key)}"
        case od.SendBucket():
            return f"bucket {o.bucket} to {' '.join(o.engines)}"
        case od.Unload() | od.Load():
            return f"{type(o).__name__.lower()} {o.engine} {_letter(o.key)}"
        case od.UnloadStray():
            return f"stray {o.engine} {o.number}"
        case _:
            return f"{type(o).__name__.lower()} {o.engine}"


def _letter(key: VersionKey) -> str:
    return chr(ord("A") + key.version_id - 1)


def asked_twice(ask: Callable[[], tuple[Any, ...]]) -> list[str]:
    first, second = ask(), ask()
    assert first == second
    return said(first)


def publisher_says(w: World, v: str, *, token: str | None = None) -> list[str]:
    token = w.tokens[v] if token is None else token
    return asked_twice(lambda: publisher.next_orders(w.r, token, w.now))


def reclaimer_says(w: World) -> list[str]:
    return asked_twice(lambda: reclaimer.next_orders(w.r, w.now))


def repairer_says(w: World) -> list[str]:
    return asked_twice(lambda: repairer.next_orders(w.r, w.now))


def reserved(v: str = "A", *, buckets: int | None = None, **config: Any) -> World:
    """`v` is reserved on E0 and E1 and its bytes are stored."""
    w = World(**config)
    assert w.reserve(v, buckets=buckets) == "OK"
    assert w.store(v) == "OK"
    return w


# -- publisher ------------------------------------------------------------------------------------------------

# What happened since the reserve of A on E0 and E1 (a call of the world a word), and what the publisher wants then.
PUBLICATION: list[tuple[str, list[Callable[[World], Any]], list[str]]] = [
    ("nothing yet: begin on both, end on nobody", [], ["begin E0", "begin E1"]),
    ("E0 is prepared: end waits until the other is too", [lambda w: w.prepared("E0")], ["begin E1"]),
    (
        "both are prepared: end on both",
        [lambda w: w.prepared("E0"), lambda w: w.prepared("E1")],
        ["end E0", "end E1"],
    ),
    (
        "E0 is READY: the end of the other is asked again, E0's is not",
        [lambda w: w.prepared("E0"), lambda w: w.prepared("E1"), lambda w: w.ready("E0")],
        ["end E1"],
    ),
    (
        "both are READY: commit, and nothing else",
        [lambda w: w.prepared("E0"), lambda w: w.prepared("E1"), lambda w: w.ready("E0"), lambda w: w.ready("E1")],
        ["commit A"],
    ),
    (
        "E0's begin is unknown: it may never have arrived, and is one operation however often it comes",
        [lambda w: w.unknown("E0")],
        ["begin E0", "begin E1"],
    ),
    (
        "E1's end is unknown: begin's repeat is answered with what E1 knows last",
        [lambda w: w.prepared("E0"), lambda w: w.prepared("E1"), lambda w: w.ready("E0"), lambda w: w.unknown("E1")],
        ["begin E1"],
    ),
    (
        "E0 said no before E1 began: abort, E1 is not begun",
        [lambda w: w.failed("E0", reason="no memory")],
        ["abort TARGET_FAILED"],
    ),
    (
        "E0 is READY and E1 said no: abort",
        [lambda w: w.prepared("E0"), lambda w: w.prepared("E1"), lambda w: w.ready("E0"), lambda w: w.failed("E1")],
        ["abort TARGET_FAILED"],
    ),
    (
        "E1 restarted: its frozen incarnation can never be READY",
        [lambda w: w.prepared("E1"), lambda w: w.restart("E1")],
        ["abort MEMBERSHIP_CHANGED"],
    ),
    ("E1 is dead", [lambda w: w.engine_dead("E1")], ["abort MEMBERSHIP_CHANGED"]),
    ("no progress within the lease", [lambda w: w.wait(w.r.config.driver_lease)], ["abort DEADLINE"]),
    ("one ms of the lease is left", [lambda w: w.wait(w.r.config.driver_lease - 1)], ["begin E0", "begin E1"]),
    (
        "progress renewed the lease",
        [
            lambda w: w.wait(w.r.config.driver_lease - 1),
            lambda w: w.prepared("E0"),
            lambda w: w.wait(w.r.config.driver_lease - 1),
        ],
        ["begin E1"],
    ),
    (
        "aborted: clean both, whatever they did so far",
        [lambda w: w.prepared("E0"), lambda w: w.abort("A")],
        ["cleanup E0", "cleanup E1"],
    ),
    (
        "aborted, and E0 is clean: the other is asked again",
        [lambda w: w.abort("A"), lambda w: w.cleaned("E0")],
        ["cleanup E1"],
    ),
    (
        "aborted, and E0's cleanup is unknown: it is repeated, not asked about",
        [lambda w: w.abort("A"), lambda w: w.unknown("E0")],
        ["cleanup E0", "cleanup E1"],
    ),
    (
        "aborted, and E1 died: death cleans",
        [lambda w: w.abort("A"), lambda w: w.engine_dead("E1")],
        ["cleanup E0"],
    ),
    (
        "clean on both: nothing is left to do",
        [lambda w: w.abort("A"), lambda w: w.cleaned("E0"), lambda w: w.cleaned("E1")],
        [],
    ),
]


@pytest.mark.parametrize(
    "happened, wanted", [row[1:] for row in PUBLICATION], ids=[row[0].split(":")[0] for row in PUBLICATION]
)
def test_the_publisher(happened: list[Callable[[World], Any]], wanted: list[str]):
    w = reserved()
    for event in happened:
        assert event(w) in ("OK", None)
    assert publisher_says(w, "A") == wanted


def test_a_commit_waits_for_the_bytes():
    w = World()
    w.reserve("A")
    for e in ("E0", "E1"):
        w.prepared(e)
        w.ready(e)
    assert publisher_says(w, "A") == []
    w.store("A")
    assert publisher_says(w, "A") == ["commit A"]


def test_a_default_that_moved_supersedes_the_attempt():
    """A rollback moves the revision while C is open: C cannot be committed any more (rule 17)."""
    w = World(capacity=3, engine_slots=4).boot("A")
    w.publish("B")
    w.begin("C")
    assert w.rollback("A") == "OK"
    assert publisher_says(w, "C") == ["abort SUPERSEDED"]


def test_orders_of_an_open_attempt_need_its_token_and_cleanup_needs_none():
    w = reserved()
    assert publisher_says(w, "A", token="somebody-else") == []
    assert w.abort("A") == "OK"
    assert publisher_says(w, "A", token="") == ["cleanup E0", "cleanup E1"]


def test_whoever_took_over_commits_what_is_ready_and_aborts_the_rest():
    """S25: with every target READY the new driver commits; otherwise it gives the attempt up (rule 5)."""
    w = reserved()
    w.prepared("E0")
    w.wait(w.r.config.driver_lease)
    assert w.takeover("A", token="second") == "OK"
    assert publisher_says(w, "A") == ["abort TAKEN_OVER"]
    ready = World()
    ready.make_ready("A")
    ready.wait(ready.r.config.driver_lease)
    assert ready.takeover("A", token="second") == "OK"
    assert publisher_says(ready, "A") == ["commit A"]
    assert publisher_says(ready, "A", token="first") == []


def test_a_lost_engine_is_waited_for():
    """Silence concludes nothing: a READY of a LOST engine does not count, but nothing is aborted either (rule 3)."""
    w = World()
    w.make_ready("A")
    w.engine_lost("E1")
    assert publisher_says(w, "A") == []
    assert w.commit("A") == "NOT_READY"


def test_a_bucket_goes_out_when_all_have_the_last_one_and_never_twice():
    """Two buckets over the transport: authorised means "sent or being sent", for ever (rule 6)."""
    w = reserved(buckets=2)
    assert publisher_says(w, "A") == ["begin E0", "begin E1"]
    w.prepared("E0")
    assert publisher_says(w, "A") == ["begin E1"]
    w.prepared("E1")
    assert publisher_says(w, "A") == ["bucket 0 to E0 E1"]
    w.authorize(0)
    assert publisher_says(w, "A") == []
    w.bucket_done("E0", 0)
    assert publisher_says(w, "A") == []
    w.bucket_done("E1", 0)
    assert publisher_says(w, "A") == ["bucket 1 to E0 E1"]
    w.authorize(1)
    w.bucket_done("E1", 1)
    assert publisher_says(w, "A") == []
    w.bucket_done("E0", 1)
    assert publisher_says(w, "A") == ["end E0", "end E1"]


def test_every_order_names_what_makes_it_one_operation():
    w = reserved()
    begin = publisher.next_orders(w.r, w.tokens["A"], w.now)[1]
    assert isinstance(begin, od.Begin)
    version, attempt = w.r.versions[w.key("A")], w.attempt("A")
    assert (begin.epoch, begin.engine, begin.incarnation) == ("e1", "E1", 1)
    assert (begin.number, begin.key, begin.digest) == (attempt.number, version.key, version.digest)
    assert (begin.lora_name, begin.plan) == (version.lora_name, attempt.plan)


# -- reclaimer ------------------------------------------------------------------------------------------------


def two_versions() -> World:
    """B over A; the session s holds A."""
    w = World().boot("A")
    assert w.bind_first("s") == "A"
    w.publish("B")
    return w


def test_only_a_retired_version_that_nobody_holds_is_claimed():
    w = two_versions()
    assert reclaimer_says(w) == []
    w.begin_close("s")
    assert reclaimer_says(w) == [], "a FINALIZING session still holds its ref"
    w.close_and_release("s")
    assert reclaimer_says(w) == ["claim_reclaim A"]


def test_unloads_go_to_each_engine_that_did_not_confirm():
    w = two_versions()
    w.close_and_release("s")
    [claim] = reclaimer.next_orders(w.r, w.now)
    assert w.do(claim) == "OK"
    rid = reclaimer.reclaim_id_of(w.key("A"))
    assert reclaimer_says(w) == ["unload E0 A", "unload E1 A"]
    assert w.reclaim_unknown("E0", rid) == "OK"
    assert reclaimer_says(w) == ["unload E0 A", "unload E1 A"], "an unknown unload is repeated"
    assert w.unloaded("E0", rid) == "OK"
    assert reclaimer_says(w) == ["unload E1 A"]
    assert w.unloaded("E1", rid, absent=False) == "NOT_ABSENT"
    assert reclaimer_says(w) == ["unload E1 A"], "a receipt without absence frees nothing"
    assert w.unloaded("E1", rid) == "OK"
    assert reclaimer_says(w) == []


def test_one_stuck_version_hides_no_other():
    """A waits for E1 for ever; B is retired and unheld meanwhile (RFC 5.2)."""
    w = World(capacity=3, engine_slots=4).boot("A")
    w.publish("B")
    w.claim_reclaim("A", "reclaim-e1-1")
    w.unloaded("E0", "reclaim-e1-1")
    w.reclaim_unknown("E1", "reclaim-e1-1")
    w.publish("C")
    assert reclaimer_says(w) == ["unload E1 A", "claim_reclaim B"]


def test_an_unload_follows_the_incarnation_that_lists_the_version():
    w = two_versions()
    w.close_and_release("s")
    w.claim_reclaim("A", "reclaim-e1-1")
    w.restart("E1", holds=[w.resident("A")])
    unloads = [o for o in reclaimer.next_orders(w.r, w.now) if isinstance(o, od.Unload)]
    assert [(o.engine, o.incarnation) for o in unloads] == [("E0", 1), ("E1", 2)]
    w.restart("E1")
    assert reclaimer_says(w) == ["unload E0 A"]


# -- repairer -------------------------------------------------------------------------------------------------


def test_a_healthy_fleet_needs_no_repair():
    assert repairer_says(World()) == []
    assert repairer_says(two_versions()) == []


def test_a_restarted_engine_is_given_what_sessions_may_need_in_the_order_of_the_slots():
    w = two_versions()
    w.restart("E1")
    assert repairer_says(w) == ["order_repair E1 A", "order_repair E1 B"]
    assert w.order_repair("A", "E1") == "OK"
    assert repairer_says(w) == ["load E1 A", "order_repair E1 B"]
    assert w.repair_ready("E1", w.r.engines["E1"].repairs[w.key("A")]) == "OK"
    assert repairer_says(w) == ["order_repair E1 B"]


def test_what_nobody_holds_is_not_repaired():
    w = two_versions()
    w.close_and_release("s")
    w.restart("E1")
    assert repairer_says(w) == ["order_repair E1 B"]


def test_a_failed_repair_is_ordered_again_after_its_pause():
    w = World().boot("A")
    w.restart("E1")
    w.order_repair("A", "E1")
    w.repair_failed("E1", w.r.engines["E1"].repairs[w.key("A")])
    assert repairer_says(w) == []
    w.wait(w.r.config.repair_backoff - 1)
    assert repairer_says(w) == []
    w.wait(1)
    assert repairer_says(w) == ["order_repair E1 A"]
    assert w.order_repair("A", "E1") == "OK"


def test_without_bytes_in_the_store_nothing_can_be_loaded_from_it():
    w = World(require_artifact=False)
    w.reserve("A")
    for e in ("E0", "E1"):
        w.prepared(e)
        w.ready(e)
    w.commit("A")
    w.restart("E1")
    assert repairer_says(w) == []
    w.store("A")
    assert repairer_says(w) == ["order_repair E1 A"]


@pytest.mark.parametrize("state", ["LOST", "QUARANTINED", "DEAD", "REMOVED"])
def test_only_an_engine_that_is_alive_gets_orders(state: str):
    w = World().boot("A")
    w.restart("E1")
    {
        "LOST": lambda: w.engine_lost("E1"),
        "QUARANTINED": lambda: w.quarantine("E1"),
        "DEAD": lambda: w.engine_dead("E1"),
        "REMOVED": lambda: (w.engine_dead("E1"), w.engine_remove("E1")),
    }[state]()
    assert w.engine("E1") == state
    assert repairer_says(w) == []


def test_a_stray_is_removed_and_looked_for_before_its_name_is_used_again():
    """E1's new process lists A under nobody's number: out with it, look again, then repair (rule 15)."""
    w = World().boot("A")
    name = w.r.versions[w.key("A")].lora_name
    w.restart("E1", foreign=[name, "relax_policy_lora@e0-9-0123456789ab"])
    assert repairer_says(w) == ["stray E1 0", "stray E1 0", "takeinventory E1"]
    strays = [o for o in repairer.next_orders(w.r, w.now) if isinstance(o, od.UnloadStray)]
    assert len({o.operation_key for o in strays}) == 2
    w.engine_up("E1")
    assert repairer_says(w) == ["order_repair E1 A"]


# -- whole lives ----------------------------------------------------------------------------------------------


class Engines:
    """Stand-ins for the engines' executors: what each holds, and one stored result per operation.

    An answer may get lost: the operation is done and the registry hears "unknown", or nothing.
    """

    def __init__(self, w: World, draw: random.Random, broken: set[tuple[str, str]]) -> None:
        self.w, self.draw, self.broken = w, draw, broken
        self.held: dict[str, dict[VersionKey, Resident]] = {e: {} for e in w.incarnations}
        self.done: dict[tuple[Any, ...], tuple[type, dict[str, Any]]] = {}
        self.loads: list[tuple[str, VersionKey, int]] = []

    def restart(self, e: str) -> None:
        self.held[e].clear()
        assert self.w.restart(e) == "OK"

    def carry_out(self, o: Any) -> None:
        if o.incarnation != self.w.incarnations[o.engine]:
            return
        if isinstance(o, od.AskStatus):
            stored = self.done.get(("End", o.engine, o.number)) or self.done.get(("Begin", o.engine, o.number))
            assert stored is not None, "UNKNOWN of something that was never ordered"
            self.tell(o, *stored)
            return
        operation = (type(o).__name__, o.engine, getattr(o, "number", None) or o.reclaim_id)
        if operation not in self.done:
            self.done[operation] = self.work(o)
        self.tell(o, *self.done[operation])

    def work(self, o: Any) -> tuple[type, dict[str, Any]]:
        held = self.held[o.engine]
        if isinstance(o, od.Begin):
            return ev.Prepared, {"number": o.number}
        if isinstance(o, od.Cleanup):
            if o.key in held and held[o.key].number == o.number:
                del held[o.key]
            return ev.Cleaned, {"number": o.number}
        if isinstance(o, od.Unload):
            held.pop(o.key, None)
            return ev.ConfirmReclaim, {"reclaim_id": o.reclaim_id, "observed_absent": True}
        assert isinstance(o, od.End | od.Load)
        if (o.engine, _letter(o.key)) in self.broken:
            return ev.TargetFailed, {"number": o.number, "reason": "a truncated file"}
        self.loads.append((o.engine, o.key, o.number))
        held[o.key] = Resident(o.key, o.digest, o.number)
        proof = {"key": o.key, "digest": o.digest, "base_fingerprint": "", "probe_ok": True}
        return (ev.Ready if isinstance(o, od.End) else ev.RepairReady), {"number": o.number, **proof}

    def tell(self, o: Any, kind: type, facts: dict[str, Any]) -> None:
        luck = self.draw.random()
        if luck < 0.1:
            return
        about = self.w._about(o.engine, o.incarnation)
        if luck < 0.3 and hasattr(o, "reclaim_id"):
            kind, facts = ev.ReclaimUnknown, {"reclaim_id": o.reclaim_id}
        elif luck < 0.3 and not isinstance(o, od.Load):
            kind, facts = ev.TargetUnknown, {"number": o.number}
        if kind in (ev.ReclaimUnknown, ev.TargetUnknown):
            del about["seq"]
        self.w.do(kind(**about, **facts))


def wanted(w: World, token: str) -> list[Any]:
    """What the three policies want, each asked from nothing."""
    asked = (
        publisher.next_orders(w.r, token, w.now),
        reclaimer.next_orders(w.r, w.now),
        repairer.next_orders(w.r, w.now),
    )
    return [order for orders in asked for order in orders]


def drive(w: World, engines: Engines, token: str, draw: random.Random) -> None:
    """One order at a time, any of those wanted, until nothing is wanted; nothing is kept in between."""
    for _ in range(500):
        now_wanted = wanted(w, token)
        if not now_wanted:
            return
        order = draw.choice(now_wanted)
        if isinstance(order, ev.Commit | ev.Abort | ev.ClaimReclaim | ev.OrderRepair):
            assert not isinstance(w.do(order), Refusal)
            assert w.said is not None
            assert w.said.ok, f"a policy decided what the registry refuses: {order}, {w.said}"
        else:
            engines.carry_out(order)
    pytest.fail(f"still wanted: {said(wanted(w, token))}")


@pytest.mark.parametrize("seed", range(20))
def test_a_whole_life_by_policies_that_forget_everything_between_calls(seed: int):
    """A, B over A, A reclaimed, E1 restarted and repaired, C fails on E1 and ends clean; answers get lost on the way.

    Whatever the order in which orders are taken, each load happens once, and the end is the same.
    """
    draw = random.Random(seed)
    w = World()
    engines = Engines(w, draw, broken={("E1", "C")})
    ends = {"A": "PUBLISHED", "B": "PUBLISHED", "C": "FAILED_CLEAN"}
    for v, end in ends.items():
        assert w.reserve(v) == "OK"
        assert w.store(v) == "OK"
        if v == "B":
            assert w.bind_first("s") == "A"
        drive(w, engines, w.tokens[v], draw)
        assert w.version(v) == end
        if v == "B":
            assert w.version("A") == "RETIRED"
            engines.restart("E1")
            drive(w, engines, "", draw)
            assert w.routable("A") == w.routable("B") == {"E0", "E1"}
            w.close_and_release("s")
            drive(w, engines, "", draw)
            assert w.version("A") == "RECLAIMED"
    assert w.default == "B"
    assert {e: set(held) for e, held in engines.held.items()} == {e: {w.key("B")} for e in ("E0", "E1")}
    assert len(engines.loads) == len(set(engines.loads)), "a number loads once on an engine"


def test_once_a_bucket_is_authorised_a_silent_engine_is_only_asked():
    w = reserved("A", buckets=2)
    for engine in ("E0", "E1"):
        w.prepared(engine)
    w.unknown("E1")
    assert publisher_says(w, "A") == ["begin E1"]
    w.prepared("E1")
    assert publisher_says(w, "A") == ["bucket 0 to E0 E1"]
    w.authorize(0)
    for engine in ("E0", "E1"):
        w.bucket_done(engine, 0)
    w.unknown("E1")
    assert publisher_says(w, "A") == ["askstatus E1"]


@pytest.mark.parametrize(("needed", "said_then"), [(True, []), (False, ["commit A"])])
def test_a_commit_waits_for_the_stored_artifact_where_one_is_needed(needed: bool, said_then: list[str]):
    w = World(require_artifact=needed)
    w.reserve("A")
    for engine in ("E0", "E1"):
        w.prepared(engine)
        w.ready(engine)
    assert publisher_says(w, "A") == said_then
    w.store("A")
    assert publisher_says(w, "A") == ["commit A"]


def test_an_attempt_with_a_quarantined_target_is_given_up():
    w = reserved("A")
    w.quarantine("E1")
    assert publisher_says(w, "A") == ["abort QUARANTINED"]
