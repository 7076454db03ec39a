"""The registry: the versions, the default, the sessions' bindings and the fleet, behind one function `step`."""

from lorafsm.registry.answer import Step
from lorafsm.registry.step import step

__all__ = ["Step", "step"]
