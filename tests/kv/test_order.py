"""The order of eviction (seed 004) and what goes with what."""

from __future__ import annotations

import pytest

from lorafsm.kv import FULL, HostTier, HostWrite
from lorafsm.lifecycle import VersionState
from lorafsm.outcomes import Code
from tests.kv.story import Story, key, tokens, version

SWA = 1


def test_unreferenced_goes_first_however_recent():
    s = Story()
    s.run("s1", "old")
    s.run(None, "new")
    assert s.evict(4) == ["new", "old"]


def test_then_fewer_refs_then_the_base_policy():
    s = Story()
    s.run("s1", "both")
    s.run("s2", "both")
    s.run("s1", "x1")
    s.run("s2", "y2")
    assert s.evict(99) == ["x1", "y2", "both"]


def test_refs_are_soft_what_no_lock_holds_can_be_freed():
    s = Story()
    s.run("s1", "abcd")
    s.run("s2", "abxy")
    assert s.evict(99) == ["abcd", "abxy", "ab"]
    assert s.nodes() == []


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        ("lru", ["b", "c", "a"]),
        ("mru", ["a", "c", "b"]),
        ("fifo", ["a", "b", "c"]),
        ("lfu", ["b", "c", "a"]),
        ("priority", ["a", "c", "b"]),
    ],
)
def test_base_policies(policy, order):
    s = Story(policy=policy)
    s.run(None, "a", priority=0)
    s.run(None, "b", priority=2)
    s.run(None, "c", priority=1)
    s.run(None, "a")
    assert s.evict(3) == order


def test_with_the_feature_off_sessions_change_nothing():
    s = Story(sessions=False)
    s.run("s1", "old")
    s.run(None, "new")
    assert s.refs("old") == (0, 0)
    assert s.evict(4) == ["old", "new"]


def test_closing_keeps_the_recency_exactly():
    """In the original a closed session's cold window KV moves in front of hotter ones."""
    s = Story(window=1)
    s.run("s1", "cold")
    s.run(None, "warm")
    s.run("s2", "hot")
    s.close("s1")
    s.close("s2")
    assert s.evict(9, SWA) == ["cold", "warm", "hot"]


def test_two_unreferenced_nodes_change_places_by_access_alone():
    s = Story()
    s.run(None, "ab12")
    s.run(None, "cd")
    s.run(None, "ab34")  # splits ab12: no access of its end
    assert s.evict(9) == ["ab12", "cd", "ab34", "ab"]


def test_a_split_hands_its_recency_on_to_the_upper_half():
    s = Story(window=1)
    s.run(None, "xy")
    s.run(None, "abcd", window_from=99)
    s.run(None, "abcd", window_from=2)  # splits where the window KV begins
    lock = s.cache.lock(s.node("xy"))  # not by a match: that would be an access
    assert s.evict() == ["abcd"]
    s.unlock(lock)
    assert s.evict(9) == ["xy", "ab"]


def test_a_locked_node_is_no_candidate():
    s = Story()
    s.run(None, "abcd")
    lock = s.lock("abcd")
    s.run(None, "xy")
    assert len(s.cache.candidates.device[FULL]) == 1
    assert s.evict(99) == ["xy"]
    assert s.evict(99) == []
    s.unlock(lock)
    assert s.evict(99) == ["abcd"]


def test_a_lock_holds_the_path_and_survives_splits():
    s = Story(window=2)
    s.run(None, "abcdef")
    lock = s.lock("abcdef")
    s.run(None, "abcxyz")
    s.run(None, "abcd")
    assert s.cache.tree.protected == [6, 6]
    s.unlock(lock)
    assert s.cache.tree.protected == [0, 0]


# Window KV and states beside full KV


def test_a_window_without_refs_does_not_take_full_kv_with_refs_along():
    """`_can_evict_leaf_atomically`."""
    s = Story(window=2)
    s.run("s1", "abcd")
    s.run("s1", "abcdefgh", window_from=99)
    s.evict(4, SWA)  # the window at abcd, which the session needs: it has refs, so it may go
    assert s.texts() == {"abcd", "abcdefgh"}
    assert s.refs("abcdefgh") == (1, 0)


