"""Ours beside the real cache of SGLang 0.5.23.  The whole table is in lorafsm/kv/README.md."""

from __future__ import annotations

import pytest

from tests.kv import compare

pytestmark = [
    pytest.mark.original,
    pytest.mark.skipif(bool(compare.why_not()), reason=compare.why_not()),
]


def test_with_sessions_off_both_evict_the_same_nodes_in_the_same_order():
    seen = compare.run("victims", "0", "20")
    assert len(seen) == 20
    assert all(row["victims"] > 100 for row in seen)
    assert [row for row in seen if row["different"]] == []


def test_with_a_sliding_window_both_evict_the_same_of_both_components_in_the_same_order():
    seen = compare.run("window", "0", "20")
    assert len(seen) == 20
    assert all(row["full"] > 50 and row["swa"] > 50 for row in seen)
    assert [row for row in seen if row["different"]] == []


def test_with_recurrent_states_both_evict_the_same_of_both_components_in_the_same_order():
    seen = compare.run("states", "0", "20")
    assert len(seen) == 20
    assert all(row["full"] > 50 and row["state"] > 30 for row in seen)
    assert [row for row in seen if row["different"]] == []


@pytest.mark.slow
def test_with_sessions_on_ours_hits_as_often_and_far_more_often_where_nobody_closes():
    """Two of the twelve settings, on two seeds: all closed, and none closed."""
    everything, nothing = compare.SETTINGS.index((20_000, 0.8, 0.0)), compare.SETTINGS.index((20_000, 0.8, 1.0))
    seen = compare.run("rates", "0", "2", str(everything), str(nothing))
    assert len(seen) == 4
    assert [row for row in seen if row["ours"] < row["original"] - 0.002] == []
    leaked = [row for row in seen if row["leak"] == 1.0]
    assert sum(row["ours"] - row["original"] for row in leaked) / len(leaked) > 0.02
