"""The shape of a transition's answer, and the short ways to write one."""

from __future__ import annotations

from attrs import frozen

from lorafsm.effects import Effect
from lorafsm.outcomes import Code, Outcome, Refusal
from lorafsm.records import Registry


@frozen
class Step:
    """The registry after the event (the same object when nothing changed), the outcome, and the effects."""

    registry: Registry
    outcome: Outcome
    effects: tuple[Effect, ...] = ()


def refuse(r: Registry, code: Code, reason: str, *, field: str | None = None, engines: tuple[str, ...] = ()) -> Step:
    """No, with a code and one sentence; nothing changes."""
    return Step(r, Refusal(code, reason, field=field, engines=engines))
