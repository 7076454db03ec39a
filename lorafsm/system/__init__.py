"""The whole protocol as one state: registry, engines, policies, sessions and the network between them, with faults."""

from lorafsm.system.box import FAULTS, SystemBox
from lorafsm.system.model import Model, SystemStep
from lorafsm.system.records import System

__all__ = ["FAULTS", "Model", "System", "SystemBox", "SystemStep"]
