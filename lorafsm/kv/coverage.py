"""Which nodes a session covers, per component, and the refs that follow from it (seed 004).

A session has frontiers: the nodes at which its requests ended. What a frontier covers is a matter of positions:

    full KV         every node up to the root
    window KV       node x if frontier.end - x.end < window + page: whole nodes upward, and no more of them
    recurrent state the frontier alone

A node's `active` (or `expired`) is the number of distinct sessions that cover it, however many branches each has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from attrs import frozen

from lorafsm.kv.node import FULL, MAMBA, SWA, Node, Part, is_at_or_below, path_up
from lorafsm.kv.ranking import Key, Ranking
from lorafsm.kv.sessions import Live

NAMES = ("full", "swa", "mamba")


@frozen
class Component:
    """One kind of KV: its place in a node's parts, its rank in the tree, and for SWA its window in tokens."""

    index: int
    kind: int
    window: int = 0
    page: int = 1

    @property
    def name(self) -> str:
        """full, swa or mamba."""
        return NAMES[self.kind]

    @property
    def priority(self) -> int:
        """Inside the tree: what goes takes along what ranks below it.  At a leaf all rank the same."""
        return 2 - self.kind

    @property
    def span(self) -> int:
        """Tokens that a window ref covers at least."""
        return self.window + self.page

    def size(self, node: Node) -> int:
        """Slots that a value at this node takes: tokens, or one state."""
        return 1 if self.kind == MAMBA else len(node.key)

    def path(self, frontier: Node) -> Iterator[Node]:
        """The nodes that a frontier covers, upward."""
        if self.kind == FULL:
            yield from path_up(frontier)
        elif self.kind == MAMBA:
            yield frontier
        else:
            lowest = frontier.end - self.span
            for node in path_up(frontier):
                if node.end <= lowest:
                    return
                yield node

    def reusable(self, node: Node | None) -> Node | None:
        """The nearest node, upward, at which this component lets a later match end."""
        while node is not None and node.parent is not None:
            if self.kind != SWA:
                part = node.parts[self.index]
                if part.device or part.host:
                    return node
                node = node.parent
                continue
            gap = self._window_gap(node)
            if gap is None:
                return node
            node = gap.parent
        return None

    def _window_gap(self, node: Node) -> Node | None:
        """The node above (or at) this one whose missing window KV keeps a match from ending here."""
        for here in path_up(node):
            part = here.parts[self.index]
            if not (part.device or part.host):
                return here
            if node.end - here.start >= self.window:
                return None
        return None