def test_a_leaf_whose_window_has_no_refs_and_full_kv_has_loses_its_window_alone():
    s = Story(window=1)
    s.run("s1", "abcdef")
    s.run(None, "abc")
    node = s.node("abcdef")
    s.cache.coverages[SWA].release(s.cache.sessions.live[key("s1")])
    assert node.is_device_leaf()
    s.evict(6, SWA)
    assert node.full.device
    assert not node.parts[SWA].device


def test_a_leaf_without_refs_goes_whole():
    s = Story(window=1, states=True)
    s.run(None, "abcd")
    assert s.evict(1, SWA) == ["abcd"]
    assert s.nodes() == []


def test_inside_the_tree_a_window_takes_states_along_and_a_state_nothing():
    s = Story(window=2, states=True)
    s.run(None, "ab")
    s.run(None, "abcdef")
    inner = s.node("ab")
    assert s.evict(1, 2) == ["ab"]
    assert (inner.full.device, inner.parts[1].device, inner.parts[2].device) == (True, True, False)
    s.run(None, "ab")
    s.hit("abcdef")
    assert inner.parts[2].device
    assert s.evict(1, SWA) == ["ab"]
    assert (inner.full.device, inner.parts[1].device, inner.parts[2].device) == (True, False, False)


def test_unreferenced_windows_go_first_and_all_may_go():
    s = Story(window=2)
    s.run("s1", "old")
    s.run(None, "new")
    assert s.evict(3, SWA) == ["new"]
    assert s.evict(3, SWA) == ["old"]


def test_a_match_needs_a_whole_window():
    s = Story(window=3)
    s.run(None, "abcd")
    s.run(None, "abcdefgh")
    s.cache.tree.drop_device(s.node("abcd"), SWA)
    assert s.hit("abcdefgh") == 8, "four tokens of window after the gap are enough"
    s.run(None, "abcdef", window_from=4)
    s.cache.tree.drop_device(s.node("abcdefgh"), SWA)
    s.check()
    assert s.hit("abcdefgh") == 0


# The host


def host(full: int, write: str, threshold: int = 1) -> HostTier:
    return HostTier(capacities=(full,), write=HostWrite(write), threshold=threshold)


def test_write_through_copies_at_the_threshold_and_eviction_demotes():
    s = Story(host=host(10, "write_through", threshold=2))
    s.run(None, "abcd")
    assert not s.node("abcd").full.host
    s.run(None, "abcd")
    assert s.node("abcd").full.host
    assert s.evict() == ["abcd"]
    assert (s.cache.tree.used, s.cache.tree.host_used) == ([0], [4])
    found = s.cache.match(tokens("abcd"))
    assert (found.length, found.device_length) == (4, 0)
    assert s.cache.load(found) == 4
    s.check()
    assert s.cache.match(tokens("abcd")).device_length == 4


def test_write_through_deletes_what_it_did_not_copy():
    s = Story(host=host(10, "write_through", threshold=2))
    s.run(None, "abcd")
    assert s.evict() == ["abcd"]
    assert s.nodes() == []


def test_write_back_copies_at_eviction():
    s = Story(host=host(10, "write_back"))
    s.run(None, "abcd")
    assert s.cache.tree.host_used == [0]
    s.evict()
    assert (s.cache.tree.used, s.cache.tree.host_used) == ([0], [4])


def test_write_back_deletes_what_the_host_cannot_take():
    s = Story(host=host(3, "write_back"))
    s.run(None, "abcd")
    s.evict()
    assert s.nodes() == []


def test_on_the_host_too_unreferenced_goes_first():
    s = Story(host=host(6, "write_back"))
    s.run("s1", "old")
    s.run(None, "new")
    s.evict(6)
    assert s.cache.tree.host_used == [6]
    assert s.evict(1, host=True) == ["new"]


