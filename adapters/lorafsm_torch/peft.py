"""Whether a PEFT config and tensor shapes make one LoRA adapter that SGLang serves as trained."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from lorafsm_torch.errors import invalid

CONFIG_FILE = "adapter_config.json"

_FACTOR = re.compile(r"(?P<module>.+)\.lora_(?P<kind>embedding_)?(?P<side>[AB])(?P<suffix>\.weight)?\Z")


def check_lora(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse (ARTIFACT_INVALID) an adapter that an engine would refuse, or serve otherwise than it was trained.

    Each module needs both factors: A of shape (..., r, inputs) and B of shape (..., outputs, r), with the `r` of
    the config; a leading axis, if any, counts experts.  `field` names the config entry or the tensor.
    """
    rank = _checked_rank(config)
    if not shapes:
        raise invalid("tensors", "the adapter has no tensor; export it again")
    for name in sorted(shapes):
        match = _FACTOR.match(name)
        if match is None or bool(match["kind"]) == bool(match["suffix"]):
            raise invalid(name, "is no factor of a LoRA (lora_A.weight, lora_B.weight); export the LoRA alone")
        other = "B" if match["side"] == "A" else "A"
        partner = f"{match['module']}.lora_{match['kind'] or ''}{other}{match['suffix'] or ''}"
        if partner not in shapes:
            raise invalid(partner, f"is missing, though {name} is there; export the adapter again")
        _check_factor(name, match["side"], shapes[name], rank)


def _checked_rank(config: Mapping[str, Any]) -> int:
    if config.get("peft_type", "LORA") != "LORA":
        raise invalid(f"{CONFIG_FILE}: peft_type", "must be LORA; other kinds are not served")
    rank = config.get("r")
    if type(rank) is not int or rank < 1:
        raise invalid(f"{CONFIG_FILE}: r", "must be the rank, an integer of at least 1")
    alpha = config.get("lora_alpha")
    if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not math.isfinite(alpha):
        raise invalid(f"{CONFIG_FILE}: lora_alpha", "must be a finite number")
    modules = config.get("target_modules")
    if not modules or not (isinstance(modules, str) or _is_strings(modules)):
        raise invalid(f"{CONFIG_FILE}: target_modules", "must be a list of module names, or a string")
    # SGLang scales every module by lora_alpha / r whatever these say.
    for entry in ("rank_pattern", "alpha_pattern", "use_rslora"):
        if config.get(entry):
            raise invalid(f"{CONFIG_FILE}: {entry}", "is not served; engines scale by lora_alpha / r")
    if config.get("use_dora"):
        raise invalid(f"{CONFIG_FILE}: use_dora", "is not served; train without DoRA")
    if config.get("bias", "none") != "none":
        raise invalid(f"{CONFIG_FILE}: bias", "must be none; trained biases are not served")
    return rank


def _is_strings(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(item, str) and item for item in value)


def _check_factor(name: str, side: str, shape: tuple[int, ...], rank: int) -> None:
    if len(shape) not in (2, 3):
        raise invalid(name, f"has shape {list(shape)}; a factor has two axes, or three with experts first")
    seen = shape[-2] if side == "A" else shape[-1]
    if seen != rank:
        raise invalid(name, f"has shape {list(shape)}, hence rank {seen}, but r is {rank} in {CONFIG_FILE}")


def check_expected_shapes(
    shapes: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]], where: str
) -> None:
    """Refuse (ARTIFACT_INVALID) tensors that are missing, foreign or of another shape than `expected`; `where` is
    the place, in words, that the tensors come from."""
    for name in sorted(expected):
        if name not in shapes:
            raise invalid(name, f"is missing in {where}; export the adapter again")
        if tuple(shapes[name]) != tuple(expected[name]):
            raise invalid(name, f"has shape {list(shapes[name])} in {where}, but must have {list(expected[name])}")
    if foreign := sorted(set(shapes) - set(expected)):
        raise invalid(foreign[0], f"is in {where} but belongs to no expected tensor; remove it")
