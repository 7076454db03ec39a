"""SGLang plugin of the CPU profile: no page-locked memory in the two LoRA modules that ask for it.

Entry point group ``sglang.srt.plugins``, so SGLang loads it in each of its processes.
``sglang.srt.lora.layers`` and ``sglang.srt.lora.backend.torch_backend`` pass ``pin_memory=True``
to torch factories and call ``Tensor.pin_memory()``.  Pinning needs an accelerator; it speeds
copies up and changes no value.  Only the name ``torch`` inside those two modules is replaced:
torch's factories stay as they are for everybody else (model loading compares them by identity).
"""

import functools
import importlib

MODULES = ("sglang.srt.lora.layers", "sglang.srt.lora.backend.torch_backend")
FACTORIES = frozenset({"tensor", "empty", "zeros", "ones", "full", "arange"})


class TorchWithoutPinning:
    """``torch`` as one module sees it; factories drop the ``pin_memory`` argument."""

    def __init__(self, torch):
        self._torch = torch

    def __getattr__(self, name):
        value = getattr(self._torch, name)
        if name not in FACTORIES:
            return value

        @functools.wraps(value)
        def factory(*args, **kwargs):
            kwargs.pop("pin_memory", None)
            return value(*args, **kwargs)

        return factory


def activate():
    """Called by SGLang's plugin loader once per process; does nothing beside an accelerator."""
    import torch

    if torch.accelerator.is_available():
        return
    torch.Tensor.pin_memory = lambda self, *args, **kwargs: self
    for name in MODULES:
        module = importlib.import_module(name)
        module.torch = TorchWithoutPinning(torch)
