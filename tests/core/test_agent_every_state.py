"""Every state that a small engine can reach, and every input in each of them.

Each box has some of: attempt 1 of A with one bucket, attempt 2 of B from the store, repairs 3 and 4 of A, one reclaim
of A, two stray orders, two requests, the engine's listings, and an executor whose every action may succeed or fail.
With each state goes what was already asked for, so that "never twice" (I8) is checked over whole histories.
"""

from collections import deque
from functools import cache
from typing import Any

import pytest
from attrs import evolve, fields

from lorafsm import orders
from lorafsm.engine import Agent, agent_step, new_agent
from lorafsm.engine import orders as inputs
from lorafsm.engine.actions import Action, PhysicalUnload, PostReceive, StartLoad
from lorafsm.engine.answers import AgentCode, Refused
from lorafsm.engine.invariants import agent_invariants, step_invariants
from lorafsm.engine.lifecycle import ADAPTER, WORK
from tests.core.agent_story import BASE, ENGINE, EPOCH, addressed, assert_allowed, key_of, name_of, plan_of

ONCE = (PostReceive, StartLoad, PhysicalUnload)
History = frozenset[Action]


A, B = name_of("A"), name_of("B")


def results(letter: str, *numbers: int) -> tuple[Any, ...]:
    """Every result that an executor may bring for this version's adapter and these numbers."""
    name = name_of(letter)
    return (
        *(inputs.LoadFinished(number=number, ok=ok) for number in numbers for ok in (True, False)),
        *(inputs.ProbeFinished(number=number, ok=ok) for number in numbers for ok in (True, False)),
        inputs.Unregistered(lora_name=name),
        *(inputs.Counted(lora_name=name, count=count) for count in (0, 1, -1, None)),
        *(inputs.UnloadFinished(lora_name=name, absent=absent) for absent in (True, False)),
    )


def listing(*names: str) -> Any:
    """A listing; its seq is set to that of the agent which gets it."""
    return inputs.Listed(names=frozenset(names), seq=0)


BEGIN_A = addressed(orders.Begin, "A", number=1, plan=plan_of(1))
AGAIN_A = addressed(orders.Begin, "A", number=5, plan=plan_of(0))
BEGIN_B = addressed(orders.Begin, "B", number=2, plan=plan_of(0))
END_A, END_B = addressed(orders.End, "A", number=1), addressed(orders.End, "B", number=2)
LOAD_3, LOAD_4 = addressed(orders.Load, "A", number=3), addressed(orders.Load, "A", number=4)
CLEAN_A, CLEAN_B = addressed(orders.Cleanup, "A", number=1), addressed(orders.Cleanup, "B", number=2)
UNLOAD = addressed(orders.Unload, "A", reclaim_id="rc")
STRAY_3 = addressed(orders.UnloadStray, operation_key="s3", lora_name=A, number=3)
STRAY_1 = addressed(orders.UnloadStray, operation_key="s1", lora_name=A, number=1)
STRAY_0 = addressed(orders.UnloadStray, operation_key="s0", lora_name=A, number=0)
BUCKETS = (
    *(addressed(kind, number=1, bucket=k) for kind in (inputs.ArmBucket, inputs.ReceiveBucket) for k in (0, 1)),
    *(inputs.BucketFinished(number=1, bucket=0, ok=ok) for ok in (True, False)),
)
WRONG = (
    addressed(orders.Begin, "A", number=1, plan=plan_of(0)),  # another plan under the same number
    addressed(orders.Begin, "B", number=2, plan=plan_of(0), incarnation=0),
    addressed(orders.Unload, "A", reclaim_id="another"),
)
ASK = (addressed(orders.TakeInventory), *(addressed(orders.AskStatus, number=number) for number in (1, 2, 3)))
R1 = (inputs.Acquire(rid="r1", lora_name=A), inputs.Release(rid="r1"), inputs.Settle(rid="r1", key=key_of("A")))
R2 = (inputs.Acquire(rid="r2", lora_name=A), inputs.Release(rid="r2"))

BOXES: dict[str, tuple[int, tuple[Any, ...]]] = {
    "two attempts": (
        2,
        (BEGIN_A, *BUCKETS, END_A, CLEAN_A, BEGIN_B, END_B, CLEAN_B, *results("A", 1), *results("B", 2), *WRONG, *ASK),
    ),
    "one slot": (
        1,
        (BEGIN_A, CLEAN_A, BEGIN_B, END_B, LOAD_3, UNLOAD, *results("A", 3), *results("B", 2), listing(A, "x")),
    ),
    "repair and reclaim": (
        2,
        (LOAD_3, LOAD_4, AGAIN_A, UNLOAD, STRAY_3, *results("A", 3, 4), listing(), listing(A), *WRONG, *ASK),
    ),
    "attempt, repair, strays": (
        2,
        (
            BEGIN_A,
            *BUCKETS[:4:2],
            BUCKETS[4],
            END_A,
            CLEAN_A,
            LOAD_3,
            STRAY_0,
            *results("A", 1, 3),
            listing(),
            listing(A),
        ),
    ),
    "requests": (
        2,
        (
            BEGIN_A,
            *BUCKETS[:4:2],
            BUCKETS[4],
            END_A,
            CLEAN_A,
            UNLOAD,
            *R1,
            *R2,
            *results("A", 1),
            listing(),
            listing(A),
        ),
    ),
}
BOXES["all of A"] = (
    2,
    (
        BEGIN_A,
        *BUCKETS[:4:2],
        *BUCKETS[4:],
        END_A,
        CLEAN_A,
        LOAD_3,
        UNLOAD,
        STRAY_1,
        STRAY_0,
        *R1,
        *results("A", 1, 3),
        listing(),
        listing(A),
    ),
)
ORDERS = tuple({item: None for _, box in BOXES.values() for item in box if isinstance(item, inputs.ORDERS)})


