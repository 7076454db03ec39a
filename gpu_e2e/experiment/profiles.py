"""What differs between the profiles beyond the plan's values: how an engine is started, and the model's folder.

`cpu` writes the tiny model and starts SGLang with the stand-ins of `lorafsm_sglang.cpu_profile`; `cuda` takes the
model by path and gives each engine a device of its own.  Nothing else in this package asks for the profile.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_e2e.experiment.plan import Plan, PlanMismatch
from gpu_e2e.guarded import MODULE, GuardPlan
from lorafsm_sglang import EngineProcess
from lorafsm_sglang.cpu_profile import cpu_environment, cpu_flags
from lorafsm_sglang.tiny_model import lora_fixture, write_model
from lorafsm_torch import Snapshot, check_lora, freeze_snapshot

MODEL_VARIABLE = "LORAFSM_MODEL"
"""Environment variable with the folder of the cuda profile's base model."""


def model_folder(plan: Plan, out: Path) -> Path:
    """Where the base model lies; the cpu profile writes it.  PlanMismatch when there is none."""
    if plan.profile == "cpu":
        return write_model(out / "model")
    given = os.environ.get(MODEL_VARIABLE, "")
    if not given or not (Path(given) / "config.json").is_file():
        raise PlanMismatch(
            "model.name", f"set {MODEL_VARIABLE} to the folder of {plan.model.name} {plan.model.revision}"
        )
    return Path(given).resolve()


def process(plan: Plan, model: Path, name: str, device: int, logs: Path, guard: GuardPlan | None) -> EngineProcess:
    """One engine, not started; guarded where there is a plan for the guards; `device` counts from 0."""
    environment, log = _environment(plan, device), logs / f"engine-{name}.log"
    if guard is None:
        return EngineProcess(name, flags(plan, model), environment, log)
    return EngineProcess(name, flags(plan, model), guard.environment(name, environment), log, module=MODULE)


def flags(plan: Plan, model: Path) -> list[str]:
    """Command line of ``sglang.launch_server`` without host and port: the profile's own, then the plan's."""
    if plan.profile == "cpu":
        return [*cpu_flags(model, dtype=plan.engine.dtype), *plan.engine.flags]
    return ["--model-path", str(model), "--device", "cuda", "--dtype", plan.engine.dtype, *plan.engine.flags]


def _environment(plan: Plan, device: int) -> dict[str, str]:
    if plan.profile == "cpu":
        return cpu_environment()
    return {**os.environ, "CUDA_VISIBLE_DEVICES": str(device), "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


def devices() -> int:
    """GPUs that this process sees."""
    import torch

    return int(torch.cuda.device_count())


def free_memory_gib(plan: Plan) -> float:
    """Memory that is free now for engines, in GiB: of the machine, or of the fullest of the devices that are used.

    PlanMismatch where there are too few devices.
    """
    if plan.profile == "cpu":
        import psutil

        return float(psutil.virtual_memory().available) / 2**30
    import torch

    if (here := devices()) < plan.engine.count:
        raise PlanMismatch("engine.count", f"{here} devices are here, {plan.engine.count} are needed")
    return min(float(torch.cuda.mem_get_info(index)[0]) for index in range(plan.engine.count)) / 2**30


def free_disk_gib(folder: Path) -> float:
    """Free space where the results go, in GiB."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free / 2**30


def fixtures(plan: Plan, config: Mapping[str, Any]) -> dict[str, Snapshot]:
    """The plan's LoRA versions for a model of this ``config.json``, frozen; the same bytes on every machine."""
    import torch

    dtype: torch.dtype = getattr(torch, plan.fixtures.dtype)
    made = {}
    for letter in plan.fixtures.digests:
        tensors, peft = lora_fixture(
            letter, rank=plan.fixtures.rank, scale=plan.fixtures.scale, dtype=dtype, config=config
        )
        check_lora(peft, {name: tuple(tensor.shape) for name, tensor in tensors.items()})
        made[letter] = freeze_snapshot(peft, tensors)
    return made


def model_config(model: Path) -> dict[str, Any]:
    """The model's ``config.json``."""
    config: dict[str, Any] = json.loads((model / "config.json").read_text(encoding="utf-8"))
    return config
