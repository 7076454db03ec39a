"""The session-aware, version-aware cache policy: which KV a prefix cache keeps, and in what order it lets it go.

All mutation of the cache goes through `SessionCache`; the classes behind it are parts, composed, each with one
concern: `tree` (matching, splitting, the ledger), `coverage` (who refers to what), `candidates` and `order` (who goes
next), `eviction` (what goes with it), `sessions` (who is live). Nothing here owns memory: slots are counted, `now` is
an argument, and a refusal is a value.
"""

from __future__ import annotations

from collections.abc import Sequence

from lorafsm.errors import InvalidField
from lorafsm.identity import SessionKey, VersionKey, fault_in_count, fault_in_version_key
from lorafsm.kv.candidates import Candidates
from lorafsm.kv.coverage import Coverage
from lorafsm.kv.eviction import Evicted, Eviction, HostWrite
from lorafsm.kv.node import FULL, MAMBA, Node, Space, is_at_or_below, path_up, subtree
from lorafsm.kv.ranges import Ranges
from lorafsm.kv.records import CacheConfig, Held, Inserted, Lock, Released
from lorafsm.kv.sessions import Live, Sessions
from lorafsm.kv.tree import Match, Tree
from lorafsm.lifecycle import VersionState
from lorafsm.outcomes import Code, Refusal

_OK = Code.OK  # looking a member up in its enum costs as much as a loop
DROPPED = frozenset({VersionState.RECLAIMED, VersionState.ABORTED, VersionState.FAILED_CLEAN})


