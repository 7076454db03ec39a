"""Scenarios that are decided before anything starts: slots, replicas, caches (C, E, F)."""

from __future__ import annotations

from attrs import evolve

from lorafsm.deployment import Cache, faults_in, kv_namespace
from lorafsm.identity import VersionKey
from lorafsm.kv import SessionCache
from lorafsm.records import Config
from tests.core.test_deployment import SUPPORTED


def refused(**settings: object) -> list[str]:
    """The fields for which this deployment is refused."""
    return [fault.field for fault in faults_in(evolve(SUPPORTED, **settings), Config())]


def test_S39_base_traffic_takes_a_slot():
    assert refused(engine_slots=2) == ["engine_slots"]
    (fault,) = faults_in(evolve(SUPPORTED, engine_slots=2), Config())
    assert "needs 3" in fault.reason
    assert "base model" in fault.reason
    assert refused(engine_slots=3) == []


def test_S60_replica_behind_the_address():
    assert refused(data_parallel=2) == ["data_parallel"]
    (fault,) = faults_in(evolve(SUPPORTED, data_parallel=2), Config())
    assert "make each replica an engine" in fault.reason
    assert refused(engines=2, data_parallel=1) == []


def test_S62_A_warm_B_cold():
    a, b, prompt = VersionKey("e1", 1), VersionKey("e1", 2), list(range(40))
    cache = SessionCache()
    assert cache.match(prompt, a).length == 0
    cache.insert(prompt, a)
    assert cache.match(prompt, a).length == 40
    assert cache.match(prompt, b).length == 0, "A warm does not make B warm"
    assert cache.match(prompt, None).length == 0, "nor the base model"
    cache.insert(prompt, b)
    assert cache.match(prompt, b).length == 40
    assert cache.match(prompt, a).length == 40
    assert len({kv_namespace(name) for name in (None, "relax_policy_lora@e1-1-a", "relax_policy_lora@e1-2-b")}) == 3


def test_S63_external_KV_tier_without_version_key():
    tier = Cache(name="external KV connector", version_aware=False)
    assert refused(caches=(tier,)) == ["caches"]
    (fault,) = faults_in(evolve(SUPPORTED, caches=(tier,)), Config())
    assert "external KV connector" in fault.reason
    assert refused(caches=(evolve(tier, version_aware=True),)) == []
    assert kv_namespace("relax_policy_lora@e1-1-aaaaaaaaaaaa").endswith("relax_policy_lora@e1-1-aaaaaaaaaaaa")


def test_S64_other_caches():
    ours, encoder = Cache(name="radix", version_aware=True), Cache(name="encoder", version_aware=False)
    assert refused(caches=(ours, encoder)) == ["caches"]
    assert refused(caches=(ours, encoder, Cache(name="token", version_aware=False))) == ["caches", "caches"]
    assert refused(caches=(ours,)) == []
