"""How much is measured: the sizes of the issue, or tiny ones that only show that everything runs."""

from __future__ import annotations

from attrs import frozen


@frozen(kw_only=True)
class Sizes:
    """Sizes of the worlds and numbers of repeats."""

    live: tuple[int, ...]  # numbers of live sessions, small to large
    gaps: int  # sequences that each owner passed over
    rounds: int  # turns of each world
    lifecycles: int  # whole sessions per library
    closed: int  # sessions that end, where memory is measured
    held: int  # live sessions, where memory is measured
    searches: int  # times that the box is searched
    states: int  # at most, a search


FULL = Sizes(
    live=(100, 10_000, 1_000_000),
    gaps=1_000,
    rounds=400,
    lifecycles=3_000,
    closed=1_000_000,
    held=100_000,
    searches=5,
    states=10_000,
)
TINY = Sizes(live=(32, 64), gaps=3, rounds=2, lifecycles=40, closed=2_000, held=500, searches=1, states=50)
