"""The reference that every answer is compared with: the same weights in Hugging Face transformers, no engine involved.

For each version the LoRA is merged into a copy of the base weights (W + alpha / r * B A), and an answer's tokens
are scored under their full prefix by one forward pass.  Two programs that share no inference code must agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class Reference:
    """Log-probabilities (nats, float32) of given token ids under the base model or one version."""

    def __init__(self, model_path: Path) -> None:
        import torch
        import transformers
        from transformers import Qwen3ForCausalLM

        transformers.utils.logging.disable_progress_bar()
        torch.set_num_threads(1)
        self._torch = torch
        self._model_path = model_path
        self._class: Any = Qwen3ForCausalLM
        self._models: dict[str, Any] = {"base": self._load()}

    def _load(self) -> Any:
        return self._class.from_pretrained(self._model_path, dtype=self._torch.float32).eval()

    def add(self, version: str, tensors: Mapping[str, Any], config: Mapping[str, Any]) -> None:
        """Merge a LoRA in PEFT naming into a fresh copy of the base model."""
        torch = self._torch
        model = self._load()
        weights = dict(model.named_parameters())
        scale = config["lora_alpha"] / config["r"]
        with torch.no_grad():
            for name, a in tensors.items():
                if not name.endswith(".lora_A.weight"):
                    continue
                b = tensors[name.replace(".lora_A.", ".lora_B.")]
                target = name.removeprefix("base_model.model.").replace(".lora_A.weight", ".weight")
                weights[target] += scale * (b.float() @ a.float())
        self._models[version] = model

    def versions(self) -> tuple[str, ...]:
        """The names that can be asked for; "base" among them."""
        return tuple(self._models)

    def score(self, version: str, prompt: Sequence[int], answer: Sequence[int]) -> list[float]:
        """Log-probability of each answer token after the prompt and the tokens before it."""
        torch = self._torch
        ids = torch.tensor([[*prompt, *answer]])
        with torch.no_grad():
            logits = self._models[version](ids).logits[0, len(prompt) - 1 : -1]
        nats = torch.log_softmax(logits.float(), dim=-1)
        return [float(nats[i, token]) for i, token in enumerate(answer)]

    def first(self, version: str, prompt: Sequence[int]) -> Any:
        """All log-probabilities of the next token after the prompt, shape [vocabulary]."""
        torch = self._torch
        with torch.no_grad():
            logits = self._models[version](torch.tensor([list(prompt)])).logits[0, -1]
        return torch.log_softmax(logits.float(), dim=-1)
