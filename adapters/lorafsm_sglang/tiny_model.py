"""A tiny random Qwen3 and LoRA fixtures that differ clearly: the same bytes on every machine and run.

Needs torch, transformers and safetensors (imported when called).  Meant for tests and the CPU demo: the
model says nothing sensible, but it is a real checkpoint in the Hugging Face layout and the adapters are
real PEFT adapters.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

VOCAB_SIZE = 512
LORA_RANK = 8
FIXTURES = ("A", "B", "C", "D")

_HIDDEN = 64
_INTERMEDIATE = 160
_LAYERS = 2
_HEADS = 4
_KV_HEADS = 2
_HEAD_DIM = 16
_MAX_POSITIONS = 4096

_TINY = {
    "hidden_size": _HIDDEN,
    "intermediate_size": _INTERMEDIATE,
    "num_hidden_layers": _LAYERS,
    "num_attention_heads": _HEADS,
    "num_key_value_heads": _KV_HEADS,
    "head_dim": _HEAD_DIM,
}


def _modules(config: Mapping[str, Any]) -> dict[str, tuple[str, int, int]]:
    """Module name -> (block, inputs, outputs); PEFT's A is (rank, inputs) and B is (outputs, rank)."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    return {
        "q_proj": ("self_attn", hidden, queries),
        "k_proj": ("self_attn", hidden, keys),
        "v_proj": ("self_attn", hidden, keys),
        "o_proj": ("self_attn", queries, hidden),
        "gate_proj": ("mlp", hidden, inner),
        "up_proj": ("mlp", hidden, inner),
        "down_proj": ("mlp", inner, hidden),
    }


def write_model(folder: Path | str, *, seed: int = 20) -> Path:
    """Write the base model (float32, 512 token ids, context of 4096 tokens) and return its folder."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    config = Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=_HIDDEN,
        intermediate_size=_INTERMEDIATE,
        num_hidden_layers=_LAYERS,
        num_attention_heads=_HEADS,
        num_key_value_heads=_KV_HEADS,
        head_dim=_HEAD_DIM,
        max_position_embeddings=_MAX_POSITIONS,
        tie_word_embeddings=False,
        # Wide weights, so that logits are far from flat and adapters have something to change.
        initializer_range=0.2,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config).to(torch.float32)
    target = Path(folder)
    model.save_pretrained(target)
    return target


def lora_fixture(
    name: str,
    *,
    rank: int = LORA_RANK,
    scale: float = 0.15,
    dtype: torch.dtype | None = None,
    config: Mapping[str, Any] | None = None,
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Tensors and PEFT configuration of one adapter for the model of `write_model`, or of another Qwen3's `config`.

    The name is the seed: another name is another adapter.  ``scale`` is the standard deviation of both
    factors; ``dtype`` is float32 unless given.  All seven linear modules of every layer are adapted.
    """
    import torch

    seed = int.from_bytes(hashlib.sha256(f"lora fixture {name}".encode()).digest()[:6], "big")
    generator = torch.Generator().manual_seed(seed)

    def draw(rows: int, columns: int) -> torch.Tensor:
        values = torch.randn(rows, columns, generator=generator) * scale
        return values.to(dtype or torch.float32)

    shape = _TINY if config is None else config
    tensors: dict[str, torch.Tensor] = {}
    for layer in range(shape["num_hidden_layers"]):
        for module, (block, inputs, outputs) in _modules(shape).items():
            prefix = f"base_model.model.model.layers.{layer}.{block}.{module}"
            tensors[f"{prefix}.lora_A.weight"] = draw(rank, inputs)
            tensors[f"{prefix}.lora_B.weight"] = draw(outputs, rank)
    return tensors, peft_config(rank)


def peft_config(rank: int = LORA_RANK) -> dict[str, Any]:
    """The ``adapter_config.json`` of the fixtures; scaling alpha / rank is 2."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "target_modules": sorted(_modules(_TINY)),
        "modules_to_save": None,
        "use_dora": False,
        "use_rslora": False,
    }


def write_lora(folder: Path | str, name: str, **options: Any) -> Path:
    """Write fixture ``name`` as a PEFT adapter folder and return it; ``options`` as for `lora_fixture`."""
    from safetensors.torch import save_file

    tensors, peft = lora_fixture(name, **options)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    save_file(tensors, target / "adapter_model.safetensors")
    text = json.dumps(peft, indent=2, sort_keys=True)
    (target / "adapter_config.json").write_text(text + "\n", encoding="utf-8")
    return target
