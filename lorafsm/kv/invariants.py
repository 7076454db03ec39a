"""What always holds of a cache, recomputed from nothing but the nodes' values and the sessions' frontiers.

Slow on purpose: tests call it after each step.
"""

from __future__ import annotations

from collections import Counter

from lorafsm.kv.cache import SessionCache
from lorafsm.kv.coverage import Component
from lorafsm.kv.node import FULL, MAMBA, SWA, Node, Part, path_up, subtree
from lorafsm.kv.ranking import Entry, Ranking
from lorafsm.kv.sessions import Live


def check(cache: SessionCache) -> list[str]:
    """Every violated invariant, in words; an empty list if there is none."""
    nodes = [n for space in cache.spaces.values() for n in subtree(space.root) if n.parent is not None]
    faults = _shape(cache, nodes) + _ledger(cache, nodes)
    for component in cache.components:
        faults += _refs(cache, component, nodes) + _rankings(cache, component, nodes)
    return faults + _sessions(cache, nodes)


def _shape(cache: SessionCache, nodes: list[Node]) -> list[str]:
    faults = []
    for version, space in cache.spaces.items():
        if version is not None and cache.is_dead(version) and any(not n.locked for n in subtree(space.root)[1:]):
            faults.append(f"{version} is RECLAIMED, but KV that no lock holds is still there")
    for node in nodes:
        assert node.parent is not None
        if node.end != node.parent.end + len(node.key) or not node.key or len(node.key) % cache.config.page:
            faults.append(f"{_name(node)}: key and end do not fit")
        if node.space is not node.parent.space:
            faults.append(f"{_name(node)}: shared by two versions")
        if node.device_children != sum(child.full.device for child in node.children.values()):
            faults.append(f"{_name(node)}: device_children is wrong")
        if node.full.device and node.parent.parent is not None and not node.parent.full.device:
            faults.append(f"{_name(node)}: on the device below a node that is not")
        if not (node.full.device or node.full.host):
            faults.append(f"{_name(node)}: a tombstone without full KV")
        if node.locked and not node.full.lock:
            faults.append(f"{_name(node)}: pinned by another component than full KV alone")
    return faults


def _ledger(cache: SessionCache, nodes: list[Node]) -> list[str]:
    faults = []
    for component in cache.components:
        i = component.index
        counted = {
            "used": sum(component.size(n) for n in nodes if n.parts[i].device),
            "protected": sum(component.size(n) for n in nodes if n.parts[i].device and n.parts[i].lock),
            "host_used": sum(component.size(n) for n in nodes if n.parts[i].host),
        }
        for name, value in counted.items():
            if getattr(cache.tree, name)[i] != value:
                faults.append(f"{component.name}: {name} is {getattr(cache.tree, name)[i]}, counted {value}")
        host = cache.config.host
        if host is not None and counted["host_used"] > host.capacities[i]:
            faults.append(f"{component.name}: more on the host than it holds")
    doubled = {n for n in nodes if n.full.device and n.full.host}
    if set(cache.tree.doubled) != doubled:
        faults.append("the list of what is on both tiers is wrong")
    return faults


def _refs(cache: SessionCache, component: Component, nodes: list[Node]) -> list[str]:
    """Refs are the recomputed coverage; full refs do not grow downward; the rest is covered by full refs."""
    faults = []
    coverers = sessions_by_node(cache, component)
    full = sessions_by_node(cache, cache.components[FULL])
    for node in nodes:
        part, who = node.parts[component.index], coverers.get(node, set())
        counted = (sum(not live.expired for live in who), sum(live.expired for live in who))
        if (part.active, part.expired) != counted:
            faults.append(f"{_name(node)} {component.name}: refs {part.active}, {part.expired}; recomputed {counted}")
        if component.kind == FULL and node.parent in coverers and not who <= coverers[node.parent]:
            faults.append(f"{_name(node)}: full refs grow downward")
        if not who <= full.get(node, set()):
            faults.append(f"{_name(node)} {component.name}: covered by a session whose full refs do not")
        marks = {live for live in cache.sessions.live.values() if node in live.frontiers[component.index]}
        if (part.marks or set()) != marks:
            faults.append(f"{_name(node)} {component.name}: markers and index disagree")
    return faults


def sessions_by_node(cache: SessionCache, component: Component) -> dict[Node, set[Live]]:
    """Who covers what, by walking up from every frontier and measuring."""
    found: dict[Node, set[Live]] = {}
    for live in cache.sessions.live.values():
        for frontier in live.frontiers[component.index]:
            tokens = 0
            for node in path_up(frontier):
                if (component.kind == SWA and tokens >= component.span) or (component.kind == MAMBA and tokens):
                    break
                found.setdefault(node, set()).add(live)
                tokens += len(node.key)
    return found


def _rankings(cache: SessionCache, component: Component, nodes: list[Node]) -> list[str]:
    faults = []
    i = component.index
    for tier, ranking in (("device", cache.candidates.device[i]), ("host", cache.candidates.host[i])):
        listed = {entry.item: entry for entry in ranking.entries()}
        wanted = {n for n in nodes if _is_candidate(n, component, tier)}
        if set(listed) != wanted:
            faults.append(f"{component.name} {tier}: the candidates are not those that may go")
        for node, entry in listed.items():
            if entry.key != cache.candidates.key(i, node) or entry is not _entry(node.parts[i], tier):
                faults.append(f"{_name(node)} {component.name} {tier}: ranked by an old key")
        faults += _unordered(ranking, f"{component.name} {tier}")
    return faults


def _is_candidate(node: Node, component: Component, tier: str) -> bool:
    part = node.parts[component.index]
    if component.kind == FULL:
        if any(p.lock for p in node.parts):
            return False
        if tier == "device":
            return part.device and not any(child.full.device for child in node.children.values())
        return part.host and not part.device and not node.children
    return not part.lock and (part.device if tier == "device" else part.host and not part.device)


def _entry(part: Part, tier: str) -> Entry[Node] | None:
    return part.entry if tier == "device" else part.host_entry


def _unordered(ranking: Ranking[Node], name: str) -> list[str]:
    keys = Counter(entry.key for entry in ranking.entries())
    faults = [] if ranking.is_ordered() else [f"{name}: the ranking is out of order"]
    return faults + [f"{name}: two candidates share the key {key}" for key, count in keys.items() if count > 1]


def _sessions(cache: SessionCache, nodes: list[Node]) -> list[str]:
    faults = []
    present = set(nodes)
    for key, live in cache.sessions.live.items():
        if cache.sessions.is_closed(key):
            faults.append(f"{key} is live and closed")
        if live.expired and not live.holds_refs:
            faults.append(f"{key} is expired, has no refs, and is still remembered")
        if len(live.frontiers[FULL]) > cache.config.branches:
            faults.append(f"{key} has more branches than it may")
        for frontiers in live.frontiers:
            if not present >= set(frontiers):
                faults.append(f"{key} refers to a node that is not there")
            if any(frontier.space.version != live.version for frontier in frontiers):
                faults.append(f"{key} refers to another version's KV")
    return faults


def _name(node: Node) -> str:
    return f"node {node.start}-{node.end} of {node.space.version or 'the base model'}"
