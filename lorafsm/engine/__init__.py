"""The engine agent: what one engine remembers, behind one function `agent_step`."""

from lorafsm.engine.answers import AgentStep
from lorafsm.engine.records import Agent, new_agent
from lorafsm.engine.step import agent_step

__all__ = ["Agent", "AgentStep", "agent_step", "new_agent"]
