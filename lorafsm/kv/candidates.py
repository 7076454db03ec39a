"""Who may be evicted, per component and tier: rankings that follow every change of a node."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lorafsm.kv.coverage import Component
from lorafsm.kv.node import FULL, Node, Part, subtree
from lorafsm.kv.order import Class, Policy, full_key, side_key
from lorafsm.kv.ranking import Key, Ranking


class Candidates:
    """One ranking for each component and tier.

    Full KV: leaves of the tier. Window KV and states: every node with an unlocked value; on the host, those whose
    device value is gone.
    """

    def __init__(self, components: Sequence[Component], policy: Policy) -> None:
        self.device: list[Ranking[Node]] = [Ranking(len(Class)) for _ in components]
        self.host: list[Ranking[Node]] = [Ranking(len(Class)) for _ in components]
        self.keys: list[Callable[[Node, Part], Key]] = [
            full_key(policy) if component.kind == FULL else side_key for component in components
        ]
        self._sides = range(1, len(components))

    def review(self, node: Node) -> None:
        """List or delist the node everywhere, after any change of values, children or locks."""
        self.review_full(node)
        for index in self._sides:
            self.review_side(node, index)

    def review_full(self, node: Node) -> None:
        """The same for its full KV alone."""
        part = node.full
        self._list(self.device[FULL], FULL, node, part, node.is_device_leaf())
        if part.host or part.host_entry is not None:
            self._list_host(FULL, node, part, node.is_host_leaf())

    def review_side(self, node: Node, index: int) -> None:
        """The same for one other component."""
        part = node.parts[index]
        free = not part.lock and node.parent is not None
        self._list(self.device[index], index, node, part, free and part.device)
        self._list_host(index, node, part, free and part.host and not part.device)

    def rekey(self, index: int, node: Node, part: Part) -> None:
        """The part's place in the order changed: its stamp, refs, hits or priority."""
        if part.entry is not None:
            self.device[index].move(part.entry, self.keys[index](node, part))
        if part.host_entry is not None:
            self.host[index].move(part.host_entry, self.keys[index](node, part))

    def rekey_below(self, root: Node) -> None:
        """The class of a whole namespace changed."""
        for node in subtree(root):
            for index, part in enumerate(node.parts):
                self.rekey(index, node, part)

    def key(self, index: int, node: Node) -> Key:
        """What the node's key is now: for checks."""
        return self.keys[index](node, node.parts[index])

    def _list(self, ranking: Ranking[Node], index: int, node: Node, part: Part, listed: bool) -> None:
        if listed:
            key = self.keys[index](node, part)
            if part.entry is None:
                part.entry = ranking.add(key, node)
            else:
                ranking.move(part.entry, key)
        elif part.entry is not None:
            ranking.remove(part.entry)
            part.entry = None

    def _list_host(self, index: int, node: Node, part: Part, listed: bool) -> None:
        if listed:
            key = self.keys[index](node, part)
            if part.host_entry is None:
                part.host_entry = self.host[index].add(key, node)
            else:
                self.host[index].move(part.host_entry, key)
        elif part.host_entry is not None:
            self.host[index].remove(part.host_entry)
            part.host_entry = None
