"""The radix tree's nodes and what each component keeps on them.

A node stands for a run of tokens (or blocks) that follows its parent's. `end` is the number of tokens from the root
to its end: ends never change, since a split keeps the lower half's identity and only a leaf is ever deleted. All
spans (locks, windows of refs) are therefore kept as positions, and survive splits by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from lorafsm.identity import VersionKey
    from lorafsm.kv.ranking import Entry
    from lorafsm.kv.sessions import Live

Tokens: TypeAlias = tuple[int, ...]
ChildKey: TypeAlias = int | Tokens

FULL, SWA, MAMBA = 0, 1, 2
"""Kinds of components: the KV of full attention, of a sliding window, and a recurrent state."""


class Part:
    """One component's share of a node.  Values are only counted: whether a copy exists, on the device or the host."""

    __slots__ = (
        "active",
        "device",
        "entry",
        "expired",
        "host",
        "host_entry",
        "lock",
        "marks",
        "stamp",
        "tops",
    )

    def __init__(self) -> None:
        self.device = False
        self.host = False
        self.lock = 0  # hard pins: a locked part is no candidate for eviction
        self.active = 0  # distinct live sessions that cover this node here
        self.expired = 0  # the same for sessions whose TTL ran out
        self.stamp = 0  # logical time of the last access
        self.marks: set[Live] | None = None  # sessions that have a frontier here
        self.tops: set[tuple[Live, Node]] | None = None  # window refs (session, frontier) that end here, upward
        self.entry: Entry[Node] | None = None  # where it stands among the candidates for eviction from the device
        self.host_entry: Entry[Node] | None = None


class Space:
    """One namespace: the base model, or one immutable LoRA version.  Spaces never share a node."""

    __slots__ = ("dead", "idle", "root", "version")

    def __init__(self, version: VersionKey | None, parts: int) -> None:
        self.version = version
        self.dead = False  # RECLAIMED or later: unlocked nodes are gone, locked ones go with their lock
        self.idle = False  # RETIRED, and no session holds a ref on the version
        self.root = Node((), None, self, parts, 0)


class Node:
    """A run of tokens in one namespace."""

    __slots__ = (
        "children",
        "created",
        "device_children",
        "end",
        "full",
        "hits",
        "key",
        "parent",
        "parts",
        "priority",
        "space",
    )

    def __init__(self, key: Tokens, parent: Node | None, space: Space, parts: int, created: int) -> None:
        self.key = key
        self.parent = parent  # None: the root, or a node that was deleted
        self.end: int = len(key) + (parent.end if parent is not None else 0)
        self.space = space
        self.children: dict[ChildKey, Node] = {}
        self.device_children = 0  # children whose full KV is on the device
        self.parts = [Part() for _ in range(parts)]
        self.full = self.parts[FULL]
        self.created = created
        self.hits = 0
        self.priority = 0

    @property
    def start(self) -> int:
        """Tokens before this node's first."""
        return self.end - len(self.key)

    @property
    def locked(self) -> bool:
        """Whether any component pins it."""
        return any(part.lock for part in self.parts)

    def is_device_leaf(self) -> bool:
        """Full KV on the device, no child with it, no lock: what eviction from the device may take."""
        return self.full.device and not self.device_children and self.parent is not None and not self.locked

    def is_host_leaf(self) -> bool:
        """Full KV on the host only, no child, no lock: what eviction from the host may take."""
        return (
            self.full.host
            and not self.full.device
            and not self.children
            and self.parent is not None
            and not self.locked
        )


def path_up(node: Node) -> Iterator[Node]:
    """The node and its ancestors, without the root."""
    here: Node | None = node
    while here is not None and here.parent is not None:
        yield here
        here = here.parent


def subtree(node: Node) -> list[Node]:
    """The node and everything below it, parents before children."""
    found = [node]
    for here in found:
        found += here.children.values()
    return found


def is_at_or_below(node: Node, ancestor: Node) -> bool:
    """Whether `ancestor` is the node itself or on its way to the root."""
    here: Node | None = node
    while here is not None and here.end > ancestor.end:
        here = here.parent
    return here is ancestor


def shared_length(key: Tokens, tokens: Tokens, at: int) -> int:
    """How many leading tokens of `key` stand in `tokens` from position `at` on."""
    length = min(len(key), len(tokens) - at)
    if key[:length] == tokens[at : at + length]:
        return length
    low, high = 0, length  # key[:low] is shared, key[:high] is not
    while high - low > 1:
        middle = (low + high) // 2
        if key[low:middle] == tokens[at + low : at + middle]:
            low = middle
        else:
            high = middle
    return low
