"""Freeing slots: what goes with what, what is demoted to the host, what is deleted.

The victim is always the first of a ranking (`order`). Inside the tree a component takes along what ranks below it
(full > window > state): a path without window KV makes its states useless. At a leaf all rank the same. One guard:
a trigger without refs never takes along a component of the same or a higher rank that has refs.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from attrs import frozen

from lorafsm.identity import VersionKey
from lorafsm.kv.candidates import Candidates
from lorafsm.kv.coverage import Component
from lorafsm.kv.node import FULL, Node, subtree
from lorafsm.kv.order import Class, class_of
from lorafsm.kv.tree import Tree


class HostWrite(StrEnum):
    """When full KV is copied to the host."""

    THROUGH = "write_through"  # at the insert that makes its hits reach the threshold
    BACK = "write_back"  # when it is evicted from the device


@frozen(kw_only=True)
class HostTier:
    """The second tier.  Capacities in slots of each component, in the order of the cache's components."""

    capacities: tuple[int, ...]
    write: HostWrite = HostWrite.THROUGH
    threshold: int = 1  # hits before a write-through


@frozen
class Victim:
    """A node that lost a value: the span of tokens, and what it was worth."""

    version: VersionKey | None
    start: int
    end: int
    rank: Class
    refs: int
    component: str
    last: int  # its last token


@frozen
class Evicted:
    """Slots of the asked component that were freed, and the victims in their order."""

    freed: int
    victims: tuple[Victim, ...]


class Eviction:
    """Takes values away.  `on_delete` is told of a node just before it leaves the tree."""

    def __init__(
        self, tree: Tree, candidates: Candidates, host: HostTier | None, on_delete: Callable[[Node], None]
    ) -> None:
        self._tree = tree
        self._components = tree.components
        self._candidates = candidates
        self._host = host
        self._on_delete = on_delete
        self._victims: list[Victim] = []

    def evict(self, index: int, slots: int) -> Evicted:
        """Free at least so many device slots of one component, or all that no lock holds."""
        used = self._tree.used
        before = used[index]
        ranking = self._candidates.device[index]
        self._victims = []
        while before - used[index] < slots:
            node = ranking.first()
            if node is None:
                break
            self._note(node, index)
            if index == FULL or (node.is_device_leaf() and self._may_take_leaf(node, index)):
                self._take_leaf(node)
            else:
                self._take_along(node, index, host=False)
        return Evicted(before - used[index], tuple(self._victims))

    def evict_host(self, index: int, slots: int) -> Evicted:
        """The same on the host.  Under write-back, copies of what is on the device too go first."""
        used = self._tree.host_used
        before = used[index]
        self._victims = []
        if index == FULL and self._host is not None and self._host.write is HostWrite.BACK:
            while before - used[index] < slots and self._tree.doubled:
                self._tree.drop_host(next(iter(self._tree.doubled)), FULL)
        ranking = self._candidates.host[index]
        while before - used[index] < slots:
            node = ranking.first()
            if node is None:
                break
            self._note(node, index)
            if index == FULL or (node.is_host_leaf() and self._may_take_leaf(node, index)):
                self.delete(node)
            else:
                self._take_along(node, index, host=True)
        return Evicted(before - used[index], tuple(self._victims))

    def _note(self, node: Node, index: int) -> None:
        part = node.parts[index]
        self._victims.append(
            Victim(
                node.space.version,
                node.start,
                node.end,
                class_of(node, part),
                part.active or part.expired,
                self._components[index].name,
                node.key[-1],
            )
        )

    def _may_take_leaf(self, node: Node, index: int) -> bool:
        """Whether the whole leaf may go with this component (`_can_evict_leaf_atomically` of the original)."""
        return not any(self._outranks(node, index, other) for other in self._components)

    def _outranks(self, node: Node, trigger: int, other: Component) -> bool:
        """Whether the guard keeps `other` from going with the trigger: equal or higher rank, and refs or a lock."""
        if other.priority < self._components[trigger].priority or other.index == trigger:
            return False
        part = node.parts[other.index]
        return bool(part.lock) or (_refs(node, other.index) > 0 and _refs(node, trigger) == 0)

    def _take_along(self, node: Node, index: int, *, host: bool) -> None:
        """The component's value goes, and those below it in rank; at a leaf, where it may not go whole, the rest."""
        whole = node.is_host_leaf() if host else node.is_device_leaf()
        for component in reversed(self._components):
            part = node.parts[component.index]
            if not (part.host if host else part.device) or component.index == FULL:
                continue
            goes = component.index == index or component.priority < self._components[index].priority
            if not goes and whole:
                goes = not self._outranks(node, index, component)
            if not goes or (part.lock and component.index != index):
                continue
            if host:
                self._tree.drop_host(node, component.index)
            else:
                self._tree.drop_device(node, component.index)

    def _take_leaf(self, node: Node) -> None:
        """A leaf of the device goes: demoted if the host has it, or takes it; else deleted."""
        if not node.full.host and self._host is not None and self._host.write is HostWrite.BACK:
            self.back_up(node)
        if node.full.host:
            for component in self._components:
                if node.parts[component.index].device:
                    self._tree.drop_device(node, component.index)
            return
        for below in reversed(subtree(node)):  # what is under it is on the host only
            if below.parent is not None:
                self.delete(below)

    def back_up(self, node: Node) -> bool:
        """Copy the node's full KV to the host, and what else of it finds room there; whether full KV did."""
        assert self._host is not None
        victims = self._victims
        try:
            for component in self._components:
                part = node.parts[component.index]
                if not part.device or part.host:
                    continue
                if self._make_host_room(component, node):
                    self._tree.put_host(node, component.index)
                elif component.index == FULL:
                    return False
        finally:
            self._victims = victims
        return True

    def _make_host_room(self, component: Component, node: Node) -> bool:
        assert self._host is not None
        size = component.size(node)
        capacity = self._host.capacities[component.index]
        if size > capacity:
            return False
        lacking = size - (capacity - self._tree.host_used[component.index])
        return lacking <= 0 or self.evict_host(component.index, lacking).freed >= lacking

    def delete(self, node: Node) -> None:
        """Every value of a childless, unlocked node goes, and the node.

        No ancestor is left as a tombstone: a device leaf's ancestors have their full KV on the device, a host leaf's
        on one of the tiers, since a value only ever leaves the last tier together with its node.
        """
        self._on_delete(node)
        for component in reversed(self._components):
            part = node.parts[component.index]
            if part.device:
                self._tree.drop_device(node, component.index)
            if part.host:
                self._tree.drop_host(node, component.index)
        self._tree.unlink(node)


def _refs(node: Node, index: int) -> int:
    part = node.parts[index]
    return part.active + part.expired
