"""What a step asks of the world: wake-ups and alarms only.

Engine orders have one other source, the policies' `next_orders(view)`, which read the registry; so nothing is
lost when an effect is lost, and nothing is emitted twice after a crash (protocol section 2).
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from attrs import frozen


@frozen
class Wake:
    """The named policy should look at the registry again now rather than at its next tick."""

    policy: Literal["publisher", "reclaimer", "repairer"]


@frozen
class Alarm:
    """Something that a person may want to know: a stable code and one sentence."""

    code: str
    text: str


Effect: TypeAlias = Wake | Alarm
