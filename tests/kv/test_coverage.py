"""What a session covers (seed 004): full KV the whole path, window KV the window exactly, a state its own node."""

from __future__ import annotations

from tests.kv.story import Story

SWA = 1


def test_full_kv_counts_the_whole_path():
    s = Story()
    s.run(None, "ab")
    s.run(None, "abcd")
    s.run("s1", "abcdef")
    assert [s.refs(t) for t in ("ab", "abcd", "abcdef")] == [(1, 0)] * 3


def test_advancing_counts_the_difference_alone_and_moves_the_mark():
    s = Story()
    s.run("s1", "ab")
    s.run("s1", "abcd")
    s.run("s1", "abcdef")
    assert [s.refs(t) for t in ("ab", "abcd", "abcdef")] == [(1, 0)] * 3
    assert [bool(s.node(t).full.marks) for t in ("ab", "abcd", "abcdef")] == [False, False, True]


def test_the_same_end_twice_counts_once():
    s = Story()
    s.run("s1", "ab")
    s.run("s1", "ab")
    assert s.refs("ab") == (1, 0)


def test_two_branches_of_one_session_count_once_where_they_share():
    """In the original, twice."""
    s = Story()
    s.run("s1", "abcd")
    s.run("s1", "abxy")
    assert s.refs("ab") == (1, 0)
    s.run("s2", "ab")
    assert s.refs("ab") == (2, 0)
    s.close("s1")
    assert s.refs("ab") == (1, 0)


def test_the_oldest_branch_gives_way():
    s = Story(branches=2)
    for text in ("ab1", "ab2", "ab3"):
        s.run("s1", text)
    assert [s.refs(t) for t in ("ab1", "ab2", "ab3", "ab")] == [(0, 0), (1, 0), (1, 0), (1, 0)]


def test_a_split_changes_no_coverage():
    s = Story()
    s.run("s1", "abcdef")
    s.run("s2", "abcdef")
    s.run(None, "abc")
    assert s.refs("abc") == s.refs("abcdef") == (2, 0)
    s.close("s1")
    assert s.refs("abc") == s.refs("abcdef") == (1, 0)


def test_a_deleted_frontier_falls_back_to_the_nearest_reusable_ancestor():
    s = Story()
    s.run("s1", "ab")
    s.run("s1", "abcd")
    assert s.evict() == ["abcd"]
    assert s.refs("ab") == (1, 0)
    assert s.node("ab").full.marks
    s.close("s1")
    assert s.refs("ab") == (0, 0)


def test_a_ref_that_falls_onto_the_sessions_own_frontier_is_not_counted_again():
    s = Story()
    s.run("s1", "abcd")
    s.run("s1", "ab")  # shorter: a frontier of its own
    assert s.refs("ab") == (1, 0)
    assert s.evict() == ["abcd"]
    assert s.refs("ab") == (1, 0)


def test_refs_that_fell_are_released_when_their_session_expires():
    """So that they do not pile up on what all sessions share."""
    s = Story(ttl=1000)
    for number in range(9):
        s.run(f"s{number}", f"prompt{number}")
    s.evict(9)
    assert s.refs("prompt") == (9, 0)
    s.wait(1000)
    assert s.refs("prompt") == (0, 0)
    assert s.cache.sessions.size == 0


def test_an_expired_sessions_ref_does_not_fall_back():
    s = Story(ttl=1000)
    s.run(None, "prompt")
    s.run("s1", "prompt1")
    s.wait(1000)
    assert s.evict() == ["prompt1"]
    assert s.refs("prompt") == (0, 0)


# Window KV


def test_a_window_covers_whole_nodes_upward_until_window_and_page():
    s = Story(window=3)
    for text in ("ab", "abcd", "abcdef"):
        s.run(None, text)
    s.run("s1", "abcdefgh")
    # span 3 + 1: gh, ef; what ends 4 tokens before the frontier's end is not needed
    assert [s.refs(t, SWA) for t in ("abcdefgh", "abcdef", "abcd", "ab")] == [(1, 0), (1, 0), (0, 0), (0, 0)]


