"""What the processes of a deployment ask of a registry, and what must be true of its journal afterwards."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from lorafsm import events as ev
from lorafsm.identity import SessionKey, VersionKey
from lorafsm.invariants import check, check_change
from lorafsm.lifecycle import SessionState, VersionState
from lorafsm.outcomes import Binding, Closed, Code, Committed, Outcome, ReclaimOrdered
from lorafsm.records import Registry, new_registry
from lorafsm.registry import step
from lorafsm_asyncio.client import RegistryClient
from lorafsm_asyncio.questions import SessionStateOf
from lorafsm_journal import Journal, Malformed
from tests.adapters.journal_stories import ENGINES, EPOCH, publish

OLD, NEW = VersionKey(EPOCH, 1), VersionKey(EPOCH, 2)


async def publisher(client: RegistryClient) -> None:
    """Two engines join, two versions are published, and the first is reclaimed once its sessions have closed."""
    for engine in ENGINES:
        assert (await client.apply(ev.EngineJoin(engine=engine, incarnation=1, seq=1, base_fingerprint=""))).ok
    for version, revision in (1, 0), (2, 1):
        *steps, commit = publish(version, version, revision)
        for event in steps:
            assert (await client.apply(event)).ok, event
        assert isinstance(await client.apply(commit), Committed)
    seen = 0
    claim = ev.ClaimReclaim(key=OLD, reclaim_id="r1")
    while not isinstance(outcome := await client.apply(claim), ReclaimOrdered):
        assert outcome.code is Code.SESSION_REFS_HELD
        seen = await client.changed(seen, 5.0)
    for engine in ENGINES:
        gone = ev.ConfirmReclaim(reclaim_id="r1", engine=engine, incarnation=1, seq=99, observed_absent=True)
        assert (await client.apply(gone)).ok


async def shard(client: RegistryClient, owner: str, sessions: int) -> list[Binding]:
    """A process that opens sessions, binds each from two requests at once, and closes them."""
    assert (await client.apply(ev.OwnerUp(owner=owner))).ok
    return list(await asyncio.gather(*(_session(client, SessionKey(EPOCH, owner, n)) for n in range(sessions))))


async def _session(client: RegistryClient, key: SessionKey) -> Binding:
    assert (await client.apply(ev.Open(session=key, label="agent"))).ok
    bind, seen = ev.BindFirst(session=key), 0
    while not isinstance(bound := await client.apply(bind), Binding):
        assert bound.code is Code.NO_PUBLISHED_VERSION
        seen = await client.changed(seen, 5.0)
    assert await asyncio.gather(client.apply(bind), client.apply(bind)) == [bound, bound]
    first, second = await client.apply_all([ev.BeginClose(session=key), ev.CloseAndRelease(session=key)])
    assert first.ok
    assert isinstance(second, Closed)
    assert second.released in (bound.key, None)
    assert (await client.apply(bind)).code is Code.SESSION_CLOSED
    assert await client.ask(SessionStateOf(key)) is SessionState.CLOSED
    return bound


def replayed(path: Path) -> tuple[Registry, list[tuple[ev.Event, Outcome]]]:
    """The journal step by step with every invariant checked; the registry at its end and the rows."""
    with Journal.read(path) as journal:
        registry = new_registry(journal.epoch, journal.config)
        rows = []
        for row in journal.rows():
            assert not isinstance(row.event, Malformed)
            done = step(registry, row.event)
            assert done.outcome == row.outcome
            assert check_change(registry, row.event, done.registry) == ()
            registry = done.registry
            assert check(registry) == ()
            rows.append((row.event, row.outcome))
        assert registry == journal.recover()
    return registry, rows


def require_story_was_told(path: Path, bindings: Sequence[Binding]) -> None:
    """No binding twice, no release twice or never, one commit and one reclaim each, nothing left over."""
    registry, rows = replayed(path)
    bound: dict[SessionKey, set[VersionKey]] = {}
    released: Counter[SessionKey] = Counter()
    for _, outcome in rows:
        if isinstance(outcome, Binding):
            bound.setdefault(outcome.session, set()).add(outcome.key)
        if isinstance(outcome, Closed) and outcome.released is not None:
            released[outcome.session] += 1
    assert bound == {binding.session: {binding.key} for binding in bindings}
    assert released == dict.fromkeys(bound, 1)
    assert {outcome.revision for _, outcome in rows if isinstance(outcome, Committed)} == {1, 2}
    assert {key: version.state for key, version in registry.versions.items()} == {
        OLD: VersionState.RECLAIMED,
        NEW: VersionState.PUBLISHED,
    }
    assert [version.session_refs for version in registry.versions.values()] == [0, 0]
    assert [len(owner.sessions) for owner in registry.owners.values()] == [0] * len(registry.owners)
    assert (registry.default, registry.default_revision) == (NEW, 2)