def test_write_back_first_drops_copies_of_what_is_on_the_device():
    s = Story(host=host(4, "write_back"))
    s.run(None, "ab")
    s.evict()
    s.run(None, "ab")  # on both tiers now
    s.run(None, "wxyz")
    s.hit("ab")
    assert s.evict() == ["wxyz"]
    assert s.cache.tree.host_used == [4]
    assert s.node("ab").full.device
    assert not s.node("ab").full.host


def test_a_session_keeps_its_refs_on_the_host():
    s = Story(host=host(10, "write_back"))
    s.run("s1", "abcd")
    s.evict()
    assert s.refs("abcd") == (1, 0)


def test_no_tombstone_is_left_on_the_way_to_the_root():
    """The original has nodes without full KV, and removes them when their last child goes; here there are none."""
    s = Story(host=host(10, "write_back"))
    s.run(None, "ab")
    s.run(None, "abcd")
    s.evict(4)
    assert s.texts() == {"ab", "abcd"}
    assert s.evict(4, host=True) == ["abcd", "ab"]
    assert s.nodes() == []


# Versions


def test_two_versions_never_share_a_node():
    s = Story()
    s.run("s1", "abcd", "A")
    assert s.hit("abcd", "B") == 0
    assert s.hit("abcd") == 0
    s.run("s2", "abcd", "B")
    assert s.refs("abcd", v="A") == s.refs("abcd", v="B") == (1, 0)


def test_a_session_keeps_to_its_version():
    s = Story()
    s.run("s1", "ab", "A")
    assert s.run("s1", "ab", "B") == Code.OPERATION_CONFLICT


def test_kv_of_a_reclaimed_version_goes_at_once_and_for_ever():
    s = Story()
    s.run("s1", "abcd", "A")
    s.run("s2", "abcd", "B")
    assert s.cache.set_version(version("A"), VersionState.RECLAIMED) == 4
    s.check()
    assert s.cache.tree.used == [4]
    assert s.run("s3", "ab", "A") == Code.VERSION_GONE
    assert s.cache.insert(tokens("ab"), version("A")).code == Code.VERSION_GONE


def test_what_a_lock_holds_of_a_dead_version_goes_first_and_then_with_the_lock():
    s = Story()
    s.run(None, "abcd", "A")
    lock = s.cache.lock(s.node("abcd", "A"))
    assert s.cache.set_version(version("A"), VersionState.RECLAIMED) == 0
    assert s.cache.tree.used == [4]
    s.unlock(lock)
    assert s.cache.tree.used == [0]
    assert s.cache.spaces == {}


def test_a_retired_version_without_sessions_is_next():
    s = Story(ttl=1000)
    s.run("s1", "active", "A")
    s.run("s2", "expired", "B")
    s.wait(999)
    s.run("s1", "active", "A")
    s.wait(1)
    s.run(None, "plain", "B")
    s.run("s3", "retired", "C")
    s.cache.set_version(version("C"), VersionState.RETIRED, 0)
    s.check()
    assert s.evict(99) == ["retired", "plain", "expired", "active"]


def test_a_retired_version_with_sessions_is_like_any_other():
    s = Story()
    s.run("s1", "held", "A")
    s.cache.set_version(version("A"), VersionState.RETIRED, 1)
    s.run(None, "plain", "B")
    assert s.evict(99) == ["plain", "held"]


def test_a_rollback_makes_a_retired_version_worth_keeping_again():
    s = Story()
    s.run("s1", "held", "A")
    s.cache.set_version(version("A"), VersionState.RETIRED, 0)
    s.cache.set_version(version("A"), VersionState.PUBLISHED, 0)
    s.run(None, "plain", "B")
    assert s.evict(99) == ["plain", "held"]


def test_a_failed_version_may_be_reserved_again():
    s = Story()
    s.run(None, "ab", "A")
    assert s.cache.set_version(version("A"), VersionState.FAILED_CLEAN) == 2
    assert s.run("s1", "ab", "A") == Code.OK