def test_a_window_moves_on_with_its_session_and_counts_nothing_twice():
    s = Story(window=3)
    for text in ("ab", "abcd", "abcdef", "abcdefgh"):
        s.run("s1", text)
    assert [s.refs(t, SWA) for t in ("abcdefgh", "abcdef", "abcd", "ab")] == [(1, 0), (1, 0), (0, 0), (0, 0)]
    s.close("s1")
    assert all(n.parts[SWA].active == 0 for n in s.nodes())


def test_two_windows_of_one_session_count_once_where_they_overlap():
    s = Story(window=3)
    s.run(None, "abc")
    s.run("s1", "abcx")
    s.run("s1", "abcy")
    assert s.refs("abc", SWA) == (1, 0)
    s.close("s1")
    assert s.refs("abc", SWA) == (0, 0)


def test_a_release_is_exact_across_splits():
    s = Story(window=3)
    s.run("s1", "abcdefgh")
    s.run("s2", "abcdefgh")
    s.run(None, "abcdefg")
    s.run(None, "abcde")
    s.close("s1")
    assert s.refs("abcdefgh", SWA) == (1, 0)
    s.close("s2")
    assert all(n.parts[SWA].active == 0 for n in s.nodes())


def test_window_coverage_is_minimal_after_splits():
    """In the original the upper half stays covered until the session closes."""
    s = Story(window=3)
    s.run("s1", "abcdefgh")
    assert s.refs("abcdefgh", SWA) == (1, 0)
    s.run(None, "abcd")  # the lower half has 4 tokens: window and page
    assert s.refs("abcdefgh", SWA) == (1, 0)
    assert s.refs("abcd", SWA) == (0, 0)
    assert s.refs("abcd") == (1, 0)
    s.run(None, "abcdef")  # ef and gh: both needed
    assert [s.refs(t, SWA) for t in ("abcdefgh", "abcdef", "abcd")] == [(1, 0), (1, 0), (0, 0)]


def test_after_a_split_a_shorter_session_still_covers_the_upper_half():
    s = Story(window=3)
    s.run("s1", "abcdef")
    s.run("s2", "abcdefgh")
    s.run(None, "abcd")
    assert s.refs("abcd", SWA) == (1, 0)  # s1 needs it, s2 does not


def test_a_frontier_without_window_kv_stands_where_there_is_a_whole_window():
    s = Story(window=2)
    s.run("s1", "abcd")
    s.run("s1", "abcdefgh", window_from=99)
    assert s.refs("abcdefgh") == (1, 0)
    assert s.refs("abcdefgh", SWA) == (0, 0)
    assert s.refs("abcd", SWA) == (1, 0)
    assert s.hit("abcdefgh") == 4


# States


def test_a_state_counts_at_its_own_node_alone():
    s = Story(states=True)
    s.run("s1", "ab")
    s.run("s1", "abcd")
    assert s.refs("abcd", 1) == (1, 0)
    assert s.refs("ab", 1) == (0, 0)
    assert s.refs("ab") == (1, 0)


def test_the_upper_half_of_a_split_has_no_state_and_no_state_ref():
    s = Story(states=True)
    s.run("s1", "abcd")
    s.run(None, "abxy", state=False)
    assert s.refs("ab", 1) == (0, 0)
    assert not s.node("ab").parts[1].device
    assert s.refs("abcd", 1) == (1, 0)
    assert s.hit("ab") == 0, "a match ends only where there is a state"


def test_a_state_ref_falls_back_to_the_nearest_ancestor_with_a_state():
    s = Story(states=True)
    s.run("s1", "ab")
    s.run("s1", "abcd", state=False)
    assert s.refs("ab", 1) == (1, 0)
    s.run("s1", "abcdef")
    assert s.refs("ab", 1) == (0, 0)
    assert s.evict() == ["abcdef"]
    assert s.refs("ab", 1) == (1, 0)