class Coverage:
    """The refs of one component.  They are part of the keys in its rankings, which are kept in order."""

    def __init__(
        self, component: Component, key: Callable[[Node, Part], Key], device: Ranking[Node], host: Ranking[Node]
    ) -> None:
        self.component = component
        self._key = key
        self._device, self._host = device, host
        self._index = component.index
        self._is_full = component.kind == FULL

    def register(self, live: Live, node: Node) -> None:
        """A request of the session ended at `node`: its frontier advances there."""
        leaf = node if self._is_full and node.full.device else self.component.reusable(node)
        if leaf is None:
            return
        frontiers = live.frontiers[self._index]
        if self._is_full and not frontiers:
            self._count_up(leaf, None, 1, expired=live.expired)
            frontiers[leaf] = False
            part = leaf.full  # `_mark`, without a call: the hot path
            if part.marks is None:
                part.marks = {live}
            else:
                part.marks.add(live)
            return
        old = next((here for here in path_up(node) if here in frontiers), None)
        if leaf in frontiers:  # nothing new; but this branch is now the youngest
            del frontiers[leaf]
            frontiers[leaf] = False
        elif self._is_full and old is not None and len(frontiers) == 1:
            self._count_up(leaf, old, 1, expired=live.expired)  # by the difference alone
            self._unmark(live, old)
            self._mark(live, leaf)
        else:
            self._change(live, add=leaf, remove=old)

    def release(self, live: Live) -> int:
        """Drop every ref of the session; the number of frontiers it had.  No value, lock or stamp changes."""
        frontiers = live.frontiers[self._index]
        released = len(frontiers)
        if released == 1 and self._is_full:
            frontier, _ = frontiers.popitem()
            self._count_up(frontier, None, -1, expired=live.expired)
            marks = frontier.full.marks
            assert marks is not None
            if len(marks) == 1:
                frontier.full.marks = None
            else:
                marks.remove(live)
            return 1
        if released:
            for here in self._covered(frontiers):
                self._count(here, -1, expired=live.expired)
        for frontier in tuple(frontiers):
            self._unmark(live, frontier)
        return released

    def drop(self, live: Live, frontier: Node) -> None:
        """Give one branch up."""
        self._change(live, add=None, remove=frontier)

    def fall(self, live: Live, node: Node, fallback: Node | None) -> None:
        """The node is about to be deleted: the ref that hangs from it moves to the fallback, or is released."""
        if node in live.frontiers[self._index]:
            self._change(live, add=fallback, remove=node, fell=True)

    def expire(self, live: Live) -> None:
        """The session's TTL ran out: its refs change their class; those that had fallen back are released."""
        for frontier in [frontier for frontier, fell in live.frontiers[self._index].items() if fell]:
            self.drop(live, frontier)
        self._turn(live, -1)

    def revive(self, live: Live) -> None:
        """An expired session came back."""
        self._turn(live, 1)

    def _turn(self, live: Live, delta: int) -> None:
        for here in self._covered(live.frontiers[self._index]):
            self._count(here, delta, expired=False)
            self._count(here, -delta, expired=True)

    def split(self, upper: Node, lower: Node) -> None:
        """`upper` is new, between `lower` and its old parent: who covers it?  No coverage grows by a split."""
        old, new = lower.parts[self._index], upper.parts[self._index]
        if self.component.kind == MAMBA:
            return
        new.active, new.expired = old.active, old.expired
        if not old.tops:
            return
        span = self.component.span
        moving = {top for top in old.tops if top[1].end - upper.end < span}
        staying = old.tops - moving
        new.tops, old.tops = moving or None, staying or None
        for live in {live for live, _ in staying}:
            if not any(f.end - upper.end < span and is_at_or_below(f, lower) for f in live.frontiers[self._index]):
                if live.expired:
                    new.expired -= 1
                else:
                    new.active -= 1

    def _covered(self, frontiers: Iterable[Node]) -> dict[Node, None]:
        """The union of what these frontiers cover."""
        return {here: None for frontier in frontiers for here in self.component.path(frontier)}

    def _change(self, live: Live, add: Node | None, remove: Node | None, *, fell: bool = False) -> None:
        frontiers = live.frontiers[self._index]
        before = self._covered(frontiers)
        if remove is not None:
            self._unmark(live, remove)
        if add is not None and add not in frontiers:
            self._mark(live, add, fell=fell)
        after = self._covered(frontiers)
        for here in before:
            if here not in after:
                self._count(here, -1, expired=live.expired)
        for here in after:
            if here not in before:
                self._count(here, 1, expired=live.expired)

    def _count(self, node: Node, delta: int, *, expired: bool) -> None:
        part = node.parts[self._index]
        if expired:
            part.expired += delta
        else:
            part.active += delta
        if part.entry is not None:
            self._device.move(part.entry, self._key(node, part))
        if part.host_entry is not None:
            self._host.move(part.host_entry, self._key(node, part))

    def _count_up(self, frontier: Node, stop: Node | None, delta: int, *, expired: bool) -> None:
        """Count from a frontier upward, `stop` excluded.  The hot loop of full refs."""
        node, above = frontier, frontier.parent
        # What is above a node with device KV is a leaf of neither tier: it is ranked nowhere.
        while above is not None and node is not stop:
            part = node.full
            if expired:
                part.expired += delta
            else:
                part.active += delta
            if part.entry is not None:
                self._device.move(part.entry, self._key(node, part))
            if part.host_entry is not None:
                self._host.move(part.host_entry, self._key(node, part))
            node, above = above, above.parent
            if part.device:
                break
        if expired:
            while above is not None and node is not stop:
                node.full.expired += delta
                node, above = above, above.parent
        else:
            while above is not None and node is not stop:
                node.full.active += delta
                node, above = above, above.parent

    def _mark(self, live: Live, leaf: Node, *, fell: bool = False) -> None:
        live.frontiers[self._index][leaf] = fell
        part = leaf.parts[self._index]
        if part.marks is None:
            part.marks = set()
        part.marks.add(live)
        if self.component.kind == SWA:
            top = self._top(leaf)
            if top.tops is None:
                top.tops = set()
            top.tops.add((live, leaf))

    def _unmark(self, live: Live, leaf: Node) -> None:
        del live.frontiers[self._index][leaf]
        part = leaf.parts[self._index]
        assert part.marks is not None
        part.marks.discard(live)
        if not part.marks:
            part.marks = None
        if self.component.kind == SWA:
            top = self._top(leaf)
            assert top.tops is not None
            top.tops.discard((live, leaf))
            if not top.tops:
                top.tops = None

    def _top(self, leaf: Node) -> Part:
        top = leaf
        for here in self.component.path(leaf):
            top = here
        return top.parts[self._index]
