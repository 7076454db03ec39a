"""The radix tree: matching, inserting, splitting; and the ledger of what its values take.

Nothing here decides what is evicted, and nothing here knows sessions except that a split shares their coverage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import frozen

from lorafsm.kv.candidates import Candidates
from lorafsm.kv.coverage import Component
from lorafsm.kv.node import FULL, MAMBA, SWA, ChildKey, Node, Space, Tokens, path_up, shared_length

FAR = 1 << 62


@frozen
class Match:
    """The longest reusable prefix.  `device_length` of its tokens need no loading from the host."""

    length: int
    device_length: int
    node: Node
    device_node: Node


class Tree:
    """Nodes of all namespaces, and how many slots of each component and tier they take."""

    def __init__(
        self,
        components: Sequence[Component],
        candidates: Candidates,
        page: int,
        *,
        split_touches_suffix: bool,
        on_split: Callable[[Node, Node], None],
    ) -> None:
        self.components = components
        self.page = page
        self.candidates = candidates
        self.used = [0] * len(components)
        self.protected = [0] * len(components)  # the part of `used` that is locked
        self.host_used = [0] * len(components)
        self.doubled: dict[Node, None] = {}  # full KV on both tiers, oldest first
        self._split_touches_suffix = split_touches_suffix
        self._on_split = on_split
        self._clock = 0

    def aligned(self, tokens: Sequence[int]) -> Tokens:
        """The whole pages at the front."""
        return tuple(tokens[: len(tokens) // self.page * self.page])

    # What is where

    def put_device(self, node: Node, index: int) -> None:
        """The component's value now is on the device."""
        part, size = node.parts[index], self.components[index].size(node)
        assert not part.device
        part.device = True
        self.used[index] += size
        if part.lock:
            self.protected[index] += size
        if index == FULL:
            assert node.parent is not None
            node.parent.device_children += 1
            if part.host:
                self.doubled[node] = None
            self.candidates.review_full(node.parent)
            self.candidates.review_full(node)
        else:
            self.candidates.review_side(node, index)

    def drop_device(self, node: Node, index: int) -> None:
        """The component's value left the device."""
        part, size = node.parts[index], self.components[index].size(node)
        assert part.device
        assert not part.lock
        part.device = False
        self.used[index] -= size
        if index == FULL:
            assert node.parent is not None
            node.parent.device_children -= 1
            self.doubled.pop(node, None)
            self.candidates.review_full(node)
            self.candidates.review_full(node.parent)
        else:
            self.candidates.review_side(node, index)

    def put_host(self, node: Node, index: int) -> None:
        """The component's value now has a copy on the host."""
        part = node.parts[index]
        assert not part.host
        part.host = True
        self.host_used[index] += self.components[index].size(node)
        if index == FULL and part.device:
            self.doubled[node] = None
        self._review(node, index)

    def drop_host(self, node: Node, index: int) -> None:
        """The copy on the host is gone."""
        part = node.parts[index]
        assert part.host
        part.host = False
        self.host_used[index] -= self.components[index].size(node)
        if index == FULL:
            self.doubled.pop(node, None)
        self._review(node, index)

    def _review(self, node: Node, index: int) -> None:
        if index == FULL:
            self.candidates.review_full(node)
        else:
            self.candidates.review_side(node, index)

    def pin(self, node: Node, index: int, delta: int) -> None:
        """Lock or unlock one component's share of a node."""
        part = node.parts[index]
        before = part.lock
        part.lock += delta
        assert part.lock >= 0
        if bool(before) != bool(part.lock):
            if part.device:
                self.protected[index] += self.components[index].size(node) * (1 if part.lock else -1)
            self.candidates.review_full(node)
            if index != FULL:
                self.candidates.review_side(node, index)

    # Matching

    def match(self, space: Space, tokens: Tokens, *, host: bool) -> Match:
        """The longest prefix that every component lets a request resume from; its path becomes most recent.

        A node that the tokens leave in the middle is split there.
        """
        node, at = space.root, 0
        best, best_device = node, node
        runs = [FAR] * len(self.components)  # tokens of window KV without a gap, upward from here
        device_runs = runs[:]
        while at < len(tokens):
            child = node.children.get(self._first(tokens, at))
            if child is None or not (child.full.device or child.full.host):
                break
            length = self._shared(child.key, tokens, at)
            partial = length < len(child.key)
            node = self.split(child, length, touch=True) if partial else child
            at += length
            on_device = self._ends_here(node, device_runs, host=False)
            if on_device:
                best_device = node
            if self._ends_here(node, runs, host=True) if host else on_device:
                best = node
            if partial:
                break
        self._touch_match(best)
        return Match(best.end, best_device.end, best, best_device)

    def _ends_here(self, node: Node, runs: list[int], *, host: bool) -> bool:
        """Whether a match may end at the node, by every component."""
        good = True
        for component in self.components:
            part = node.parts[component.index]
            present = part.device or (host and part.host)
            if component.kind == SWA:
                runs[component.index] = runs[component.index] + len(node.key) if present else 0
                good &= runs[component.index] >= component.window
            else:
                good &= present
        return good

    def _touch_match(self, best: Node) -> None:
        path = list(path_up(best))
        stamp = self._tick(len(path))  # newer than all others; of the path, the deepest is the newest
        for node in path:
            part = node.full
            part.stamp = stamp
            stamp -= 1
            if part.entry is not None or part.host_entry is not None:
                self.candidates.rekey(FULL, node, part)
        self._touch_sides(best)

    def _touch_sides(self, node: Node) -> None:
        """Window KV is used as far as the window reaches, a state only where the request resumes or ends."""
        for component in self.components[1:]:
            stamp = self._tick(1)
            reach = component.path(node) if component.kind == SWA else iter((node,))
            for here in reach:
                part = here.parts[component.index]
                if here.parent is not None and (part.device or part.host):
                    part.stamp = stamp
                    self.candidates.rekey(component.index, here, part)

    def _tick(self, count: int) -> int:
        self._clock += count
        return self._clock

    def _first(self, tokens: Tokens, at: int) -> ChildKey:
        return tokens[at] if self.page == 1 else tokens[at : at + self.page]

    def _shared(self, key: Tokens, tokens: Tokens, at: int) -> int:
        return shared_length(key, tokens, at) // self.page * self.page

    # Changing the tree

    def insert(self, space: Space, tokens: Tokens, *, priority: int, window_from: int, state: bool) -> tuple[Node, int]:
        """Store a request's KV; the node at its end, and how many leading tokens were there already.

        From `window_from` on the request also holds window KV; with `state`, a state at its end.
        """
        node, at, present = space.root, 0, 0
        while at < len(tokens):
            child = node.children.get(self._first(tokens, at))
            if child is None:
                break
            length = self._shared(child.key, tokens, at)
            if length < len(child.key):
                child = self.split(child, length, touch=self._split_touches_suffix)
            child.full.stamp = self._tick(1)
            child.hits += 1
            child.priority = max(child.priority, priority)
            if child.full.device:
                present += length
                if child.full.entry is not None:
                    self.candidates.rekey(FULL, child, child.full)
            else:
                self.put_device(child, FULL)  # from the request's fresh KV
            node = self._put_window(child, window_from)
            at += length
        if at < len(tokens):
            node = self._put_window(self._add_leaf(node, tokens[at:], space, priority), window_from)
        if node.parent is not None:
            for component in self.components:
                if component.kind == MAMBA and state and not node.parts[component.index].device:
                    self.put_device(node, component.index)
            self._touch_sides(node)
        return node, present

    def _add_leaf(self, parent: Node, key: Tokens, space: Space, priority: int) -> Node:
        leaf = Node(key, parent, space, len(self.components), self._tick(1))
        leaf.full.stamp = self._tick(1)
        leaf.hits = 1
        leaf.priority = priority
        parent.children[self._first(key, 0)] = leaf
        self.put_device(leaf, FULL)
        return leaf

    def _put_window(self, node: Node, window_from: int) -> Node:
        """Give the node the request's window KV, from position `window_from` on."""
        for component in self.components:
            if component.kind != SWA or node.parts[component.index].device or window_from >= node.end:
                continue
            if window_from > node.start:
                self.split(node, window_from - node.start, touch=True)
            node.parts[component.index].stamp = self._tick(1)
            self.put_device(node, component.index)
        return node

    def split(self, node: Node, length: int, *, touch: bool) -> Node:
        """Cut the first `length` tokens off into a new parent, which is returned; `node` keeps its end.

        Values, locks, refs and stamps are shared as they were: a split is no access. With `touch` both
        halves count as accessed after all, as SGLang 0.5.23 has it (so victims can be compared with it).
        """
        parent = node.parent
        assert parent is not None
        upper = Node(node.key[:length], parent, node.space, len(self.components), node.created)
        upper.hits, upper.priority = node.hits, node.priority
        parent.children[self._first(node.key, 0)] = upper
        node.key = node.key[length:]
        node.parent = upper
        upper.children[self._first(node.key, 0)] = node
        upper.device_children = 1 if node.full.device else 0
        for component in self.components:
            if component.kind == MAMBA:
                continue
            old, new = node.parts[component.index], upper.parts[component.index]
            new.device, new.host, new.lock, new.stamp = old.device, old.host, old.lock, old.stamp
        if node in self.doubled:
            self.doubled[upper] = None
        self._on_split(upper, node)
        if touch and self._split_touches_suffix:
            upper.full.stamp = self._tick(1)
            node.full.stamp = self._tick(1)
        self.candidates.review(upper)
        self.candidates.review(node)
        return upper

    def unlink(self, node: Node) -> None:
        """Take a childless node without values out of the tree."""
        parent = node.parent
        assert parent is not None
        assert not node.children
        del parent.children[self._first(node.key, 0)]
        node.parent = None
        self.candidates.review_full(parent)
