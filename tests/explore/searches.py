"""Each box of the composed system searched once in a test run."""

from functools import cache

from lorafsm.explore import Exploration
from lorafsm.system import Model
from lorafsm.system.boxes import BOXES

MAX_STATES = 1_000_000


@cache
def searched(name: str) -> Exploration:
    """What the search of the box of this name has seen."""
    return Model(BOXES[name]).search(MAX_STATES)
