"""How long the parts of a transfer may take; each is an upper bound after which the attempt is given up."""

from __future__ import annotations

from attrs import field, frozen, validators


def _seconds(default: float) -> float:
    value: float = field(default=default, validator=[validators.instance_of((int, float)), validators.gt(0)])
    return value


@frozen(kw_only=True)
class Deadlines:
    """All in seconds."""

    join: float = _seconds(30.0)  # until source and receivers are one group
    arm: float = _seconds(10.0)  # until an engine answered that it armed
    broadcast: float = _seconds(60.0)  # of one bucket, in the collective
    receive: float = _seconds(120.0)  # from arming to completion of one bucket, at a receiver
    settle: float = _seconds(30.0)  # from the end of the broadcast to the acknowledgement, and for hashing at the end
