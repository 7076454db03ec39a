"""A registry as in production: two engines, one version published, the next one READY, sixteen owners."""

from __future__ import annotations

from functools import reduce

from lorafsm import events as ev
from lorafsm.identity import SessionKey, VersionKey
from lorafsm.manifest import Plan
from lorafsm.records import Registry, new_registry
from lorafsm.registry import step

EPOCH = "bench"
OWNERS = 16
START = 1_700_000_000_000  # ms; as large as real times are
NEXT = VersionKey(EPOCH, 2)
COMMIT_NEXT = ev.Commit(key=NEXT, token="token-2", expected_revision=1, now=START)

_ENGINES = ("engine-0", "engine-1")
_DIGEST = "a" * 64


def published_registry() -> Registry:
    """After `story_to_published`."""
    return reduce(accepted, story_to_published(), new_registry(EPOCH))


def story_to_published() -> list[ev.Event]:
    """Version 1 is the default, version 2 waits for `COMMIT_NEXT`, every owner is up; no session yet."""
    joins = [ev.EngineJoin(engine=engine, incarnation=1, seq=1, base_fingerprint="", now=START) for engine in _ENGINES]
    commit = ev.Commit(key=VersionKey(EPOCH, 1), token="token-1", expected_revision=0, now=START)
    owners = [ev.OwnerUp(owner=owner_name(number), now=START) for number in range(OWNERS)]
    return [*joins, *_ready(1), commit, *_ready(2), *owners]


def accepted(r: Registry, event: ev.Event) -> Registry:
    """The registry after an event that must not be refused."""
    done = step(r, event)
    assert done.outcome.ok, done.outcome
    return done.registry


def owner_name(number: int) -> str:
    return f"owner-{number}"


def session_key(number: int) -> SessionKey:
    """Session `number` of the whole fleet: the owners take turns."""
    return SessionKey(EPOCH, owner_name(number % OWNERS), number // OWNERS)


def _ready(version: int) -> list[ev.Event]:
    """A publication up to READY on every engine; its attempt has the number of the version."""
    key = VersionKey(EPOCH, version)
    story: list[ev.Event] = [
        ev.Reserve(key=key, digest=_DIGEST, plan=Plan(0, "f" * 64), token=f"token-{version}", now=START),
        ev.ArtifactStored(key=key, digest=_DIGEST, now=START),
    ]
    for engine in _ENGINES:
        about = {"number": version, "engine": engine, "incarnation": 1, "now": START}
        proof = {"key": key, "digest": _DIGEST, "base_fingerprint": "", "probe_ok": True}
        story += [ev.Prepared(**about, seq=2 * version), ev.Ready(**about, **proof, seq=2 * version + 1)]
    return story
