"""Any order of all events: the invariants after each step, and a naive model beside it.

Every class of event is a rule.  Some steps that bring a publication, a reclaim or a repair on come before it, so
that it meets every state.  Most events are drawn from what makes sense in the registry at hand; one in six has one
field of somebody else's or of another time.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from attrs import evolve
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from lorafsm import events as ev
from lorafsm.events import EVENTS
from lorafsm.invariants import check, check_change
from lorafsm.outcomes import Code, Refusal
from lorafsm.records import MAX_ENGINES, Config, Registry, new_registry
from lorafsm.registry import step
from tests.core.likely import FORWARD, KINDS, at, field_names, filler, likely, wrong_values
from tests.core.naive import Naive
from tests.core.story import EPOCH

TIMES = (0, 1, 1, 1, 1, 5, 1_500, 31_000, 61_000)
GENTLE = (
    "bind_first close_and_release owner_up engine_join engine_up rollback order_repair repair_failed authorize_bucket "
    "commit reserve ready"
).split()
LARGE_FLEET = tuple(f"F{n}" for n in range(MAX_ENGINES))
LEAST_RUNS, MOST_RUNS = 40, 500
ASKED_ELSEWHERE = {Code.NO_BINDING, Code.RETRY_UNSAFE}  # of `may_dispatch` and of dispatch, not of `step`


class Run:
    """A registry, the model beside it, and what was reached."""

    def __init__(self, config: Config) -> None:
        self.r: Registry = new_registry(EPOCH, config)
        self.naive = Naive(config.max_version_lag)
        self.fresh = 100
        self.kinds: Counter[str] = Counter()
        self.codes: Counter[Code] = Counter()

    def events(self, kind: str) -> list[Any]:
        self.fresh += 1
        return likely(self.r, kind, self.fresh) or [filler(kind)]

    def onward(self) -> list[Any]:
        """Events that are not refused now and bring something on."""
        events = [at(event, self.r.now) for kind in FORWARD for event in self.events(kind)]
        return [event for event in events if step(self.r, event).registry is not self.r]

    def apply(self, event: Any) -> None:
        before = self.r
        done = step(before, event)
        if isinstance(done.outcome, Refusal):
            assert done.registry is before
            assert done.effects == ()
        assert check(done.registry) == ()
        assert check_change(before, event, done.registry) == ()
        self.naive.observe(event, done.outcome)
        self.naive.assert_like(done.registry)
        self.kinds[event.name] += 1
        self.codes[done.outcome.code] += 1
        self.r = done.registry


class RegistryMachine(RuleBasedStateMachine):
    @initialize(
        capacity=st.integers(1, 3),
        engines=st.integers(1, 2),
        lag=st.sampled_from([0, 0, 1]),
        past_lost=st.booleans(),
    )
    def born(self, capacity: int, engines: int, lag: int, past_lost: bool) -> None:
        config = Config(capacity=capacity, engine_slots=capacity + 1, max_version_lag=lag, publish_past_lost=past_lost)
        self.run = Run(config)
        for event in self.run.events("engine_join")[:engines] + self.run.events("owner_up")[:2]:
            self.run.apply(event)

    def perform(self, kind: str, data: st.DataObject) -> None:
        for _ in range(data.draw(st.integers(0, 4), label="steps onward")):
            if onward := self.run.onward():
                self.run.apply(data.draw(st.sampled_from(onward), label="onward"))
        event = data.draw(st.sampled_from(self.run.events(kind)), label=kind)
        event = at(event, self.run.r.now + data.draw(st.sampled_from(TIMES), label="ms later"))
        if data.draw(st.integers(0, 5), label="0: illegal") == 0:
            name = data.draw(st.sampled_from(field_names(event)), label="field")
            wrong = wrong_values(self.run.r, self.run.fresh)[name]
            event = evolve(event, **{name: data.draw(st.sampled_from(wrong), label="value")})
        self.run.apply(event)

    def teardown(self) -> None:
        if hasattr(self, "run"):
            REACHED.update(self.run.codes)
            SEEN.update(self.run.kinds)


def _rule_for(kind: str) -> Any:
    def apply(self: RegistryMachine, data: st.DataObject) -> None:
        self.perform(kind, data)

    apply.__name__ = kind
    return rule(data=st.data())(apply)


REACHED: Counter[Code] = Counter()
SEEN: Counter[str] = Counter()
AllEvents = type("AllEvents", (RegistryMachine,), {kind: _rule_for(kind) for kind in KINDS})
TestRegistry = pytest.mark.slow(AllEvents.TestCase)
TestRegistry.settings = settings(
    max_examples=200,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


def test_every_class_of_event_is_a_rule():
    machine = AllEvents()
    assert {event.name for event in EVENTS} <= {rule.function.__name__ for rule in machine.rules}


def random_run(seed: int, steps: int) -> Run:
    """The same kind of run from a seed, with many more steps."""
    rng = random.Random(seed)
    config = Config(
        capacity=rng.choice([1, 2, 2, 3]),
        engine_slots=4,
        max_version_lag=rng.choice([0, 0, 1]),
        publish_past_lost=rng.random() < 0.3,
        require_artifact=rng.random() < 0.8,
    )
    run = Run(config)
    for name in LARGE_FLEET if seed == 0 else ():
        run.apply(ev.EngineJoin(engine=name, incarnation=1, seq=1, base_fingerprint=""))
    for _ in range(steps):
        onward = run.onward() if rng.random() < 0.7 else []
        if onward:
            run.apply(rng.choice(onward))
            continue
        event = rng.choice(run.events(rng.choice([*KINDS, *GENTLE * 3])))
        event = at(event, run.r.now + rng.choice(TIMES))
        if rng.random() < 0.3:
            name = rng.choice(field_names(event))
            event = evolve(event, **{name: rng.choice(wrong_values(run.r, run.fresh)[name])})
        run.apply(event)
    return run


@pytest.mark.slow
def test_seeded_runs_reach_every_event_and_every_code(record_property: Any):
    kinds: Counter[str] = Counter()
    codes: Counter[Code] = Counter()
    for seed in range(MOST_RUNS):
        run = random_run(seed, 200)
        kinds.update(run.kinds)
        codes.update(run.codes)
        if seed >= LEAST_RUNS and not set(Code) - set(codes) - ASKED_ELSEWHERE:
            break
    record_property("events", dict(kinds))
    record_property("codes", {str(code): count for code, count in codes.items()})
    assert set(kinds) == set(KINDS)
    assert set(Code) - set(codes) == ASKED_ELSEWHERE
