"""What configures a cache, and what it answers."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from attrs import frozen

from lorafsm.errors import InvalidField
from lorafsm.identity import SessionKey
from lorafsm.kv.coverage import Component
from lorafsm.kv.eviction import HostTier
from lorafsm.kv.node import FULL, MAMBA, SWA, Node
from lorafsm.kv.order import Policy
from lorafsm.outcomes import Code


@frozen(kw_only=True)
class CacheConfig:
    """What is fixed for the life of a cache.  Sizes in tokens (or blocks, if blocks are what is cached)."""

    page: int = 1  # prefixes end at multiples of it
    policy: Policy = Policy.LRU
    window: int = 0  # of the sliding-window component; 0: the model has none
    states: bool = False  # whether the model has recurrent (Mamba) states
    sessions: bool = True  # False: refs are ignored, as with the feature off
    ttl: int = 0  # ms without a request after which a session's refs are only *expired*; 0: never
    branches: int = 2  # frontiers of one session: where it goes on, and one more; the oldest gives way
    host: HostTier | None = None
    split_touches_suffix: bool = False  # True: as SGLang 0.5.23

    def __attrs_post_init__(self) -> None:
        for name, least in (("page", 1), ("window", 0), ("ttl", 0), ("branches", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise InvalidField(name, f"must be an integer, at least {least}")
        if self.host is not None and len(self.host.capacities) != 1 + bool(self.window) + self.states:
            raise InvalidField("host", "needs one capacity for each component: full, swa if any, mamba if any")

    def components(self) -> tuple[Component, ...]:
        """Full, then the window, then states, as far as there are any."""
        kinds = [FULL, *([SWA] if self.window else []), *([MAMBA] if self.states else [])]
        return tuple(Component(i, kind, self.window, self.page) for i, kind in enumerate(kinds))


@frozen
class Inserted:
    """The node at the end of what was stored, and how many of its tokens were on the device before."""

    ok: ClassVar[bool] = True
    node: Node
    present: int


class Held(NamedTuple):
    """The session is live and refers to `tokens` of KV: the longest of its branches (0: nothing yet)."""

    session: SessionKey
    tokens: int
    code: Code = Code.OK
    ok: bool = True


class Released(NamedTuple):
    """The session is closed for ever; so many frontiers let go, over all components."""

    session: SessionKey
    code: Code
    frontiers: int = 0
    ok: bool = True


@frozen
class Lock:
    """A hard pin on a path: give it back to `unlock`, once."""

    node: Node
    window_start: int  # the window component is pinned on nodes that end after this position
