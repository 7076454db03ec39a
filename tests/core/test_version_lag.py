"""`max_version_lag`: what is that many revisions behind is taken from its sessions, and nothing before (rule 9)."""

import pytest

from lorafsm.boxes import EPOCH, committed, held, joined, ready
from lorafsm.events import ClaimReclaim, CloseAndRelease
from lorafsm.identity import SessionKey, VersionKey
from lorafsm.records import Config, Registry, new_registry
from lorafsm.registry import step

PUBLISHED = 4


def published(lag: int) -> list[Registry]:
    """The registry after each of four publications, with a session on the first."""
    r = new_registry(EPOCH, Config(capacity=PUBLISHED, engine_slots=PUBLISHED + 1, max_version_lag=lag))
    found = []
    for event in joined("e0"):
        r = step(r, event).registry
    for n in range(1, PUBLISHED + 1):
        for event in (*ready(n, n, f"t{n}", "e0"), *committed(n, f"t{n}", n - 1), *(held() if n == 1 else ())):
            done = step(r, event)
            assert done.outcome.ok, (event, done.outcome)
            r = done.registry
        found.append(r)
    return found


@pytest.mark.parametrize("lag", [0, 1, 2, 3])
def test_what_lags_too_far_is_revoked(lag: int):
    for default, r in enumerate(published(lag), 1):
        revoked = {key.version_id for key, version in r.versions.items() if version.revoked}
        assert revoked == {n for n in range(1, default) if lag and default - n >= lag}
        refs = r.versions[VersionKey(EPOCH, 1)].session_refs
        assert refs == (0 if 1 in revoked else 1)


def test_a_version_on_its_way_out_is_not_revoked():
    """It is in nobody's hands any more."""

    r = published(3)[1]
    r = step(r, CloseAndRelease(session=SessionKey(EPOCH, "o1", 0))).registry
    r = step(r, ClaimReclaim(key=VersionKey(EPOCH, 1), reclaim_id="r1")).registry
    for n in (3, 4):
        for event in (*ready(n, n, f"t{n}", "e0"), *committed(n, f"t{n}", n - 1)):
            r = step(r, event).registry
    assert r.default == VersionKey(EPOCH, 4)
    assert not r.versions[VersionKey(EPOCH, 1)].revoked
