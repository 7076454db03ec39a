"""The machines that a composed system is made of; a weak variant replaces one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from attrs import frozen

from lorafsm import publisher, reclaimer, registry, repairer
from lorafsm.engine import AgentStep, agent_step
from lorafsm.engine.orders import Input
from lorafsm.engine.records import Agent
from lorafsm.events import Event
from lorafsm.records import Registry

RegistryStep: TypeAlias = Callable[[Registry, Event], registry.Step]
EngineStep: TypeAlias = Callable[[Agent, Input], AgentStep]


@frozen(kw_only=True)
class Rules:
    """The real ones, unless replaced."""

    registry: RegistryStep = registry.step
    agent: EngineStep = agent_step
    publisher: Callable[[Registry, str, int], tuple[Any, ...]] = publisher.next_orders
    reclaimer: Callable[[Registry, int], tuple[Any, ...]] = reclaimer.next_orders
    repairer: Callable[[Registry, int], tuple[Any, ...]] = repairer.next_orders
    waits_for_armed: bool = True  # the driver authorises a bucket when every target has armed it (rule 6)
    verifies_content: bool = True  # the executor compares what it loads with the digest (RFC 3.2)


REAL = Rules()
