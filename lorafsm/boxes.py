"""The small worlds in which the registry is searched, each to its end: one concern a box.

`lorafsm explore` and the conformance tests walk the same ones.  A box leaves out the events of other concerns; what
it needs of them is in its story.
"""

from __future__ import annotations

from collections.abc import Mapping

from lorafsm import events as ev
from lorafsm.box import Box
from lorafsm.events import Event
from lorafsm.identity import SessionKey, VersionKey
from lorafsm.manifest import Plan
from lorafsm.records import MAX_ENGINES, Config

A, B = "a" * 64, "b" * 64  # digests: every version's own, and another content
EPOCH = "e1"

PROGRESS = "prepared authorize_bucket bucket_done ready target_failed target_unknown cleaned"
ATTEMPT = f"reserve artifact_stored {PROGRESS} commit abort takeover"
OF_VERSION = "reserve artifact_stored commit abort takeover rollback claim_reclaim order_repair"
ENGINES = "engine_up engine_lost engine_dead quarantine"
MEMBERS = f"engine_join {ENGINES} engine_remove"
SESSIONS = "open bind_first begin_close close_and_release"
OWNERS = "owner_up heartbeat owner_expired owner_gone recovered"
RECLAIM = "claim_reclaim confirm_reclaim reclaim_unknown"
REPAIR = "order_repair repair_ready repair_failed"


def words(text: str) -> frozenset[str]:
    """The names in a line."""
    return frozenset(text.split())


def joined(*engines: str) -> tuple[Event, ...]:
    """Engines that joined with nothing on them."""
    return tuple(ev.EngineJoin(engine=engine, incarnation=1, seq=1, base_fingerprint="") for engine in engines)


def reserved(version: int, token: str, buckets: int = 0) -> tuple[Event, ...]:
    """A slot taken."""
    return (ev.Reserve(key=VersionKey(EPOCH, version), digest=A, plan=Plan(buckets, "f" * 64), token=token),)


def ready(version: int, number: int, token: str, *engines: str, stored: bool = True) -> tuple[Event, ...]:
    """A publication up to READY on these engines, of a plan without buckets."""
    key = VersionKey(EPOCH, version)
    story = list(reserved(version, token))
    if stored:
        story.append(ev.ArtifactStored(key=key, digest=A))
    for engine in engines:
        story.append(ev.Prepared(number=number, engine=engine, incarnation=1, seq=1))
        story.append(
            ev.Ready(
                number=number,
                engine=engine,
                incarnation=1,
                seq=2,
                key=key,
                digest=A,
                base_fingerprint="",
                probe_ok=True,
            )
        )
    return tuple(story)


def committed(version: int, token: str, revision: int) -> tuple[Event, ...]:
    """The default moved on from `revision`."""
    return (ev.Commit(key=VersionKey(EPOCH, version), token=token, expected_revision=revision),)


def aborted(version: int, number: int, token: str, engine: str) -> tuple[Event, ...]:
    """A publication that failed and was cleaned."""
    return (
        *reserved(version, token),
        ev.Abort(key=VersionKey(EPOCH, version), token=token, reason="given up"),
        ev.Cleaned(number=number, engine=engine, incarnation=1, seq=1),
    )


def held(sequence: int = 0) -> tuple[Event, ...]:
    """A session of o1 bound to the default."""
    return (ev.OwnerUp(owner="o1"), ev.BindFirst(session=SessionKey(EPOCH, "o1", sequence)))