class SessionCache:
    """The cache.  See the module's docstring; `lorafsm.kv.invariants.check` says what always holds."""

    def __init__(self, config: CacheConfig | None = None) -> None:
        self.config = config or CacheConfig()
        self.components = self.config.components()
        self.candidates = Candidates(self.components, self.config.policy)
        self.coverages = [
            Coverage(c, self.candidates.keys[c.index], self.candidates.device[c.index], self.candidates.host[c.index])
            for c in self.components
        ]
        self.tree = Tree(
            self.components,
            self.candidates,
            self.config.page,
            split_touches_suffix=self.config.split_touches_suffix,
            on_split=self._share_coverage,
        )
        self._full, self._sides = self.coverages[FULL], self.coverages[FULL + 1 :]
        self._refers, self._ttl = self.config.sessions, self.config.ttl
        self.eviction = Eviction(self.tree, self.candidates, self.config.host, self._let_refs_fall)
        self.sessions = Sessions(len(self.components), self.config.ttl)
        self.spaces: dict[VersionKey | None, Space] = {}
        self._dead: dict[str, Ranges] = {}  # version ids of each epoch that are RECLAIMED
        self._idle: set[VersionKey] = set()

    # Sessions

    def open(self, session: SessionKey, version: VersionKey | None = None, now: int = 0) -> Held | Refusal:
        """Open, or use, a session (RFC 4.1).  A closed one is refused for ever (rule 8); so is another version."""
        if version is not None and self.is_dead(version):
            return Refusal(Code.VERSION_GONE, f"version {version} is RECLAIMED; open a session on the default")
        live = self.sessions.open(session, version, now)
        if isinstance(live, Refusal):
            return live
        if live.expired:
            self._revive(live)
        return self._held(live)

    ensure = open
    """What a request does that comes without an open: it opens an unseen session, never a closed one."""

    def register(
        self, session: SessionKey, node: Node, now: int = 0, *, aborted: bool = False, streaming: bool = False
    ) -> Held | Refusal:
        """A request of the session finished and its insert ended at `node`: the session refers to that path.

        Not for aborted requests, nor for streaming sessions, whose KV is kept elsewhere: they only renew the TTL.
        """
        live, space = self.sessions.live.get(session), node.space
        if (
            live is None
            or node.parent is None
            or space.dead
            or (space.version is not live.version and space.version != live.version)
        ):
            return self._unfit(session, live, node)
        if self._ttl and (live.slot is None or live.deadline is None or now + self._ttl > live.deadline):
            self.sessions.renew(live, now)
        if live.expired:
            self._revive(live)
        if self._refers and not aborted and not streaming:
            self._full.register(live, node)
            if self._sides:
                for coverage in self._sides:
                    coverage.register(live, node)
                self._give_way(live)
                self._trim(live)
            elif len(live.frontiers[FULL]) > 1:
                self._give_way(live)
            else:
                return Held(session, node.end)
        return self._held(live)

    def _give_way(self, live: Live) -> None:
        """The oldest branch, where there is one too many."""
        frontiers = live.frontiers[FULL]
        if len(frontiers) > self.config.branches:
            self._full.drop(live, next(iter(frontiers)))

    def _unfit(self, session: SessionKey, live: Live | None, node: Node) -> Refusal:
        if live is None:
            if self.sessions.is_closed(session):
                return Refusal(Code.SESSION_CLOSED, f"session {session} is CLOSED; its late request leaves no ref")
            return Refusal(Code.NO_BINDING, f"session {session} is not open; open it first")
        if node.parent is None:
            return Refusal(Code.NOT_RESIDENT, "this node is not in the cache any more; insert again", field="node")
        if node.space.dead:
            return Refusal(Code.VERSION_GONE, f"version {node.space.version} is RECLAIMED; its KV goes", field="node")
        return Refusal(
            Code.OPERATION_CONFLICT,
            f"session {session} is bound to {live.version or 'the base model'}; its KV is not there",
            field="node",
        )

    def close(self, session: SessionKey) -> Released:
        """Close for ever (RFC 4.3).  Refs go; KV, locks, recency and the tree's shape stay as they are."""
        live = self.sessions.close(session)
        if live is True or live is False:  # none was live
            return Released(session, Code.ALREADY_CLOSED if live else Code.OK)
        return Released(session, _OK, self._release(live) if self._sides else self._full.release(live))

    def end_owner(self, epoch: str, owner: str) -> int:
        """The process that held these sessions is gone (rule 9); how many sessions ended."""
        ended = self.sessions.end_owner(epoch, owner)
        for live in ended:
            self._release(live)
        return len(ended)

    def tick(self, now: int) -> tuple[SessionKey, ...]:
        """Time has come to `now` (ms): sessions whose TTL ran out.  Their KV is next after what nobody refers to."""
        due = self.sessions.due(now)
        for live in due:
            for coverage in self.coverages:
                coverage.expire(live)
            live.expired = True
            self._trim(live)
            self._forget_if_spent(live)
        return tuple(live.key for live in due)

    # Requests

    def match(self, tokens: Sequence[int], version: VersionKey | None = None) -> Match:
        """The longest reusable prefix in this version's namespace.  It becomes the most recent."""
        space = self.spaces.get(version)
        if space is None or space.dead:
            space = Space(version, len(self.components))
        return self.tree.match(space, self.tree.aligned(tokens), host=self.config.host is not None)

    def insert(
        self,
        tokens: Sequence[int],
        version: VersionKey | None = None,
        *,
        priority: int = 0,
        window_from: int = 0,
        state: bool = True,
    ) -> Inserted | Refusal:
        """Store what a request computed.  Room is the caller's affair: see `evict`.

        From position `window_from` on the request has window KV; with `state`, it has a recurrent state at its end.
        """
        if version is not None and (fault := fault_in_version_key(version)):
            return Refusal(Code.BAD_INPUT, f"version {fault}", field="version")
        if version is not None and self.is_dead(version):
            return Refusal(Code.VERSION_GONE, f"version {version} is RECLAIMED; its KV is not stored")
        space = self.spaces.get(version)
        if space is None:
            space = self.spaces[version] = Space(version, len(self.components))
            space.idle = version in self._idle
        node, present = self.tree.insert(
            space,
            self.tree.aligned(tokens),
            priority=priority,
            window_from=-(-window_from // self.config.page) * self.config.page,
            state=state,
        )
        host = self.config.host
        if host is not None and host.write is HostWrite.THROUGH:
            self._write_through(node, host.threshold)
        return Inserted(node, present)

    def load(self, match: Match) -> int:
        """Bring a match's host part back to the device; tokens loaded.  Room is the caller's affair."""
        loaded = 0
        for node in reversed(list(path_up(match.node))):
            for component in self.components:
                part = node.parts[component.index]
                if part.host and not part.device:
                    self.tree.put_device(node, component.index)
                    loaded += len(node.key) if component.kind == FULL else 0
        return loaded

    def lock(self, node: Node) -> Lock:
        """Pin a match: full KV up to the root, one window, the one state (seed 004)."""
        window_start = node.end
        for component in self.components:
            if component.kind == FULL:
                for here in path_up(node):
                    self.tree.pin(here, FULL, 1)
            elif component.kind == MAMBA:
                if node.parent is not None:
                    self.tree.pin(node, component.index, 1)
            else:
                for here in path_up(node):
                    if node.end - here.end >= component.window:
                        break
                    self.tree.pin(here, component.index, 1)
                    window_start = here.start
        return Lock(node, window_start)

    def unlock(self, lock: Lock) -> None:
        """Give a pin back.  What is left of a dead version goes at once."""
        for component in self.components:
            if component.kind == FULL:
                for here in path_up(lock.node):
                    self.tree.pin(here, FULL, -1)
            elif component.kind == MAMBA:
                if lock.node.parent is not None:
                    self.tree.pin(lock.node, component.index, -1)
            else:
                for here in path_up(lock.node):
                    if here.end <= lock.window_start:
                        break
                    self.tree.pin(here, component.index, -1)
        if lock.node.space.dead:
            self._drop(lock.node.space)

    # Memory

    def evict(self, slots: int, component: int = FULL) -> Evicted:
        """Free at least so many device slots of a component, or all that may go."""
        return self.eviction.evict(component, slots)

    def evict_host(self, slots: int, component: int = FULL) -> Evicted:
        """The same on the host."""
        return self.eviction.evict_host(component, slots)

    def flush(self) -> None:
        """Drop all KV that no lock holds, and all refs.  Sessions stay as they are: open ones open, closed closed."""
        for live in tuple(self.sessions.live.values()):
            self._release(live)
            self._forget_if_spent(live)
        for space in tuple(self.spaces.values()):
            self._drop(space)

    # Versions

    def is_dead(self, version: VersionKey) -> bool:
        """Whether the version is RECLAIMED: nothing can ask for it again."""
        return version.epoch in self._dead and version.version_id in self._dead[version.epoch]

    def is_idle(self, version: VersionKey) -> bool:
        """Whether no session can come back to the version's KV, but for a rollback."""
        return version in self._idle

    def set_version(self, version: VersionKey, state: VersionState, session_refs: int = 0) -> int:
        """What the registry says of a version; slots of full KV that were freed at once.

        RECLAIMED: dropped now and for ever; what a lock holds goes with the lock. ABORTED, FAILED_CLEAN: dropped now;
        the version may be reserved again. RECLAIMING, and RETIRED without session refs: next in order.
        """
        for name, fault in (
            ("version", fault_in_version_key(version)),
            ("session_refs", fault_in_count(session_refs)),
        ):
            if fault:
                raise InvalidField(name, fault)
        if self.is_dead(version):
            return 0
        idle = state is VersionState.RECLAIMING or (state is VersionState.RETIRED and not session_refs)
        space = self.spaces.get(version)
        if idle:
            self._idle.add(version)
        else:
            self._idle.discard(version)
        if state is VersionState.RECLAIMED:
            self._dead.setdefault(version.epoch, Ranges()).add(version.version_id)
        if space is None:
            return 0
        space.dead = state is VersionState.RECLAIMED
        if space.idle != idle or space.dead:
            space.idle = idle
            self.candidates.rekey_below(space.root)
        return self._drop(space) if state in DROPPED else 0

    # Inside

    def _drop(self, space: Space) -> int:
        before = self.tree.used[FULL]
        for node in reversed(subtree(space.root)):
            for coverage in self.coverages:
                for live in tuple(node.parts[coverage.component.index].marks or ()):
                    coverage.drop(live, node)
                    self._forget_if_spent(live)
        for node in reversed(subtree(space.root)):
            if node.parent is not None and not node.children and not node.locked:
                self.eviction.delete(node)
        if not space.root.children and self.spaces.get(space.version) is space:
            del self.spaces[space.version]
        return before - self.tree.used[FULL]

    def _write_through(self, node: Node, threshold: int) -> None:
        """Copy the path to the host, from the root down: a host copy's ancestors have host copies too."""
        for here in reversed(list(path_up(node))):
            if here.full.host or not here.full.device:
                continue
            if here.hits < threshold or not self.eviction.back_up(here):
                return

    def _share_coverage(self, upper: Node, lower: Node) -> None:
        for coverage in self.coverages:
            coverage.split(upper, lower)

    def _let_refs_fall(self, node: Node) -> None:
        """A node is about to be deleted: each ref that hangs from it falls back to the nearest reusable ancestor.

        There refs pile up on what many sessions share, and would stay for ever if a session is never closed. So a ref
        falls only while its session is within its TTL; an expired session's ref is released instead, and what had
        fallen is released as the session expires. What piles up is bounded by the sessions of one TTL.
        """
        fallen: dict[Live, None] = {}
        for part in node.parts:
            fallen |= dict.fromkeys(sorted(part.marks or (), key=lambda live: live.key))
        for live in fallen:
            for coverage in self.coverages:
                coverage.fall(live, node, None if live.expired else coverage.component.reusable(node.parent))
            self._trim(live)
            self._forget_if_spent(live)

    def _trim(self, live: Live) -> None:
        """Window and state refs hang from nodes that the session's full refs cover, or not at all."""
        for coverage in self.coverages[1:]:
            for frontier in tuple(live.frontiers[coverage.component.index]):
                if not any(is_at_or_below(full, frontier) for full in live.frontiers[FULL]):
                    coverage.drop(live, frontier)

    def _revive(self, live: Live) -> None:
        for coverage in self.coverages:
            coverage.revive(live)
        live.expired = False

    def _forget_if_spent(self, live: Live) -> None:
        if live.expired and not live.holds_refs:
            self.sessions.forget(live)

    def _release(self, live: Live) -> int:
        released = self._full.release(live)
        for coverage in self._sides:
            released += coverage.release(live)
        return released

    def _held(self, live: Live) -> Held:
        tokens = 0
        for node in live.frontiers[FULL]:
            tokens = max(tokens, node.end)
        return Held(live.key, tokens)
