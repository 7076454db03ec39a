"""Arguments (M23): what the switch needs and what it refuses, one test a refusal; off, nothing is asked."""

from __future__ import annotations

import argparse
from types import SimpleNamespace
from typing import Any

import pytest

from lorafsm.errors import InvalidField
from lorafsm_relax import add_arguments, check_arguments, deployment_of, fill_arguments, versioned_enabled
from lorafsm_relax.arguments import config_of

GOOD: dict[str, Any] = {
    "enable_versioned_lora_publication": True,
    "lora_adapter_mode": True,
    "fully_async": True,
    "use_agentic_rollout": True,
    "lora_deployment_epoch": "run_7",
    "lora_registry_name": "lora_version_registry",
    "lora_registry_journal": "journal.db",
    "lora_artifact_store": "artifacts",
    "lora_version_capacity": 2,
    "rollout_num_gpus": 2,
    "rollout_num_gpus_per_engine": 1,
    "sglang_max_loras_per_batch": 3,
    "sglang_max_loaded_loras": 3,
    "sglang_dp_size": 1,
    "sglang_pp_size": 1,
    "sglang_disable_radix_cache": False,
    "sglang_disable_overlap_schedule": True,
    "sglang_speculative_algorithm": None,
    "sglang_disaggregation_mode": "null",
    "sglang_lora_paths": None,
    "slime_router_middleware_paths": [],
    "num_experts": None,
}


def args(**changed: Any) -> SimpleNamespace:
    return SimpleNamespace(**{**GOOD, **changed})


def test_a_supported_deployment_is_accepted():
    check_arguments(args())
    assert deployment_of(args()).engines == 2


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"lora_adapter_mode": False}, "lora_adapter_mode"),
        ({"fully_async": False}, "fully_async"),
        ({"use_agentic_rollout": False}, "use_agentic_rollout"),
        ({"lora_deployment_epoch": None}, "lora_deployment_epoch"),
        ({"lora_deployment_epoch": "run 7"}, "lora_deployment_epoch"),
        ({"lora_registry_name": ""}, "lora_registry_name"),
        ({"lora_registry_journal": None}, "lora_registry_journal"),
        ({"lora_artifact_store": ""}, "lora_artifact_store"),
        ({"lora_version_capacity": 0}, "lora_version_capacity"),
        ({"lora_version_capacity": 9}, "lora_version_capacity"),
        ({"rollout_num_gpus": 0}, "engines"),
        ({"sglang_max_loras_per_batch": 2}, "engine_slots"),
        ({"sglang_max_loaded_loras": 2}, "engine_slots"),
        ({"lora_version_capacity": 3}, "engine_slots"),
        ({"sglang_max_loras_per_batch": None}, "sglang_max_loras_per_batch"),
        ({"rollout_num_gpus": 4, "rollout_num_gpus_per_engine": 2}, "tensor_parallel"),
        ({"sglang_dp_size": 2, "rollout_num_gpus_per_engine": 2}, "data_parallel"),
        ({"sglang_pp_size": 2, "rollout_num_gpus_per_engine": 2}, "pipeline_parallel"),
        ({"num_experts": 8}, "dense_text_model"),
        ({"multimodal_keys": {"image": "images"}}, "dense_text_model"),
        ({"sglang_disable_radix_cache": True}, "kv_cache"),
        ({"sglang_speculative_algorithm": "EAGLE"}, "speculative_decoding"),
        ({"sglang_disaggregation_mode": "prefill"}, "pd_disaggregation"),
        ({"slime_router_middleware_paths": ["x.radix_tree_middleware.RadixTreeMiddleware"]}, "radix_tree_middleware"),
        ({"sglang_disable_overlap_schedule": False}, "scheduler_overlap"),
        ({"autoscaler_config": "scale.yaml"}, "elastic_scale_out"),
        ({"enable_elastic_rollout": True}, "elastic_scale_out"),
        ({"sglang_lora_paths": ["other=/x"]}, "engine_slots"),
        ({"sglang_enable_lmcache": True}, "caches"),
        ({"sglang_hicache_storage_backend": "mooncake"}, "caches"),
    ],
)
def test_what_is_refused_is_named(changed: dict[str, Any], field: str):
    with pytest.raises(InvalidField) as caught:
        check_arguments(args(**changed))
    assert field in caught.value.message or caught.value.field == field
    assert caught.value.message.startswith("--enable-versioned-lora-publication is not possible")


@pytest.mark.parametrize("name", sorted(name for name in GOOD if name.startswith(("sglang_", "slime_", "rollout_"))))
def test_nothing_is_taken_for_granted(name: str):
    given = args()
    delattr(given, name)
    if name == "sglang_max_loaded_loras":  # absent: SGLang has no limit there
        check_arguments(given)
        return
    with pytest.raises(InvalidField) as caught:
        check_arguments(given)
    assert name in f"{caught.value.field} {caught.value.message}"


def test_all_faults_are_told_at_once():
    with pytest.raises(InvalidField) as caught:
        check_arguments(args(fully_async=False, sglang_dp_size=2, num_experts=8))
    assert all(word in caught.value.message for word in ("fully_async", "data_parallel", "dense_text_model"))
    assert caught.value.field == "fully_async"


def test_unmanaged_adapters_need_one_slot_more():
    check_arguments(args(sglang_lora_paths=["other=/x"], sglang_max_loras_per_batch=4, sglang_max_loaded_loras=4))


def test_a_tier_of_sglangs_own_is_accepted():
    check_arguments(args(sglang_enable_hierarchical_cache=True))


def test_slots_that_were_not_given_become_three():
    given = args(sglang_max_loras_per_batch=None, sglang_max_loaded_loras=None)
    fill_arguments(given)
    check_arguments(given)
    assert (given.sglang_max_loras_per_batch, given.sglang_max_loaded_loras) == (3, 3)
    kept = args(sglang_max_loras_per_batch=8)
    fill_arguments(kept)
    assert kept.sglang_max_loras_per_batch == 8


def test_the_registrys_config_follows():
    config = config_of(args(), base_fingerprint="f")
    assert (config.capacity, config.engine_slots, config.base_fingerprint) == (2, 3, "f")


@pytest.mark.parametrize("given", [{}, {"enable_versioned_lora_publication": False}])
def test_off_nothing_is_asked_and_nothing_is_changed(given: dict[str, Any]):
    off = SimpleNamespace(**given)
    fill_arguments(off)
    check_arguments(off)
    assert vars(off) == given
    assert versioned_enabled(off) is False


def test_the_parser_knows_the_switch():
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert versioned_enabled(parser.parse_args([])) is False
    on = parser.parse_args(["--enable-versioned-lora-publication", "--lora-deployment-epoch", "run_7"])
    assert versioned_enabled(on) is True
    assert (on.lora_deployment_epoch, on.lora_version_capacity) == ("run_7", 2)
