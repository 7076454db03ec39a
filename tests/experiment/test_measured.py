"""What the online section says of its record: who held a slot when, how long phases took."""

from __future__ import annotations

import pytest

from gpu_e2e.experiment.measured import occupancy, phases
from gpu_e2e.experiment.plan import PLANS, read_plan, with_publications
from gpu_e2e.recording import Recorder
from lorafsm.errors import InvalidField


def span(state: str, start: float, end: float) -> dict[str, object]:
    return {"state": state, "start": start, "end": end}


def operation(op: str, start: float, end: float) -> dict[str, object]:
    return {"engine": "E0", "op": op, "version": "A", "start": start, "end": end, "outcome": "OK"}


def test_a_version_holds_a_slot_from_its_reserve_until_it_is_reclaimed_or_clean() -> None:
    recorder = Recorder()
    a = [span("LOADING", 0, 1), span("PUBLISHED", 1, 3), span("RETIRED", 3, 4), span("RECLAIMED", 4, 9)]
    b = [span("LOADING", 2, 3), span("ABORTED", 3, 4), span("FAILED_CLEAN", 4, 9)]
    recorder.versions = {"A": {"spans": a}, "B": {"spans": b}}
    counts = dict(map(tuple, occupancy(recorder)))
    assert counts == {0: 1, 1: 1, 2: 2, 3: 2, 4: 0}


def test_phases_are_percentiles_by_engine_in_their_order() -> None:
    recorder = Recorder()
    recorder.operations = [operation("load", 1.0, 1.5), operation("begin", 0.0, 0.25), operation("load", 2.0, 2.25)]
    assert [(row["phase"], row["count"], row["max"]) for row in phases(recorder)] == [
        ("begin", 1, 250.0),
        ("load", 2, 500.0),
    ]


def test_another_number_of_publications_is_another_plan() -> None:
    plan = read_plan(PLANS / "cpu.toml")
    longer = with_publications(plan, 500)
    assert (longer.load.publications, longer.load.windows) == (500, 500)
    assert longer.sha256 != plan.sha256
    with pytest.raises(InvalidField, match="publications"):
        with_publications(plan, 0)
