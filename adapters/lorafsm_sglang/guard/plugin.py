"""The official SGLang plugin (entry point group `sglang.srt.plugins`): puts the guard into the tokenizer process.

SGLang loads plugins in each of its processes and only logs one that raises: the engine then runs unguarded and
without the attestation route, and no publisher uses it.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from lorafsm_sglang.guard.settings import LAUNCHER, GuardSettings, settings_from
from lorafsm_sglang.guard.versions import SUPPORTED, self_test

log = logging.getLogger(__name__)

TARGET = "sglang.srt.managers.tokenizer_manager.TokenizerManager"


class GuardRefused(RuntimeError):
    """This SGLang cannot be guarded; the engine must not be trusted with managed versions."""


def activate() -> None:
    """Called by SGLang's plugin loader in each process; does nothing where no guard was asked for, or the second time.

    The entry point may be seen twice: lorafsm is installed, and its folder is on PYTHONPATH as well.
    """
    settings = settings_from(os.environ)
    if settings is None or os.environ.get(LAUNCHER) in (str(os.getppid()), str(os.getpid())):
        return
    os.environ[LAUNCHER] = str(os.getpid())
    from sglang.srt.managers.tokenizer_manager import TokenizerManager
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(TARGET, guarded_class(TokenizerManager, settings), HookType.REPLACE)


def guarded_class(base: Any, settings: GuardSettings) -> Any:
    """The guarded subclass of SGLang's TokenizerManager; GuardRefused where this SGLang is not the one we know."""
    import sglang
    from sglang.srt.lora.lora_registry import LoRARegistry
    from sglang.srt.utils import ConcurrentCounter

    from lorafsm_sglang.guard.older import settling
    from lorafsm_sglang.guard.tokenizer import guarded

    classes = {"TokenizerManager": base, "LoRARegistry": LoRARegistry, "ConcurrentCounter": ConcurrentCounter}
    if faults := self_test(sglang.__version__, classes):
        raise GuardRefused("; ".join(faults))
    supported = SUPPORTED[sglang.__version__]
    return guarded(base if supported.releases_once else settling(base, supported), settings, supported)


def init_guarded_tokenizer_manager(server_args: Any, port_args: Any) -> Any:
    """For `launch_server(init_tokenizer_manager_func=...)`, where SGLang has no plugins, or they are switched off."""
    from sglang.srt.entrypoints.engine import init_tokenizer_manager
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    settings = settings_from(os.environ)
    if settings is None:
        raise GuardRefused("the environment names no guard; see lorafsm_sglang.guard.guard_environment")
    guarded_already = hasattr(TokenizerManager, "guarded_from")  # the plugin ran as well
    manager = TokenizerManager if guarded_already else guarded_class(TokenizerManager, settings)
    return init_tokenizer_manager(server_args, port_args, manager)
