"""Relax's arguments: what the switch adds, what it needs, what it refuses (RFC "supported configuration", M23)."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

from lorafsm.deployment import Cache, Deployment, Unsupported, faults_in
from lorafsm.errors import InvalidField
from lorafsm.identity import fault_in_epoch, fault_in_identifier
from lorafsm.records import MAX_CAPACITY, Config
from lorafsm_relax.switch import versioned_enabled

_CAPACITY = 2
_NEEDED = {
    "lora_adapter_mode": "--lora-adapter-mode",
    "fully_async": "--fully-async",
    "use_agentic_rollout": "--use-agentic-rollout",
}
_SLOTS = ("sglang_max_loras_per_batch", "sglang_max_loaded_loras")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the switch and what belongs to it to Relax's parser."""
    group = parser.add_argument_group("versioned LoRA publication")
    group.add_argument(
        "--enable-versioned-lora-publication",
        action="store_true",
        help="publish each LoRA as an immutable version; sessions stay with theirs; no pause, no flush",
    )
    group.add_argument(
        "--lora-deployment-epoch", default=None, help="1 to 32 of A-Z a-z 0-9 _; new for each deployment"
    )
    group.add_argument("--lora-registry-name", default="lora_version_registry", help="name of the registry's Ray actor")
    group.add_argument("--lora-registry-journal", default=None, help="file of the registry's journal, on a local disk")
    group.add_argument("--lora-artifact-store", default=None, help="folder that trainer and engines share")
    group.add_argument("--lora-version-capacity", type=int, default=_CAPACITY, help="managed versions at a time")


def fill_arguments(args: Any) -> None:
    """Set the SGLang slots that were not given to capacity + 1; off: change nothing.

    Call it before the engines' arguments are made, and `check_arguments` after.
    """
    if not versioned_enabled(args):
        return
    for name in _SLOTS:
        if getattr(args, name, None) is None:
            setattr(args, name, _capacity(args) + 1)


def check_arguments(args: Any) -> None:
    """Raise InvalidField naming the first fault and all others in its message; off: say nothing (M23)."""
    if not versioned_enabled(args):
        return
    faults = [
        Unsupported(name, f"give {flag} as well") for name, flag in _NEEDED.items() if not getattr(args, name, False)
    ]
    faults += [Unsupported(name, fault) for name, fault in _own_faults(args) if fault]
    try:
        faults += faults_in(deployment_of(args), config_of(args))
    except InvalidField as error:
        faults.append(Unsupported(error.field or "args", error.message))
    if faults:
        raise InvalidField(
            faults[0].field,
            f"--enable-versioned-lora-publication is not possible: {'; '.join(map(str, faults))}",
        )


def _own_faults(args: Any) -> list[tuple[str, str | None]]:
    journal, store = getattr(args, "lora_registry_journal", None), getattr(args, "lora_artifact_store", None)
    return [
        ("lora_deployment_epoch", fault_in_epoch(getattr(args, "lora_deployment_epoch", None))),
        ("lora_registry_name", fault_in_identifier(getattr(args, "lora_registry_name", None))),
        ("lora_registry_journal", None if journal else "name a file on a local disk"),
        ("lora_artifact_store", None if store else "name a folder that trainer and engines share"),
    ]


def _capacity(args: Any) -> int:
    return int(getattr(args, "lora_version_capacity", _CAPACITY))


def config_of(args: Any, base_fingerprint: str = "") -> Config:
    """The registry's config of this deployment; raises InvalidField."""
    capacity, slots = _capacity(args), _engine_slots(args)
    if not 1 <= capacity <= MAX_CAPACITY:
        raise InvalidField("lora_version_capacity", f"must be 1 to {MAX_CAPACITY}")
    return Config(capacity=capacity, engine_slots=max(slots, capacity + 1), base_fingerprint=base_fingerprint)


def _engine_slots(args: Any) -> int:
    """Adapters in one batch and in memory, the smaller; memory without a limit does not count."""
    given = [getattr(args, name, None) for name in _SLOTS]
    if given[0] is None:
        raise InvalidField(_SLOTS[0], "is not set; call fill_arguments first")
    return min(int(slots) for slots in given if slots is not None)


@frozen
class _Fact:
    """One argument that is judged: its name in Relax, and what it says about the deployment."""

    name: str
    says: Callable[[Any], Any]


# Field of `Deployment` -> the argument that decides it.  An argument that Relax does not have is a fault: nothing is
# taken for granted.
_FACTS: Mapping[str, _Fact] = {
    "data_parallel": _Fact("sglang_dp_size", lambda v: int(v or 1)),
    "pipeline_parallel": _Fact("sglang_pp_size", lambda v: int(v or 1)),
    "dense_text_model": _Fact("num_experts", lambda v: not v),
    "base_frozen": _Fact("lora_adapter_mode", bool),
    "kv_cache": _Fact("sglang_disable_radix_cache", lambda v: not v),
    "speculative_decoding": _Fact("sglang_speculative_algorithm", lambda v: v is not None),
    "pd_disaggregation": _Fact("sglang_disaggregation_mode", lambda v: v not in (None, "null")),
    "radix_tree_middleware": _Fact(
        "slime_router_middleware_paths", lambda v: any("RadixTreeMiddleware" in path for path in v or ())
    ),
    "scheduler_overlap": _Fact("sglang_disable_overlap_schedule", lambda v: not v),
    "unmanaged_adapters": _Fact("sglang_lora_paths", bool),
}
# Optional parts of Relax: absent means that the part is not there.
_OPTIONAL: Mapping[str, tuple[str, ...]] = {
    "elastic_scale_out": ("autoscaler_config", "enable_elastic_rollout"),
    "multimodal": ("multimodal_keys",),
}
_CACHES: Mapping[str, Callable[[Any], Cache | None]] = {
    "sglang_enable_lmcache": lambda v: Cache(name="LMCache", version_aware=False) if v else None,
    "sglang_hicache_storage_backend": lambda v: Cache(name=f"HiCache storage {v}", version_aware=False) if v else None,
    # SGLang's own tiers have the engine-local id of one load in their keys.
    "sglang_enable_hierarchical_cache": lambda v: Cache(name="HiCache", version_aware=True) if v else None,
}


def deployment_of(args: Any) -> Deployment:
    """What Relax's arguments say about the deployment; raises InvalidField for one that is missing."""
    facts = {field: fact.says(_given(args, fact.name)) for field, fact in _FACTS.items()}
    per_engine, gpus = int(_given(args, "rollout_num_gpus_per_engine")), int(_given(args, "rollout_num_gpus"))
    caches = (made(getattr(args, name, None)) for name, made in _CACHES.items())
    facts["dense_text_model"] = facts["dense_text_model"] and not _any(args, "multimodal")
    return Deployment(
        engines=gpus // max(1, per_engine),
        engine_slots=_engine_slots(args),
        tensor_parallel=per_engine // max(1, facts["pipeline_parallel"] * facts["data_parallel"]),
        samples=1,  # an agentic request has one; `versioned_payload` refuses another n
        caches=tuple(cache for cache in caches if cache is not None),
        elastic_scale_out=_any(args, "elastic_scale_out"),
        **facts,
    )


def _given(args: Any, name: str) -> Any:
    if not hasattr(args, name):
        raise InvalidField(name, "is not among the arguments, so nobody knows; set it")
    return getattr(args, name)


def _any(args: Any, part: str) -> bool:
    return any(getattr(args, name, None) for name in _OPTIONAL[part])
