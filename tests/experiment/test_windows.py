"""Windows of the online experiment: what counts inside one, what cannot be compared, the longest stand-still."""

from __future__ import annotations

import pytest

from gpu_e2e.experiment.windows import Window, check_interleaved, compared, inside, no_progress, percentiles
from lorafsm.errors import InvalidField

PAIR = [Window("quiet", 0.0, 1.0), Window("publishing", 1.0, 2.0)]


def test_nothing_measured_is_not_zero() -> None:
    assert percentiles([]) is None


def test_percentiles_are_nearest_ranks() -> None:
    assert percentiles(range(1, 101)) == {"p50": 50, "p95": 95, "p99": 99, "max": 100, "count": 100}


def test_a_gap_that_outlasts_its_window_counts_in_it() -> None:
    assert inside([(2.5, 600.0)], PAIR, "publishing") == [600.0]
    assert inside([(2.5, 400.0)], PAIR, "publishing") == []


def test_ratios_compare_publishing_with_quiet() -> None:
    found = compared([(0.5, 10.0), (1.5, 30.0)], PAIR)
    assert (found["p99_ratio"], found["max_ratio"]) == (3.0, 3.0)


def test_a_kind_without_samples_has_no_ratio() -> None:
    found = compared([(1.5, 30.0)], PAIR)
    assert found["quiet"] is None
    assert found["p99_ratio"] is None


@pytest.mark.parametrize(
    "windows",
    [
        [],
        [PAIR[0]],
        [PAIR[0], Window("quiet", 1.0, 2.0)],
        [PAIR[0], Window("publishing", 0.5, 1.5)],
        [PAIR[0], Window("publishing", 1.0, 1.0)],
        [PAIR[0], Window("publishing", 1.0, 3.0)],
    ],
    ids=["none", "one kind", "not alternating", "overlapping", "empty", "unequal"],
)
def test_windows_that_cannot_be_compared_are_refused(windows: list[Window]) -> None:
    with pytest.raises(InvalidField, match="windows"):
        check_interleaved(windows)


def test_equal_alternating_windows_are_taken() -> None:
    check_interleaved([*PAIR, Window("quiet", 2.0, 3.1), Window("publishing", 3.1, 4.1)])


def test_an_idle_engine_is_not_standing_still() -> None:
    busy = {"E0": [(0.0, 1.0), (0.5, 2.0), (10.0, 11.0)], "E1": []}
    arrivals = {"E0": [0.5, 1.25, 1.5, 10.25, 10.5]}
    assert no_progress(arrivals, busy) == {"E0": 750.0, "E1": 0.0}
