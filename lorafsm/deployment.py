"""What kind of deployment the protocol is checked for, judged at start (RFC "supported configuration", M23).

A deployment describes itself; `faults_in` names each field that is outside and what to do about it.  Nothing is
taken for granted: what is not declared is refused.  An adapter that can ask an engine for its settings judges
those too (`lorafsm_sglang.guard.configuration`).
"""

from __future__ import annotations

from attrs import frozen

from lorafsm.records import Config


@frozen(kw_only=True)
class Cache:
    """A cache on the way of a request: the engine's KV cache, a KV tier outside it, a token or encoder cache.

    `version_aware`: its keys contain the LoRA version (or the engine-local id of one load), so that two versions
    never share an entry.
    """

    name: str
    version_aware: bool


@frozen(kw_only=True)
class Deployment:
    """The facts that are judged.  Sizes are counts of ranks or samples."""

    engines: int
    engine_slots: int  # adapters in one batch, the base model counted
    tensor_parallel: int
    data_parallel: int
    pipeline_parallel: int
    samples: int  # n of a request
    dense_text_model: bool
    base_frozen: bool  # base weights and tokenizer do not change while versions are published
    kv_cache: bool
    caches: tuple[Cache, ...]
    speculative_decoding: bool
    pd_disaggregation: bool
    radix_tree_middleware: bool
    scheduler_overlap: bool
    elastic_scale_out: bool  # engines that come without `engine_join`
    unmanaged_adapters: bool  # adapters that somebody else loads beside the managed ones


@frozen
class Unsupported:
    """One field that is outside the supported configuration, and what to do."""

    field: str
    reason: str

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"


def faults_in(deployment: Deployment, config: Config) -> tuple[Unsupported, ...]:
    """Everything that keeps this deployment from being managed; empty when it is supported."""
    d = deployment
    slots = config.capacity + (2 if d.unmanaged_adapters else 1)
    rules = (
        ("engines", d.engines >= 1, "at least one engine"),
        ("engine_slots", d.engine_slots >= slots, f"needs {slots}: every managed version is pinned, the base model "
         "takes a slot in a batch, and so do unmanaged adapters where they are allowed"),
        ("tensor_parallel", d.tensor_parallel == 1, "must be 1"),
        ("data_parallel", d.data_parallel == 1, "must be 1: a load reaches one replica; make each replica an engine"),
        ("pipeline_parallel", d.pipeline_parallel == 1, "must be 1"),
        ("samples", d.samples == 1, "must be 1: engines count a request of several samples wrongly"),
        ("dense_text_model", d.dense_text_model, "only LoRAs of dense text models are supported"),
        ("base_frozen", d.base_frozen, "base weights and tokenizer must not change while versions are published"),
        ("kv_cache", d.kv_cache, "must stay on: versions are isolated in it, not by switching it off"),
        ("speculative_decoding", not d.speculative_decoding, "switch it off: the draft model has no version"),
        ("pd_disaggregation", not d.pd_disaggregation, "switch it off: a request would use two engines"),
        ("radix_tree_middleware", not d.radix_tree_middleware, "switch it off: its cache does not know versions"),
        ("scheduler_overlap", not d.scheduler_overlap, "switch it off"),
        ("elastic_scale_out", not d.elastic_scale_out, "let new engines join by engine_join only"),
    )  # fmt: skip
    wrong = [Unsupported(name, reason) for name, holds, reason in rules if not holds]
    for cache in d.caches:
        if not cache.version_aware:
            wrong.append(Unsupported("caches", f"{cache.name} does not have the version in its keys; switch it off"))
    return tuple(wrong)


def kv_namespace(lora_name: str | None) -> str:
    """The part of a cache key that keeps versions apart; the base model (None) has one of its own.

    For caches outside the engine, which do not know its local ids: a managed name is immutable, so it will do.
    """
    return "base" if lora_name is None else f"lora/{lora_name}"
