"""The same life of a session on other state machine libraries, side by side in one run.

Each library is used as its documentation shows.  All keep the live sessions by number and count how many hold the
version; all refuse an event that the session's state does not allow.  What only lorafsm does here: every state is a
value that stays valid, sessions belong to owners with leases, CLOSED is remembered for ever, repeated events answer
as the first time, all fields are checked.  The others change objects in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version

from tests.benchmarks.figures import Figure, Goal
from tests.benchmarks.lives import Lives
from tests.benchmarks.lives_automat import AutomatLives
from tests.benchmarks.lives_lorafsm import LorafsmLives
from tests.benchmarks.lives_python_statemachine import PythonStatemachineLives
from tests.benchmarks.lives_transitions import TransitionsLives
from tests.benchmarks.sizes import Sizes
from tests.benchmarks.timing import Stopwatch, gc_frozen

GOALS: dict[str, Goal] = {}
EVENTS = ("open", "bind_first", "begin_close", "close")
_PEERS = {
    "transitions": TransitionsLives,
    "python-statemachine": PythonStatemachineLives,
    "Automat": AutomatLives,
}
_A_TURN = 20
_LIVE = 100  # sessions that are bound all the time, in every library


def figures(sizes: Sizes) -> Iterator[Figure]:
    """A whole life, and each event of it: median of ours and of each library's."""
    watch = Stopwatch()
    ours = LorafsmLives()
    everyone: dict[str, Lives] = {"lorafsm": ours, **{name: make() for name, make in _PEERS.items()}}
    for lives in everyone.values():
        for number in range(_LIVE):
            lives.open(number)
            lives.bind_first(number)
    with gc_frozen():
        for start in range(_LIVE, _LIVE + sizes.lifecycles, _A_TURN):
            for name, lives in everyone.items():
                for event in EVENTS:
                    watch.time((name, event), getattr(lives, event), range(start, start + _A_TURN))
    for name, lives in everyone.items():
        assert lives.held == _LIVE, f"{name}: {lives.held} sessions are bound"
    mine = {event: watch.median_us(("lorafsm", event)) for event in EVENTS}
    for name in _PEERS:
        theirs = {event: watch.median_us((name, event)) for event in EVENTS}
        titled, figure = f"{name} {version(name)}", f"step.vs_{name.lower().replace('-', '_')}"
        yield Figure(figure, sum(mine.values()), "µs", titled, sum(theirs.values()))
        for event in EVENTS:
            yield Figure(f"{figure}.{event}", mine[event], "µs", titled, theirs[event])
