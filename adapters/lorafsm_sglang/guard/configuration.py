"""Which engine configurations the guard supports; every other one is refused with a sentence that says why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from lorafsm.identity import is_managed

Rule: TypeAlias = Callable[[Any], bool]

# Name of the setting -> (whether a value is supported, what to do about one that is not).
_RULES: Mapping[str, tuple[Rule, str]] = {
    "enable_lora": (lambda v: v is True, "start with --enable-lora"),
    "lora_strict_loading": (lambda v: v is True, "start with --lora-strict-loading, or unmatched weights are dropped"),
    "enable_lora_overlap_loading": (lambda v: not v, "a load must be complete when it is answered; leave it off"),
    "disable_radix_cache": (lambda v: not v, "the KV cache must be on; leave --disable-radix-cache out"),
    "disable_overlap_schedule": (lambda v: v is True, "start with --disable-overlap-schedule"),
    "tokenizer_worker_num": (lambda v: v == 1, "each worker would count requests for itself; use 1"),
    "tp_size": (lambda v: v == 1, "tensor parallelism is not supported; use 1"),
    "pp_size": (lambda v: v == 1, "pipeline parallelism is not supported; use 1"),
    "dp_size": (lambda v: v == 1, "data parallelism is not supported; use 1"),
    "nnodes": (lambda v: v == 1, "one node an engine"),
    "speculative_algorithm": (lambda v: v is None, "speculative decoding is not supported"),
    "disaggregation_mode": (lambda v: v in (None, "null"), "PD disaggregation is not supported"),
    # Of the environment: requests that come by it never meet SGLang's tokenizer manager.
    "rust_server": (lambda v: v is False, "the Rust server passes the guard by; unset SGLANG_RUST_SERVER"),
}

SETTINGS = (*_RULES, "max_loras_per_batch", "max_loaded_loras", "lora_paths")
"""The settings that are judged and attested: server arguments, and which server it is."""


def faults_in(configuration: Mapping[str, Any], *, capacity: int, unmanaged: bool) -> tuple[str, ...]:
    """Each setting that the guard does not support and what to do about it; empty when all are (M23).

    A setting that is missing is a fault: nothing is taken for granted.
    """
    faults = [f"{name} is not known" for name in SETTINGS if name not in configuration]
    if faults:
        return tuple(faults)
    for name, (supported, advice) in _RULES.items():
        if not supported(configuration[name]):
            faults.append(f"{name} is {configuration[name]!r}: {advice}")
    wanted = capacity + (2 if unmanaged else 1)
    slots, loaded = configuration["max_loras_per_batch"], configuration["max_loaded_loras"]
    why = f"{capacity} managed versions, the base model{' and unmanaged adapters' if unmanaged else ''}"
    if type(slots) is not int or slots < wanted:
        faults.append(f"max_loras_per_batch is {slots!r}: {why} need {wanted}")
    if loaded is not None and (type(loaded) is not int or loaded < wanted):
        faults.append(f"max_loaded_loras is {loaded!r}: {why} need {wanted}")
    names = tuple(configuration["lora_paths"] or ())
    if any(is_managed(name) for name in names):
        faults.append("lora_paths holds a managed name: those are loaded by orders only")
    elif names and not unmanaged:
        faults.append(f"lora_paths holds {names[0]!r}: unmanaged adapters were not opted in")
    return tuple(faults)


def agent_slots(configuration: Mapping[str, Any], *, unmanaged: bool) -> int:
    """Managed adapters that the engine can hold: one slot is the base model's, one the unmanaged ones'."""
    return max(1, int(configuration["max_loras_per_batch"]) - (2 if unmanaged else 1))
