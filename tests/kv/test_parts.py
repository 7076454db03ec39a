"""The parts that hold the order, the time and the closed sequences, each beside something too simple to be wrong."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from lorafsm.identity import SessionKey
from lorafsm.kv import SessionCache
from lorafsm.kv.ranges import Ranges
from lorafsm.kv.ranking import Ranking
from lorafsm.kv.wheel import Wheel

MOVES = st.lists(st.tuples(st.sampled_from("add move remove pop".split()), st.integers(0, 4), st.integers(0, 99)))


@given(st.sampled_from([0, 5]), MOVES)
def test_a_ranking_is_a_sorted_list(classes: int, moves: list[tuple[str, int, int]]):
    ranking: Ranking[int] = Ranking(classes)
    entries = {}
    for number, (what, cls, value) in enumerate(moves):
        if what == "add":
            entries[number] = ranking.add((cls, value, number), number)
        elif entries and what == "pop":
            first = ranking.first()
            assert first == min(entries, key=lambda n: entries[n].key)
            ranking.remove(entries.pop(first))
        elif entries:
            chosen = sorted(entries)[value % len(entries)]
            if what == "remove":
                ranking.remove(entries.pop(chosen))
            else:
                ranking.move(entries[chosen], (cls, value, chosen))
        assert ranking.is_ordered()
        assert len(ranking) == len(entries)
        assert {entry.item for entry in ranking.entries()} == set(entries)


@given(st.lists(st.integers(0, 30)))
def test_ranges_are_a_set(numbers: list[int]):
    ranges, seen = Ranges(), set()
    for number in numbers:
        assert ranges.add(number) == (number not in seen)
        seen.add(number)
        assert [n for n in range(32) if n in ranges] == sorted(seen)
        assert len(ranges) == sum(n - 1 not in seen for n in seen)


class Item:
    def __init__(self) -> None:
        self.deadline = None
        self.slot = None


@given(
    st.integers(1, 7),
    st.lists(st.tuples(st.sampled_from(["put", "later", "turn"]), st.integers(0, 40), st.integers(0, 9)), max_size=60),
)
def test_a_wheel_misses_nothing_and_is_never_early(width: int, moves: list[tuple[str, int, int]]):
    wheel: Wheel[Item] = Wheel(width, slots=8)
    items, now = [Item() for _ in range(10)], 0
    for what, time, which in moves:
        item = items[which]
        if what == "put" and item.slot is None:
            wheel.put(item, now + time)
        elif what == "later" and item.slot is not None:
            item.deadline += time
        elif what == "turn":
            now += time
            waiting = [i for i in items if i.slot is not None and i.deadline <= now]
            due = wheel.due(now)
            assert sorted(map(id, due)) == sorted(map(id, waiting))
            assert [i.deadline for i in due] == sorted(i.deadline for i in due)


def test_ten_thousand_leaves_are_taken_in_order_from_lists_and_heap_alike():
    """Sessions closed in a shuffled order put their leaves into the heap; recency is exact all the same."""
    cache = SessionCache()
    keys = [SessionKey("e1", "o1", n) for n in range(10_000)]
    for n, key in enumerate(keys):
        cache.open(key)
        cache.register(key, cache.insert((0, n + 1, n + 1)).node)
    for n in range(10_000):
        cache.close(keys[n * 7919 % 10_000])
    victims = [victim.last for victim in cache.evict(20_000).victims]
    assert victims == list(range(1, 10_001))
