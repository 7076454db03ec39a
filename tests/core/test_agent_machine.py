"""A random network and a random executor around one agent; an honest engine beside it that keeps its own books.

Orders are lost, repeated, reordered and late; actions take as long as they like; the engine restarts.  The engine's
own books, not the agent's, say what was loaded, unloaded and running.
"""

from collections import Counter
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lorafsm import orders
from lorafsm.engine import actions
from lorafsm.engine import orders as inputs
from lorafsm.engine.answers import Cleaned, Refused, Unloaded
from tests.core.agent_story import Desk, addressed, name_of, plan_of

LETTERS = "AB"
ATTEMPTS = {1: "A", 2: "B", 4: "A"}  # the number of each attempt, and its version
REPAIRS = {3: "A", 5: "A", 6: "B"}
BUCKETS = 2


class AgentMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.start(1)

    def start(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.desk = Desk(incarnation=incarnation)
        self.loaded: dict[str, int] = {}  # the engine's own books: name -> the number that loaded it
        self.running: dict[str, str] = {}  # rid -> name
        self.loads: Counter[int] = Counter()
        self.unloads: Counter[int] = Counter()
        self.collectives: Counter[tuple[int, int]] = Counter()
        self.over: set[int] = set()  # numbers that were answered Cleaned
        self.closed: set[str] = set()  # letters whose unload was ordered

    def order(self, kind: type[Any], letter: str | None = None, **words: Any) -> Any:
        return self.desk.give(addressed(kind, letter, incarnation=self.incarnation, **words))

    # orders, in any order, any number of times

    @rule(number=st.sampled_from(sorted(ATTEMPTS)))
    def begin(self, number: int) -> None:
        letter = ATTEMPTS[number]
        answer = self.order(orders.Begin, letter, number=number, plan=plan_of(BUCKETS if number < 4 else 0))
        if number in self.over or letter in self.closed:
            assert isinstance(answer, Refused)

    @rule(number=st.sampled_from(sorted(ATTEMPTS)), bucket=st.integers(0, BUCKETS))
    def arm(self, number: int, bucket: int) -> None:
        self.order(inputs.ArmBucket, number=number, bucket=bucket)

    @rule(number=st.sampled_from(sorted(ATTEMPTS)), bucket=st.integers(0, BUCKETS))
    def receive(self, number: int, bucket: int) -> None:
        before = list(self.desk.asked)
        self.order(inputs.ReceiveBucket, number=number, bucket=bucket)
        assert self.desk.asked == before

    @rule(number=st.sampled_from(sorted(ATTEMPTS)))
    def end(self, number: int) -> None:
        answer = self.order(orders.End, ATTEMPTS[number], number=number)
        if number in self.over or ATTEMPTS[number] in self.closed:
            assert isinstance(answer, Refused)

    @rule(number=st.sampled_from(sorted(ATTEMPTS)))
    def hurry(self, number: int) -> None:
        """A whole attempt without faults, so that deep states are reached often."""
        self.begin(number)
        for bucket in range(BUCKETS):
            self.arm(number, bucket)
            self.carry_out_all()
        self.end(number)
        self.carry_out_all()

    @rule(number=st.sampled_from(sorted(REPAIRS)))
    def load(self, number: int) -> None:
        answer = self.order(orders.Load, REPAIRS[number], number=number)
        if REPAIRS[number] in self.closed:
            assert isinstance(answer, Refused)

    @rule(number=st.sampled_from(sorted(ATTEMPTS)))
    def cleanup(self, number: int) -> None:
        answer = self.order(orders.Cleanup, ATTEMPTS[number], number=number)
        if isinstance(answer, Cleaned):
            assert number not in self.loaded.values()
            self.over.add(number)

    @rule(letter=st.sampled_from(LETTERS))
    def unload(self, letter: str) -> None:
        self.closed.add(letter)
        answer = self.order(orders.Unload, letter, reclaim_id=f"rc-{letter}")
        if isinstance(answer, Unloaded):
            assert name_of(letter) not in self.loaded

    @rule(number=st.sampled_from([0, *REPAIRS]), letter=st.sampled_from(LETTERS))
    def unload_stray(self, number: int, letter: str) -> None:
        name = name_of(REPAIRS.get(number, letter))
        self.order(orders.UnloadStray, lora_name=name, number=number, operation_key=f"{name}-{number}")

    @rule(kind=st.sampled_from([orders.TakeInventory, orders.AskStatus]), number=st.integers(1, 6))
    def ask(self, kind: type[Any], number: int) -> None:
        before = self.desk.agent
        self.order(kind, **({"number": number} if kind is orders.AskStatus else {}))
        assert self.desk.agent is before

    @rule(kind=st.sampled_from([orders.Load, orders.Unload, orders.Cleanup]), letter=st.sampled_from(LETTERS))
    def an_order_for_another_incarnation(self, kind: type[Any], letter: str) -> None:
        words = {"reclaim_id": "late"} if kind is orders.Unload else {"number": 9}
        answer = self.desk.give(addressed(kind, letter, incarnation=self.incarnation + 1, **words))
        assert answer.code == "STALE_INCARNATION"

    # requests

    @rule(rid=st.sampled_from(["r1", "r2", "r3"]), letter=st.sampled_from(LETTERS))
    def acquire(self, rid: str, letter: str) -> None:
        if self.desk.acquire(rid, letter) == "Acquired":
            assert name_of(letter) in self.loaded
            assert letter not in self.closed
            self.running[rid] = name_of(letter)

    @rule(rid=st.sampled_from(["r1", "r2", "r3"]))
    def terminal(self, rid: str) -> None:
        assert self.desk.release(rid) is (rid in self.running)
        self.running.pop(rid, None)

    @rule(rid=st.sampled_from(["r1", "s1"]), letter=st.sampled_from(LETTERS))
    def settle(self, rid: str, letter: str) -> None:
        verdict = self.desk.settle(rid, letter)
        assert verdict == ("RUNNING" if rid in self.running else "ABSENT")
        if verdict == "ABSENT":
            assert self.desk.acquire(rid, letter) in ("RID_SEALED", "VERSION_CLOSED")

    # the executor and the engine

    @precondition(lambda self: self.desk.todo)
    @rule(data=st.data(), ok=st.booleans(), count=st.sampled_from([0, 0, 0, 1, -1, None]), absent=st.booleans())
    def carry_out(self, data: st.DataObject, ok: bool, count: int | None, absent: bool) -> None:
        index = data.draw(st.integers(0, len(self.desk.todo) - 1))
        self.desk.todo.insert(0, self.desk.todo.pop(index))
        self.execute(self.desk.todo[0], ok, absent)
        self.desk.do(ok=ok, count=count, absent=absent)

    def carry_out_all(self) -> None:
        while self.desk.todo:
            self.execute(self.desk.todo[0], True, True)
            self.desk.do()

    def execute(self, action: actions.Action, ok: bool, absent: bool) -> None:
        match action:
            case actions.PostReceive(number=number, bucket=bucket):
                self.collectives[number, bucket] += 1
            case actions.StartLoad(number=number, lora_name=name):
                self.loads[number] += 1
                assert name not in self.loaded, "a fresh load over another"
                if ok:
                    self.loaded[name] = number
            case actions.PhysicalUnload(lora_name=name, number=number):
                self.unloads[number] += bool(number)
                assert name not in self.running.values(), "unloaded with a request in flight"
                assert self.loaded[name] == number, "unloaded what another number loaded"
                if absent:
                    del self.loaded[name]
            case actions.TakeListing() if absent:
                gone = set(self.desk.agent.adapters)
                self.loaded = {name: n for name, n in self.loaded.items() if name not in gone or self.is_busy(name)}
                self.running = {rid: name for rid, name in self.running.items() if name in self.loaded}

    def is_busy(self, name: str) -> bool:
        """A listing says nothing about what is being loaded or removed."""
        adapter = self.desk.agent.adapters[name]
        work = self.desk.agent.works.get(adapter.number)
        removing = adapter.state not in ("PRESENT", "LINGERING")
        return removing or (work is not None and work.state == "PROBING")

    @rule()
    def restart(self) -> None:
        self.start(self.incarnation + 1)
        assert not self.desk.agent.adapters
        assert not self.desk.agent.closed

    # what the engine's own books say

    @invariant()
    def the_books_agree(self) -> None:
        assert {name: a.number for name, a in self.desk.agent.adapters.items()} == self.loaded
        assert dict(self.desk.agent.requests) == self.running

    @invariant()
    def nothing_happened_twice(self) -> None:
        assert max(self.loads.values(), default=0) <= 1
        assert max(self.unloads.values(), default=0) <= 1
        assert max(self.collectives.values(), default=0) <= 1


TestAgentMachine = AgentMachine.TestCase
