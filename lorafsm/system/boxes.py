"""The small worlds in which the composed system is searched, and the larger ones that are only walked at random.

A box says how many engines, versions, sessions and buckets there are, and how often each kind of fault may happen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lorafsm.records import Config
from lorafsm.system.box import SystemBox


def _box(**words: Any) -> SystemBox:
    return SystemBox(**words)


_FIRST = {"published": 1, "versions": 2, "sessions": 1}  # version 1 is the default, version 2 is to replace it
_HELD = {**_FIRST, "bound": 1}  # and a session is bound to version 1
_ROOMY = Config(base_fingerprint="base", repair_backoff=0, capacity=3, engine_slots=4)

BOXES: Mapping[str, SystemBox] = {
    "nothing goes wrong": _box(versions=2, sessions=1),
    "sessions before versions, and messages of old": _box(
        versions=2, sessions=1, opens_first=True, foreign=True, budgets={"lose": 1}
    ),
    "nothing goes wrong on two engines": _box(engines=2, versions=2, sessions=1, buckets=1, published=1),
    "lost messages": _box(engines=2, **_FIRST, budgets={"lose": 2}),
    "doubled messages": _box(engines=2, **_FIRST, budgets={"duplicate": 1}),
    "a restart": _box(engines=2, versions=2, published=1, budgets={"crash": 1}),
    "a restart, and sessions": _box(**_FIRST, budgets={"crash": 1}),
    "a restart and a new attempt": _box(engines=2, budgets={"crash": 1, "retry": 1}),
    "a death": _box(**_FIRST, budgets={"dead": 1}),
    "a silent engine": _box(engines=2, **_FIRST, budgets={"lost": 1}),
    "no answer": _box(**_HELD, budgets={"silence": 2, "deadline": 1}),
    "a publisher changes hands": _box(engines=2, buckets=1, budgets={"publisher": 1, "lose": 1, "deadline": 1}),
    "a bucket fails": _box(engines=2, buckets=1, budgets={"bucket": 1, "crash": 1}),
    "a failed load": _box(engines=2, budgets={"load": 1, "retry": 1, "inventory": 1}),
    "other bytes": _box(engines=2, budgets={"corrupt": 1, "retry": 1}),
    "a new attempt and late messages": _box(budgets={"deadline": 1, "duplicate": 1, "retry": 1, "reserve": 1}),
    "doubled orders and no answer": _box(versions=1, budgets={"lose": 1, "duplicate": 1, "silence": 1, "deadline": 1}),
    "doubled buckets and no answer": _box(versions=1, buckets=1, budgets={"duplicate": 1, "silence": 1, "deadline": 1}),
    "an unload that takes long": _box(**_HELD, budgets={"slow": 1}),
    "a negative count": _box(**_HELD, budgets={"count": 1}),
    "an owner in doubt": _box(**_HELD, requests=2, budgets={"owner": 1, "doubt": 1, "bind": 1}),
    "late inventories": _box(**_FIRST, budgets={"lost": 1, "inventory": 1}),
    "decisions travel": _box(**_FIRST, late_decisions=True, budgets={"duplicate": 1, "deadline": 1, "lose": 1}),
    "rollback": _box(versions=2, sessions=1, published=2, bound=1, budgets={"rollback": 2, "lost": 1}),
    "bytes are stored late": _box(versions=2, sessions=1, stored_late=True, budgets={"publisher": 1}),
}
"""Searched to their end by `lorafsm explore` and the tests."""

LARGE: Mapping[str, SystemBox] = {
    "large: every fault": _box(
        engines=2,
        versions=4,
        sessions=2,
        requests=2,
        buckets=1,
        published=1,
        budgets=dict.fromkeys(
            "lose duplicate crash dead publisher load bucket slow count silence lost deadline doubt inventory rollback "
            "retry corrupt bind reserve".split(),
            2,
        ),
    ),
    "large: three engines, three slots": _box(
        engines=3,
        versions=4,
        sessions=3,
        buckets=2,
        published=2,
        config=_ROOMY,
        budgets={"lose": 2, "duplicate": 2, "crash": 2, "publisher": 1, "silence": 1, "owner": 1, "retry": 2},
    ),
}
"""Too large for a search: `lorafsm explore --box NAME --simulate WALKS --seed SEED`."""