@cache
def explored(box: str) -> tuple[tuple[Agent, ...], frozenset[Any], frozenset[str]]:
    """All states of a box, the transitions of the tables that were taken, and the refusal codes that were given."""
    slots, items = BOXES[box]
    first = new_agent(ENGINE, 1, EPOCH, slots=slots, base_fingerprint=BASE)
    seen: set[tuple[Agent, History]] = {(first, frozenset())}
    todo: deque[tuple[Agent, History]] = deque(seen)
    taken: set[Any] = set()
    codes: set[str] = set()
    while todo:
        agent, history = todo.popleft()
        for given in items:
            item = evolve(given, seq=agent.seq) if isinstance(given, inputs.Listed) else given
            done = agent_step(agent, item)
            assert (broken := step_invariants(agent, done)) == (), (agent, item, broken)
            if isinstance(done.answer, Refused):
                codes.add(str(done.answer.code))
            if done.agent is agent:
                continue
            once = [action for action in done.actions if isinstance(action, ONCE) and getattr(action, "number", 0)]
            broken = (*agent_invariants(done.agent), *(f"I8 {action} again" for action in once if action in history))
            assert broken == (), (agent, item, broken)
            taken |= assert_allowed(agent, item, done)
            # The seq only counts facts; states that differ in nothing else behave alike.
            state = (evolve(done.agent, seq=0), history | frozenset(once))
            if state not in seen:
                seen.add(state)
                todo.append(state)
    return tuple(dict.fromkeys(agent for agent, _ in seen)), frozenset(taken), frozenset(codes)


def all_states() -> tuple[Agent, ...]:
    return tuple(dict.fromkeys(agent for box in BOXES for agent in explored(box)[0]))


@pytest.mark.parametrize("box", BOXES)
def test_no_reachable_state_breaks_an_invariant(box: str):
    states, _, _ = explored(box)
    assert len(states) > 20
    print(box, len(states))


def test_every_transition_of_the_tables_is_taken():
    taken = frozenset().union(*(explored(box)[1] for box in BOXES))
    listed = {
        (what, was, name, now)
        for what, table in (("work", WORK), ("adapter", ADAPTER))
        for was, rows in table.items()
        for name, nows in rows.items()
        for now in nows
    }
    assert taken == listed


def test_every_refusal_code_is_given():
    codes = frozenset().union(*(explored(box)[2] for box in BOXES))
    assert set(map(str, AgentCode)) <= codes
    assert {"STALE_INCARNATION", "STALE_ATTEMPT", "OPERATION_CONFLICT", "OUT_OF_ORDER", "NOT_ABSENT"} <= codes


def test_a_repeated_order_adds_nothing():
    """Asked again at once, an order gets the same answer, and asks for nothing but another look (RFC 3.4)."""
    for agent in all_states():
        for order in ORDERS:
            once = agent_step(agent, order)
            twice = agent_step(once.agent, order)
            assert not [action for action in twice.actions if isinstance(action, ONCE)]
            if twice.agent is once.agent:
                assert agent_step(twice.agent, order).answer == twice.answer


def test_what_is_over_stays_over():
    """After a cleanup or an unload, no order brings the number or the version back (I12)."""
    late = [
        addressed(orders.Begin, "A", number=1, plan=plan_of(1)),
        addressed(inputs.ArmBucket, number=1, bucket=0),
        addressed(inputs.ReceiveBucket, number=1, bucket=0),
        addressed(orders.End, "A", number=1),
        addressed(orders.Load, "A", number=3),
        inputs.Acquire(rid="late", lora_name=name_of("A")),
    ]
    closed = 0
    for agent in all_states():
        cleaned = agent_step(agent, addressed(orders.Cleanup, "A", number=1)).agent
        for order in late[:4]:
            done = agent_step(cleaned, order)
            assert done.agent is cleaned
            assert not done.answer.ok
        unloading = agent_step(agent, addressed(orders.Unload, "A", reclaim_id="rc"))
        if unloading.answer.ok:
            closed += 1
            for order in late:
                done = agent_step(unloading.agent, order)
                assert done.agent is unloading.agent
                assert not done.answer.ok
    assert closed > 100


GARBAGE = (None, -1, 2**63, True, 1.5, "", "\n", "x" * 600, b"x", [], {}, object(), frozenset({1}), ("e1", 1))


def test_malformed_input_is_refused_in_every_state_and_names_the_field():
    states = explored("all of A")[0][::50]
    refused = 0
    for item in (*BOXES["all of A"][1], *WRONG, *ASK):
        for field in fields(type(item)):
            for value in GARBAGE:
                bad = evolve(item, **{field.name: value})
                for agent in states:
                    done = agent_step(agent, bad)
                    assert not step_invariants(agent, done)
                    if isinstance(done.answer, Refused) and done.answer.code == "BAD_INPUT":
                        refused += 1
                        assert done.answer.field in (field.name, "lora_name")
                        assert done.agent is agent
    assert refused > 10_000
