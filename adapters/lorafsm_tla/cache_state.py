"""`cache_as_tla(facts_of(cache, ...))`: a session cache as the state of SessionRefs.tla.  The map is in this file.

What the specification leaves out, and why no guard can tell:

* Stamps: only their order matters (least recently used); the order of all nodes is `tree`.
* `Part.active` and `expired`: recomputed in the specification (`Refs`); `lorafsm.kv.invariants` holds them to the
  sessions' ends in every state that is compared.
* Places in the rankings and in the timing wheel: where a node stands in the order is asked by what is evicted next, and
  a deadline is `left`, ticks from now.
* `hits`, `created`, `priority` of a node: other base policies than least recently used.
* Ranges of closed sequences, and owners that ended: `CLOSED` of each session.
* A live session's version while it has one: `space`; a closed session's is over.
* Spaces without nodes; `idle` and `dead` of a space: `standing`.

That none of this matters is not taken on trust: states that were reached in different ways and have one image are asked
for the same steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import frozen

from lorafsm.identity import SessionKey, VersionKey
from lorafsm.kv import FULL, Lock, Node, SessionCache
from lorafsm.kv.node import path_up, subtree
from lorafsm_tla.values import Plain, text_of

NO_SPACE = -1
NO_NODE: Mapping[str, Plain] = {"space": NO_SPACE, "text": {}}
EPOCH = "e1"
Name = tuple[int, tuple[int, ...]]
"""A node by its namespace (0: the base model) and the tokens from the root to its end."""


@frozen
class CacheNames:
    """What the constants of a model stand for."""

    owners: tuple[str, ...]
    sequences: tuple[int, ...]
    versions: tuple[int, ...]
    pins: tuple[str, ...]

    @property
    def sessions(self) -> list[SessionKey]:
        """Every session."""
        return [SessionKey(EPOCH, owner, sequence) for owner in self.owners for sequence in self.sequences]

    @staticmethod
    def version(space: int) -> VersionKey | None:
        """The version of a namespace."""
        return VersionKey(EPOCH, space) if space else None


def nodes_of(cache: SessionCache) -> dict[Name, Node]:
    """Every node, the least recently used first."""
    nodes = [node for space in cache.spaces.values() for node in subtree(space.root) if node.parent is not None]
    return {name_of(node): node for node in sorted(nodes, key=lambda node: node.full.stamp)}


def name_of(node: Node) -> Name:
    """The node's namespace and text."""
    text: tuple[int, ...] = ()
    for here in path_up(node):
        text = here.key + text
    return (node.space.version.version_id if node.space.version else 0), text


Ends = tuple[tuple[Name, bool], ...]
Facts = tuple[tuple[Name, ...], tuple[Name | None, ...], tuple[tuple[str, int, int, Ends], ...], tuple[str, ...]]
"""Nodes in their order; the node of each pin; state, space, ticks left and ends of each session; standing of each
version."""


def facts_of(cache: SessionCache, now: int, pins: Mapping[str, Lock], names: CacheNames) -> Facts:
    """All that the specification knows of a cache."""
    return (
        tuple(nodes_of(cache)),
        tuple(name_of(pins[pin].node) if pin in pins else None for pin in names.pins),
        tuple(_session(cache, key, now) for key in names.sessions),
        tuple(_standing(cache, VersionKey(EPOCH, version)) for version in names.versions),
    )


def cache_as_tla(facts: Facts, names: CacheNames) -> dict[str, Plain]:
    """The values of the specification's variables."""
    nodes, pins, sessions, standing = facts
    return {
        "tree": _tuple([_node(name) for name in nodes]),
        "pins": {pin: _node(name) if name else NO_NODE for pin, name in zip(names.pins, pins, strict=True)},
        "sessions": {
            text_of(_tuple([key.owner, key.sequence])): {
                "state": state,
                "space": space,
                "left": left,
                "ends": _tuple([{"node": _node(name), "fell": fell} for name, fell in ends]),
            }
            for key, (state, space, left, ends) in zip(names.sessions, sessions, strict=True)
        },
        "standing": dict(zip(map(str, names.versions), standing, strict=True)),
    }


def _session(cache: SessionCache, key: SessionKey, now: int) -> tuple[str, int, int, Ends]:
    live = cache.sessions.live.get(key)
    if live is None:
        return "CLOSED" if cache.sessions.is_closed(key) else "UNSEEN", NO_SPACE, 0, ()
    left = 0 if live.expired or live.deadline is None else live.deadline - now
    space = live.version.version_id if live.version else 0
    ends = tuple((name_of(node), fell) for node, fell in live.frontiers[FULL].items())
    return "EXPIRED" if live.expired else "LIVE", space, left, ends


def _standing(cache: SessionCache, version: VersionKey) -> str:
    if cache.is_dead(version):
        return "DEAD"
    return "IDLE" if cache.is_idle(version) else "SERVING"


def _node(name: Name) -> Plain:
    return {"space": name[0], "text": _tuple(list(name[1]))}


def _tuple(items: Sequence[Plain]) -> dict[str, Plain]:
    return {str(place): item for place, item in enumerate(items, 1)}
