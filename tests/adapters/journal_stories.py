"""Events for the journal's tests: a small life of a registry, and an endless one that is the same every time."""

from collections.abc import Iterator

from lorafsm.events import (
    ArtifactStored,
    BindFirst,
    ClaimReclaim,
    CloseAndRelease,
    Commit,
    ConfirmReclaim,
    EngineJoin,
    Event,
    Open,
    OwnerUp,
    Prepared,
    Ready,
    Reserve,
)
from lorafsm.identity import SessionKey, VersionKey
from lorafsm.manifest import store_plan
from lorafsm.records import Config

EPOCH = "e1"
CONFIG = Config()
ENGINES = ("E0", "E1")


def publish(version_id: int, number: int, revision: int) -> Iterator[Event]:
    """A publication from reserve to commit; `number` is the attempt's, `revision` the default's before it."""
    key, digest, token = VersionKey(EPOCH, version_id), f"{version_id:064x}", f"t{version_id}"
    yield Reserve(key=key, digest=digest, plan=store_plan(), token=token)
    yield ArtifactStored(key=key, digest=digest)
    for seq, engine in enumerate(ENGINES):
        at = {"number": number, "engine": engine, "incarnation": 1}
        yield Prepared(**at, seq=10 * number + seq)
        yield Ready(**at, seq=10 * number + 5 + seq, key=key, digest=digest, base_fingerprint="", probe_ok=True)
    yield Commit(key=key, token=token, expected_revision=revision)


def session(sequence: int) -> SessionKey:
    return SessionKey(EPOCH, "o1", sequence)


def life() -> list[Event]:
    """Two publications, two sessions and a reclaim: every event is accepted."""
    old = VersionKey(EPOCH, 1)
    return [
        OwnerUp(owner="o1", now=5),
        *(EngineJoin(engine=e, incarnation=1, seq=1, base_fingerprint="") for e in ENGINES),
        *publish(1, 1, 0),
        Open(session=session(0), label="first"),
        BindFirst(session=session(0)),
        *publish(2, 2, 1),
        BindFirst(session=session(1)),
        CloseAndRelease(session=session(0)),
        ClaimReclaim(key=old, reclaim_id="r1"),
        *(ConfirmReclaim(reclaim_id="r1", engine=e, incarnation=1, seq=99, observed_absent=True) for e in ENGINES),
    ]


def endless() -> Iterator[Event]:
    """A life, then sessions without end; every seventh event is one that is refused."""
    number = 0
    events = iter(life())
    while True:
        number += 1
        if number % 7 == 0:
            yield BindFirst(session=SessionKey(EPOCH, "nobody", number))
        elif (event := next(events, None)) is not None:
            yield event
        else:
            yield (BindFirst if number % 2 else CloseAndRelease)(session=session(number // 2))
