"""Holders of a version, oldest first, without a scan: against a plain list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from immutables import Map

from lorafsm.holders import Holders


class CountingMap:
    """Stands in for a Map: counts what is asked of it."""

    def __init__(self, inner: Map) -> None:
        self.inner, self.touched = inner, 0

    def get(self, *args: object) -> object:
        self.touched += 1
        return self.inner.get(*args)

    def __getitem__(self, key: object) -> object:
        self.touched += 1
        return self.inner[key]

    def set(self, key: object, value: object) -> Map:
        self.touched += 1
        return self.inner.set(key, value)

    def delete(self, key: object) -> Map:
        self.touched += 1
        return self.inner.delete(key)


def test_nobody_holds_anything_at_first():
    assert (Holders().count, Holders().oldest()) == (0, None)


def test_the_oldest_is_who_bound_first_among_those_present():
    h = Holders().append(7, 100).append(3, 200).append(9, 300)
    assert (h.count, h.oldest()) == (3, (0, 7, 100))
    h = h.remove(0)
    assert (h.count, h.oldest()) == (2, (1, 3, 200))
    h = h.append(1, 400)
    assert h.oldest() == (1, 3, 200)
    h = h.remove(2).remove(1)
    assert h.oldest() == (3, 1, 400)
    h = h.remove(3)
    assert (h.count, h.oldest(), dict(h.blocks), h.occupied) == (0, None, {}, 0)


def test_positions_are_never_used_twice():
    h = Holders().append(1, 0).remove(0).append(2, 0)
    assert (h.appended, h.oldest()) == (2, (1, 2, 0))


@given(st.lists(st.one_of(st.none(), st.integers(0, 400)), max_size=300))
def test_like_a_list(moves: list):
    """None appends; a number removes the holder at that place of the list, if there is one."""
    h, model = Holders(), []
    for now, move in enumerate(moves):
        if move is None:
            model.append((h.appended, 1000 + now, now))
            h = h.append(1000 + now, now)
        elif model:
            h = h.remove(model.pop(move % len(model))[0])
        assert h.count == len(model)
        assert h.oldest() == (model[0] if model else None)


def test_an_operation_touches_one_block_whatever_the_number():
    h = Holders()
    for sequence in range(5_000):
        h = h.append(sequence, sequence)
    for operation in (lambda h: h.append(1, 1), lambda h: h.remove(2_500), lambda h: h.oldest()):
        counting = CountingMap(h.blocks)
        operation(Holders(h.count, h.appended, counting, h.occupied))
        assert counting.touched <= 2


def test_what_was_is_not_changed():
    h = Holders().append(1, 10).append(2, 20)
    h.remove(0)
    h.append(3, 30)
    assert (h.count, h.oldest(), h.appended) == (2, (0, 1, 10), 2)
