"""Net 2, what is refused: the code of a refusal is true of the specification's state, in runs that Hypothesis chooses;
another code in its place is rejected at its row."""

import copy
import random

import pytest
from attrs import evolve
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lorafsm.events import Event
from lorafsm.outcomes import Code, Refusal
from lorafsm.records import Config, Registry, new_registry
from lorafsm.registry import step
from lorafsm_tla.trace import Trace, configuration, judged, names_in, small_numbers, trace_of
from tests.core.likely import likely
from tests.core.story import EPOCH
from tests.core.test_stateful import KINDS
from tests.spec.test_tla_trace import needs_tlc, traces

RUNS, LENGTH = 6, 40
FORM = {Code.BAD_INPUT, Code.OTHER_EPOCH}


def one_run(choose: random.Random) -> tuple[Event, ...]:
    """Likely events of every kind, with one owner of the choices: Hypothesis."""
    r: Registry = new_registry(EPOCH, Config())
    events: list[Event] = []
    for fresh in range(LENGTH):
        some = likely(r, choose.choice(list(KINDS)), 100 + fresh)
        event = choose.choice(some) if some else None
        if event is None or getattr(event, "foreign", None) or getattr(getattr(event, "plan", None), "buckets", 0) > 1:
            continue
        if getattr(event, "plan", None) is not None:
            event = evolve(event, plan=evolve(event.plan, buckets=0, digest="f" * 64))
        done = step(r, event)
        if isinstance(done.outcome, Refusal) and done.outcome.code in FORM:
            continue
        events.append(event)
        r = done.registry
    return small_numbers(events)


def runs() -> list[tuple[Event, ...]]:
    """What Hypothesis chooses, the same each time."""
    found: list[tuple[Event, ...]] = []

    @settings(
        max_examples=RUNS, derandomize=True, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck), deadline=None,
    )  # fmt: skip
    @given(st.randoms(use_true_random=False))
    def collect(choose: random.Random) -> None:
        found.append(one_run(choose))

    collect()
    return [run for run in found if run]


@needs_tlc
def test_what_hypothesis_chooses_is_accepted():
    chosen = runs()
    together = [event for run in chosen for event in run]
    names = names_in(together)
    rows = [trace_of(Config(), EPOCH, run, names) for run in chosen]
    assert sum(map(len, rows)) > LENGTH
    assert len({row["code"] for trace in rows for row in trace}) > 5
    verdicts = list(judged(rows, configuration(Config(), together, names)))
    assert [(v.accepted, v.position) for v in verdicts] == [(True, len(trace)) for trace in rows]


@needs_tlc
@pytest.mark.parametrize("name", ["leases", "sessions"])
def test_another_code_is_rejected_at_its_row(name: str):
    rows, cfg = traces(name)
    altered: list[tuple[Trace, int]] = []
    for trace in rows:
        for at, row in enumerate(trace):
            published = any("default" in before["after"] for before in trace[:at])
            if row["code"] and published and len(altered) < 20:
                other = copy.deepcopy(trace[: at + 1])
                other[at]["code"] = "NO_PUBLISHED_VERSION"
                altered.append((other, at))
    assert len(altered) >= 5
    verdicts = list(judged([trace for trace, _ in altered], cfg))
    assert [(v.accepted, v.position) for v in verdicts] == [(False, at) for _, at in altered]
