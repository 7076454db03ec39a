"""The supported configuration (M23): each refusal by itself."""

from __future__ import annotations

import pytest
from attrs import evolve

from lorafsm.deployment import Cache, Deployment, faults_in, kv_namespace
from lorafsm.records import Config

SUPPORTED = Deployment(
    engines=2,
    engine_slots=3,
    tensor_parallel=1,
    data_parallel=1,
    pipeline_parallel=1,
    samples=1,
    dense_text_model=True,
    base_frozen=True,
    kv_cache=True,
    caches=(Cache(name="radix", version_aware=True),),
    speculative_decoding=False,
    pd_disaggregation=False,
    radix_tree_middleware=False,
    scheduler_overlap=False,
    elastic_scale_out=False,
    unmanaged_adapters=False,
)

OUTSIDE = {
    "engines": 0,
    "engine_slots": 2,
    "tensor_parallel": 2,
    "data_parallel": 2,
    "pipeline_parallel": 2,
    "samples": 4,
    "dense_text_model": False,
    "base_frozen": False,
    "kv_cache": False,
    "caches": (Cache(name="radix", version_aware=True), Cache(name="encoder", version_aware=False)),
    "speculative_decoding": True,
    "pd_disaggregation": True,
    "radix_tree_middleware": True,
    "scheduler_overlap": True,
    "elastic_scale_out": True,
}


def test_the_supported_configuration_has_no_fault():
    assert faults_in(SUPPORTED, Config()) == ()


@pytest.mark.parametrize("field", OUTSIDE)
def test_each_setting_outside_is_refused_by_its_name(field: str):
    (fault,) = faults_in(evolve(SUPPORTED, **{field: OUTSIDE[field]}), Config())
    assert fault.field == field
    assert str(fault).startswith(f"{field}: ")
    assert len(fault.reason) > 5


def test_all_faults_are_said_at_once():
    fields = [fault.field for fault in faults_in(evolve(SUPPORTED, **OUTSIDE), Config())]
    assert fields == sorted(OUTSIDE, key=fields.index)
    assert set(fields) == set(OUTSIDE)


def test_unmanaged_adapters_need_two_slots_more_than_the_capacity():
    opted_in = evolve(SUPPORTED, unmanaged_adapters=True)
    assert [fault.field for fault in faults_in(opted_in, Config())] == ["engine_slots"]
    assert faults_in(evolve(opted_in, engine_slots=4), Config()) == ()
    assert [f.field for f in faults_in(evolve(opted_in, engine_slots=4), Config(capacity=3, engine_slots=4))] == [
        "engine_slots"
    ]


def test_namespaces_of_versions_and_of_the_base_differ():
    names = [None, "relax_policy_lora@e1-1-aaaaaaaaaaaa", "relax_policy_lora@e1-2-aaaaaaaaaaaa", "base"]
    assert len({kv_namespace(name) for name in names}) == 4
