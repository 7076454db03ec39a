"""CPU profile: what an unmodified SGLang engine needs in order to serve on a machine without an accelerator.

The folder ``engine-path`` holds stand-ins for ``triton``, ``sgl_kernel`` and
``torchvision`` and one SGLang plugin with its entry point.  It goes on the ``PYTHONPATH`` of engine
processes only; its name is no Python identifier, so nothing in it can be imported from here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

ENGINE_PATH = Path(__file__).resolve().parent / "engine-path"
"""Folder for the ``PYTHONPATH`` of an engine process."""

LORA_TARGET_MODULES = (
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
)
"""Modules of a dense text model that a managed LoRA may touch."""


def cpu_environment(inherit: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment of one engine process.

    ``inherit`` is the environment to start from; ``None`` takes this process's.  An inherited
    ``PYTHONPATH`` is kept behind the stand-ins.  One OpenMP thread: more are slower by an order of
    magnitude as soon as two engines share cores.  Offline: no name is ever looked up on a hub.
    """
    environment = dict(os.environ if inherit is None else inherit)
    inherited_path = environment.get("PYTHONPATH", "")
    environment.update(
        SGLANG_USE_CPU_ENGINE="1",
        HF_HUB_OFFLINE="1",
        TRANSFORMERS_OFFLINE="1",
        OMP_NUM_THREADS="1",
        PYTHONPATH=os.pathsep.join(part for part in (str(ENGINE_PATH), inherited_path) if part),
    )
    return environment


def cpu_flags(
    model_path: Path | str,
    *,
    lora_slots: int = 3,
    max_lora_rank: int = 8,
    target_modules: Sequence[str] = LORA_TARGET_MODULES,
    max_total_tokens: int = 8192,
    max_running_requests: int = 8,
    context_length: int = 2048,
    dtype: str = "float32",
) -> list[str]:
    """Command-line flags of ``sglang.launch_server``, without host and port.

    ``lora_slots`` counts adapters in one batch, the base model included; SGLang pins at most
    ``lora_slots - 1``, so 3 slots carry the two managed versions of RFC 5.2.  Tokens, requests and
    lengths are counts.  ``dtype`` float32 makes repeated greedy scoring agree to about 1e-6.
    """
    if lora_slots < 2:
        raise ValueError(f"lora_slots={lora_slots}: use 2 or more; one slot is always the base model's")
    return [
        *("--model-path", str(model_path)),
        *("--device", "cpu"),
        *("--dtype", dtype),
        "--skip-tokenizer-init",
        "--enable-lora",
        *("--max-loras-per-batch", str(lora_slots)),
        *("--max-loaded-loras", str(lora_slots)),
        *("--max-lora-rank", str(max_lora_rank)),
        *("--lora-target-modules", *target_modules),
        # The default backend is made of Triton kernels.
        *("--lora-backend", "torch_native"),
        "--lora-strict-loading",
        "--disable-overlap-schedule",
        *("--max-total-tokens", str(max_total_tokens)),
        *("--max-running-requests", str(max_running_requests)),
        *("--context-length", str(context_length)),
        # A stream sends each token once, not all tokens again with every token.
        "--incremental-streaming-output",
        # An idle engine would burn a core.
        "--sleep-on-idle",
    ]
