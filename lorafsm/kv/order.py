"""The order of eviction.

    dead version < idle version < unreferenced < expired < active

then the number of sessions that cover the node, then the base policy. A dead version (RECLAIMED) can never be asked
for again; an idle one (RETIRED, no session ref) only after a rollback. A session's refs are soft: they say when a
node goes, never whether.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum, StrEnum

from lorafsm.kv.node import Node, Part
from lorafsm.kv.ranking import Key


class Class(IntEnum):
    """What a node is worth, least first."""

    DEAD = 0
    IDLE = 1
    UNREFERENCED = 2
    EXPIRED = 3
    ACTIVE = 4


class Policy(StrEnum):
    """The base policy: the order within one class and one number of refs."""

    LRU = "lru"
    LFU = "lfu"  # fewest inserts that passed over it, then LRU
    FIFO = "fifo"
    MRU = "mru"
    PRIORITY = "priority"  # lowest priority of the requests that made it, then LRU


BASE: Mapping[Policy, Callable[[Node, Part], tuple[int, int]]] = {
    Policy.LRU: lambda node, part: (0, part.stamp),
    Policy.LFU: lambda node, part: (node.hits, part.stamp),
    Policy.FIFO: lambda node, part: (0, node.created),
    Policy.MRU: lambda node, part: (0, -part.stamp),
    Policy.PRIORITY: lambda node, part: (node.priority, part.stamp),
}


def class_of(node: Node, part: Part) -> Class:
    """The class of one component's share of a node."""
    if node.space.dead:
        return Class.DEAD
    if node.space.idle:
        return Class.IDLE
    if part.active:
        return Class.ACTIVE
    return Class.EXPIRED if part.expired else Class.UNREFERENCED


def full_key(policy: Policy) -> Callable[[Node, Part], Key]:
    """Full KV: class, refs, base policy.  Halves of a split share `created`; the lower half goes first."""
    base = BASE[policy]
    if policy is Policy.LRU:
        return _full_lru

    def key(node: Node, part: Part) -> Key:
        return (class_of(node, part), part.active or part.expired, *base(node, part), -node.end)

    return key


def _full_lru(node: Node, part: Part) -> Key:
    if node.space.dead or node.space.idle:
        return (0 if node.space.dead else 1, part.active or part.expired, part.stamp)
    if part.active:
        return (4, part.active, part.stamp)
    if part.expired:
        return (3, part.expired, part.stamp)
    return (2, 0, part.stamp)


def side_key(node: Node, part: Part) -> Key:
    """Window KV and states: class, then least recently used; of the halves of a split the upper one goes first."""
    return (class_of(node, part), part.stamp, node.end)
