"""Tensors behind lorafsm: snapshots, digests, the artifact store, checks of PEFT adapter folders, the transport."""

try:
    import numpy as _numpy  # noqa: F401
    import safetensors as _safetensors  # noqa: F401
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as _missing:
    from lorafsm.errors import LoraFsmError

    class MissingExtra(LoraFsmError, ImportError):
        """The libraries of the extra `torch` are not installed."""

    raise MissingExtra(
        "MISSING_EXTRA", f"{_missing.name} is not installed; run: pip install 'lorafsm[torch]'", _missing.name
    ) from _missing

from lorafsm_torch.errors import ArtifactCode, ArtifactError, TransferCode, TransferError
from lorafsm_torch.folder import check_adapter_folder
from lorafsm_torch.freeze import Snapshot, freeze_snapshot
from lorafsm_torch.peft import check_lora
from lorafsm_torch.replica import Replica
from lorafsm_torch.store import ArtifactStore

__all__ = [
    "ArtifactCode",
    "ArtifactError",
    "ArtifactStore",
    "Replica",
    "Snapshot",
    "TransferCode",
    "TransferError",
    "check_adapter_folder",
    "check_lora",
    "freeze_snapshot",
]
