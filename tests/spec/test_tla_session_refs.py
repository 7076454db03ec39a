"""Net 1 for the session cache: its graph in each box is the golden one, in both directions; `make check` holds
SessionRefs.tla to the same file.  No Java is needed here."""

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from lorafsm.identity import SessionKey
from lorafsm.kv import CacheConfig, Node, SessionCache
from lorafsm.kv.records import Released
from lorafsm_tla.cache_boxes import CacheBox, TwoFaced, read_cache_box, walk_cache
from lorafsm_tla.golden import LIMIT, actions_of, decoded, encoded, first_difference, read_golden
from lorafsm_tla.manifest import folder, read_manifest
from lorafsm_tla.values import Graph

TLA = folder()
ALL = read_manifest(TLA / "manifest.toml")
MODELS = {m.name: m for m in ALL if m.module == "MCSessionRefs"}
FEWEST_TRANSITIONS = 20_000
NEXT = set(re.findall(r" : (\w+)\(", (TLA / "MCSessionRefs.tla").read_text())) - {"At"} | {"Evict", "Flush"}
"""Every call that a box may let happen."""


@cache
def golden(name: str) -> Graph:
    return read_golden(TLA / MODELS[name].golden)


def box(name: str) -> CacheBox:
    return read_cache_box(TLA / MODELS[name].cfg)


@pytest.mark.parametrize("name", MODELS)
def test_the_cache_acts_as_specified(name: str):
    difference = first_difference(walk_cache(box(name)), golden(name))
    if difference is not None:
        pytest.fail(difference.told("the core", "the specification"))


def test_the_boxes_are_large_enough():
    assert sum(golden(name).transitions for name in MODELS) >= FEWEST_TRANSITIONS


@pytest.mark.parametrize("name", MODELS)
def test_what_may_happen_in_a_box_happens(name: str):
    assert actions_of([golden(name)]) == frozenset(box(name).happens)


def test_every_call_is_compared():
    assert actions_of(map(golden, MODELS)) == NEXT


@pytest.mark.parametrize("name", MODELS)
def test_a_golden_graph_is_small_and_canonical(name: str):
    data = (TLA / MODELS[name].golden).read_bytes()
    assert len(data) <= LIMIT
    assert encoded(golden(name))[10:] == data[10:]  # but for gzip's own header
    assert decoded(data).transitions == golden(name).transitions


def test_every_bug_and_witness_of_the_cache_is_run():
    mistakes, witnesses = (TLA / "SessionRefsBugs.tla").read_text().split("(* Witnesses:")
    run_as = "\n".join((TLA / m.cfg).read_text() for m in ALL if m.module == "SessionRefsBugs")
    replacements = set(re.findall(r"^    \w+ <- (\w+)$", run_as, re.MULTILINE))
    assert set(re.findall(r"^(\w+)(?:\(.*\))? ==", mistakes, re.MULTILINE)) <= replacements
    named = {m.violates for m in ALL if m.name.startswith("cache witness ")}
    assert set(re.findall(r"^(\w+)\s+==", witnesses, re.MULTILINE)) <= named
    cfgs = {path.relative_to(TLA).as_posix() for path in (TLA / "models" / "session_refs").rglob("*.cfg")}
    assert cfgs == {m.cfg for m in ALL if m.module in ("MCSessionRefs", "SessionRefsBugs")}


def difference_of(name: str, make: Callable[[CacheConfig], SessionCache]) -> tuple[set[str], set[str]]:
    """Which actions only the core takes, and which only the specification, where the two part first."""
    found = first_difference(walk_cache(box(name), make), golden(name))
    assert found is not None
    return {action for action, _ in found.only_left}, {action for action, _ in found.only_right}


def test_a_cache_that_forgets_what_was_closed_is_seen():
    class Forgetful(SessionCache):
        def flush(self) -> None:
            super().flush()
            for ranges in self.sessions._closed.values():
                ranges.__init__()

    assert difference_of("cache silence", Forgetful) == ({"Flush"}, set())


def test_a_cache_that_lets_an_aborted_request_refer_is_seen():
    class Careless(SessionCache):
        def register(self, session: SessionKey, node: Node, now: int = 0, **how: bool) -> Any:
            return super().register(session, node, now)

    assert difference_of("cache silence", Careless) == ({"Aborted"}, set())


def test_a_cache_whose_close_is_an_access_is_seen():
    """As in the original."""

    class Moving(SessionCache):
        def close(self, session: SessionKey) -> Released:
            live = self.sessions.live.get(session)
            ends = list(live.frontiers[0]) if live else []
            done = super().close(session)
            for node in ends:
                node.full.stamp = self.tree._tick(1)
                self.candidates.rekey(0, node, node.full)
            return done

    assert difference_of("cache order", Moving) == ({"Close"}, {"Close"})


def test_a_dropped_field_that_matters_is_seen():
    """How many inserts passed over a node is dropped by the map; a cache that acted on it would be found out."""

    class Superstitious(SessionCache):
        def register(self, session: SessionKey, node: Node, now: int = 0, **how: bool) -> Any:
            return super().register(session, node, now, aborted=node.hits % 2 == 0)

    with pytest.raises(TwoFaced):
        walk_cache(box("cache branches"), Superstitious)