_A = (*joined("e0"), *ready(1, 1, "t1", "e0"), *committed(1, "t1", 0))
_A_ON_TWO = (*joined("e0", "e1"), *ready(1, 1, "t1", "e0", "e1"), *committed(1, "t1", 0))
_A_THEN_B = (*_A, *ready(2, 2, "t2", "e0"), *committed(2, "t2", 1))
_A_THEN_B_AFTER_ONE = (
    *ready(2, 2, "t2", "e0"),
    *committed(2, "t2", 0),
    *ready(3, 3, "t3", "e0"),
    *committed(3, "t3", 1),
)
# A failed once, was published in a second attempt that changed hands, and B replaced it.
_A_TWICE_THEN_B = (
    *joined("e0"),
    *aborted(1, 1, "t1", "e0"),
    *ready(1, 2, "t2", "e0"),
    ev.Takeover(key=VersionKey(EPOCH, 1), token="t5", handover="t2"),  # noqa: S106
    *committed(1, "t5", 0),
    *ready(2, 3, "t3", "e0"),
    *committed(2, "t3", 1),
)
# A is held by a session, B is READY, e1 joined after A and holds nothing.
_A_HELD_B_READY = (*_A, *held(), *ready(2, 2, "t2", "e0"), *joined("e1"))

BOXES: Mapping[str, Box] = {
    "one bucket": Box(story=joined("e0"), events=words(ATTEMPT), buckets=1),
    "a bucket changes hands": Box(
        story=(*joined("e0"), *reserved(1, "t1", buckets=1)),
        events=words("prepared authorize_bucket bucket_done takeover abort cleaned"),
        buckets=1,
        tokens=("t1", "t2"),
    ),
    "two buckets on two engines": Box(
        story=(*joined("e0", "e1"), *reserved(1, "t1", buckets=2)),
        events=words(f"{PROGRESS} commit abort"),
        engines=("e0", "e1"),
        buckets=2,
        illegal=False,
    ),
    "a bucket and a restart": Box(
        story=(*joined("e0"), *reserved(1, "t1", buckets=1)),
        events=words(f"{PROGRESS} commit abort {ENGINES}"),
        buckets=1,
        incarnations=(1, 2),
    ),
    "attempts of one version": Box(
        config=Config(require_artifact=False),
        story=joined("e0"),
        events=words(f"{OF_VERSION} prepared ready target_failed cleaned"),
        digests=(A, B),
        tokens=("t1", "t2"),
    ),
    "two versions, one attempt": Box(
        story=joined("e0"),
        events=words("reserve artifact_stored prepared ready commit abort cleaned rollback claim_reclaim takeover"),
        versions=(1, 2),
        tokens=("t1", "t2"),
    ),
    "a failed version beside an open attempt": Box(
        story=(*joined("e0"), *aborted(1, 1, "t1", "e0")),
        events=words("reserve artifact_stored commit abort cleaned takeover"),
        versions=(1, 2),
        tokens=("t1", "t2", "t3"),
    ),
    "no slot": Box(
        config=Config(capacity=1),
        story=(*joined("e0"), *aborted(1, 1, "t1", "e0"), *ready(2, 2, "t2", "e0"), *committed(2, "t2", 0)),
        events=words("reserve"),
        versions=(1, 2, 3),
        tokens=("t1", "t2", "t3"),
    ),
    "no engine for a failed version": Box(
        story=(*joined("e0"), *aborted(1, 1, "t1", "e0")),
        events=words(f"reserve artifact_stored order_repair {ENGINES}"),
        digests=(A, B),
        tokens=("t1", "t2"),
    ),
    "no engine for an aborted version": Box(
        story=(*joined("e0"), *reserved(1, "t1")), events=words("abort order_repair engine_lost")
    ),
    "a version's whole life": Box(
        story=_A_TWICE_THEN_B,
        events=words(f"{OF_VERSION} {RECLAIM}"),
        versions=(1, 2),
        digests=(A, B),
        tokens=("t1", "t2", "t3", "t4", "t5"),
        numbers=4,
        reclaim_ids=("r1", "r2"),
    ),
    "a failed version among others": Box(
        story=(*joined("e0"), *aborted(1, 1, "t1", "e0"), *_A_THEN_B_AFTER_ONE),
        events=words("rollback claim_reclaim"),
        versions=(1, 2, 3),
    ),
    "a version's whole life, bytes stored late": Box(
        config=Config(require_artifact=False),
        story=(
            *joined("e0"),
            *ready(1, 1, "t1", "e0", stored=False),
            *committed(1, "t1", 0),
            *ready(2, 2, "t2", "e0"),
            *committed(2, "t2", 1),
        ),
        events=words(f"{RECLAIM} artifact_stored"),
        versions=(1, 2),
    ),
    "restart during a publication": Box(
        story=joined("e0"), events=words(f"{ATTEMPT} {ENGINES} engine_remove"), incarnations=(1, 2), last_seq=3
    ),
    "restart of one of two": Box(
        story=(*joined("e0", "e1"), *reserved(1, "t1")),
        events=words("prepared ready cleaned commit abort engine_up engine_dead"),
        engines=("e0", "e1"),
        incarnations=(1, 2),
        last_seq=3,
        illegal=False,
    ),
    "late answers": Box(story=joined("e0"), events=words(f"{ATTEMPT} engine_up"), seqs=(1, 2, 3), illegal=False),
    "late answers about a bucket": Box(
        story=joined("e0"), events=words(f"{ATTEMPT} engine_up"), seqs=(1, 2, 3), buckets=1, illegal=False
    ),
    "drivers' leases": Box(
        config=Config(driver_lease=10),
        story=joined("e0"),
        events=words("reserve artifact_stored prepared ready commit abort takeover recovered"),
        tokens=("t1", "t2", "t3"),
        last_seq=2,
        nows=(0, 10),
    ),
    "past lost members": Box(
        config=Config(publish_past_lost=True, require_artifact=False),
        story=joined("e0", "e1"),
        events=words(f"reserve prepared ready commit abort {ENGINES}"),
        engines=("e0", "e1"),
        illegal=False,
    ),
    "no version yet": Box(story=joined("e0"), events=words(f"{SESSIONS} owner_up")),
    "sessions and leases": Box(
        config=Config(owner_lease=10),
        story=(*_A, *ready(2, 2, "t2", "e0")),
        events=words(f"{SESSIONS} {OWNERS} commit"),
        versions=(1, 2),
        tokens=("t1", "t2"),
        sequences=(0, 1),
        nows=(0, 11),
    ),
    "sessions of two owners": Box(
        story=(*_A, *ready(2, 2, "t2", "e0")),
        events=words(f"{SESSIONS} owner_up owner_gone commit {RECLAIM} rollback"),
        versions=(1, 2),
        tokens=("t1", "t2"),
        owners=("o1", "o2"),
        illegal=False,
    ),
    "revoked by policy": Box(
        config=Config(max_version_lag=1),
        story=(*_A, *held(), *ready(2, 2, "t2", "e0")),
        events=words(f"{SESSIONS} heartbeat owner_gone commit {RECLAIM} rollback order_repair"),
        versions=(1, 2),
        tokens=("t1", "t2"),
        sequences=(0, 1),
        illegal=False,
    ),
    "a late member is a target of the next": Box(
        story=(*_A, *joined("e1"), *ready(2, 2, "t2", "e0", "e1")),
        events=words(f"{REPAIR} commit engine_up"),
        engines=("e1",),
        versions=(1, 2),
        tokens=("t2",),
        numbers=3,
        illegal=False,
    ),
    "rollback": Box(
        config=Config(capacity=3, engine_slots=4),
        story=(*_A_ON_TWO, *held(), *ready(2, 2, "t2", "e0", "e1"), *committed(2, "t2", 1)),
        events=words("rollback engine_up engine_lost engine_dead claim_reclaim close_and_release"),
        engines=("e0", "e1"),
        versions=(1, 2),
        operation_ids=("op1", "op2"),
        illegal=False,
    ),
    "rollback overtakes a publication": Box(
        config=Config(capacity=3, engine_slots=4),
        story=(*_A_THEN_B, *ready(3, 3, "t3", "e0")),
        events=words("rollback commit abort claim_reclaim"),
        versions=(1, 2, 3, 4),
        tokens=("t3",),
    ),
    "reclaim on two engines": Box(
        story=(*_A_ON_TWO, *ready(2, 2, "t2", "e0", "e1"), *committed(2, "t2", 1)),
        events=words(f"{RECLAIM} engine_up engine_lost engine_dead"),
        engines=("e0", "e1"),
        illegal=False,
    ),
    "reclaim and restarts": Box(
        story=_A_THEN_B,
        events=words(f"{RECLAIM} {ENGINES} engine_remove"),
        incarnations=(1, 2, 3),
        reclaim_ids=("r1", "r2"),
        versions=(1, 2, 3),
    ),
    "nothing to repair": Box(
        story=_A_THEN_B, events=words("claim_reclaim confirm_reclaim order_repair engine_lost"), numbers=4
    ),
    "reclaim, late answers": Box(story=_A_THEN_B, events=words(f"{RECLAIM} engine_up"), seqs=(1, 2, 3)),
    "repair, twice refused": Box(
        config=Config(repair_limit=2, repair_backoff=10),
        story=(*_A, *joined("e1")),
        events=words(f"{REPAIR} engine_up engine_lost"),
        engines=("e1",),
        versions=(1, 2),
        numbers=3,
        nows=(0, 10),
    ),
    "repair and restart": Box(
        config=Config(repair_limit=1, repair_backoff=0),
        story=_A,
        events=words(f"{REPAIR} {MEMBERS}"),
        incarnations=(1, 2),
        numbers=3,
    ),
    "repair of two versions": Box(
        config=Config(repair_limit=1),
        story=_A_HELD_B_READY,
        events=words(f"{REPAIR} {RECLAIM} engine_up engine_dead close_and_release commit"),
        engines=("e1",),
        versions=(1, 2),
        tokens=("t2",),
        numbers=4,
        illegal=False,
    ),
    "repair of a version on its way out": Box(
        config=Config(repair_limit=2, repair_backoff=0),
        story=(*_A_HELD_B_READY, *committed(2, "t2", 1)),
        events=words(f"{REPAIR} {RECLAIM} engine_up engine_lost close_and_release rollback"),
        engines=("e1",),
        numbers=4,
        illegal=False,
    ),
    "repair and the end of an owner": Box(
        config=Config(owner_lease=10),
        story=(*_A_HELD_B_READY, *committed(2, "t2", 1)),
        events=words("order_repair repair_ready close_and_release owner_expired owner_gone rollback"),
        engines=("e1",),
        versions=(1, 2),
        numbers=4,
        nows=(0, 11),
        illegal=False,
    ),
    "repair without bytes": Box(
        config=Config(require_artifact=False),
        story=(
            *joined("e0"),
            *ready(1, 1, "t1", "e0", stored=False),
            *committed(1, "t1", 0),
            *held(),
            *ready(2, 2, "t2", "e0", stored=False),
            *joined("e1"),
        ),
        events=words(f"{REPAIR} artifact_stored commit"),
        engines=("e0", "e1"),
        versions=(1, 2),
        tokens=("t2",),
        numbers=5,
    ),
    "repair, late answers": Box(
        story=(*_A, *joined("e1")),
        events=words(f"{REPAIR} engine_up engine_lost quarantine"),
        engines=("e1",),
        seqs=(1, 2, 3),
        numbers=3,
    ),
    "members come and go": Box(
        events=words(f"{MEMBERS} order_repair reserve"), engines=("e0", "e1"), incarnations=(1, 2)
    ),
    "a member joins late": Box(
        story=_A, events=words(f"{MEMBERS} order_repair"), engines=("e1",), incarnations=(1, 2), versions=(1, 2)
    ),
    "a full fleet": Box(
        story=joined(*(f"e{n}" for n in range(MAX_ENGINES))), events=words("engine_join"), engines=("e0", "e99")
    ),
}
