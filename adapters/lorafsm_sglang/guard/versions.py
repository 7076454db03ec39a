"""Which SGLang versions the guard knows, and the self-test that their names and shapes are still what it hooks.

A version that is not in the table is not guarded: the engine then runs without attestation and no publisher uses
it.  Guarding wrongly would be worse.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from attrs import frozen

GUARD_VERSION = "1"


@frozen
class Hooked:
    """One method that the guard overrides or calls: its kind and the parameters it must have."""

    kind: str  # async, asyncgen or sync
    parameters: tuple[str, ...]


_MANAGER_0_5_23: Mapping[str, Hooked] = {
    "__init__": Hooked("sync", ("self", "server_args", "port_args", "start_pd_bootstrap_service")),
    "init_lora": Hooked("sync", ("self",)),
    "generate_request": Hooked("asyncgen", ("self", "obj", "request")),
    "_resolve_lora_path": Hooked("async", ("self", "obj")),
    "_release_lora_once": Hooked("sync", ("self", "state")),
    "_release_req_states_on_failure": Hooked("sync", ("self", "request_states")),
    "_unload_lora_adapter_locked": Hooked("async", ("self", "obj")),
    "abort_request": Hooked("sync", ("self", "rid", "abort_all")),
    "auto_create_handle_loop": Hooked("sync", ("self",)),
    "load_lora_adapter": Hooked("async", ("self", "obj", "_")),
    "load_lora_adapter_from_tensors": Hooked("async", ("self", "obj", "_")),
    "unload_lora_adapter": Hooked("async", ("self", "obj", "_")),
    "update_weights_from_disk": Hooked("async", ("self", "obj", "request")),
    "update_weights_from_distributed": Hooked("async", ("self", "obj", "request")),
    "update_weights_from_tensor": Hooked("async", ("self", "obj", "request")),
    "update_weights_from_ipc": Hooked("async", ("self", "obj", "request")),
    "begin_weight_update": Hooked("async", ("self", "obj", "request")),
    "release_memory_occupation": Hooked("async", ("self", "obj", "request")),
    "open_session": Hooked("async", ("self", "obj", "request")),
    "close_session": Hooked("async", ("self", "obj", "request")),
}
_REGISTRY_0_5_23: Mapping[str, Hooked] = {
    "__init__": Hooked("sync", ("self", "lora_paths")),
    "register": Hooked("async", ("self", "lora_ref")),
    "unregister": Hooked("async", ("self", "lora_name")),
    "get_all_adapters": Hooked("sync", ("self",)),
}
_COUNTER_0_5_23: Mapping[str, Hooked] = {
    "value": Hooked("sync", ("self",)),
    "increment": Hooked("async", ("self", "n", "notify_all")),
    "decrement": Hooked("async", ("self", "n", "notify_all")),
}


_OLDER: Mapping[str, Hooked] = {
    **{k: v for k, v in _MANAGER_0_5_23.items() if k not in ("_release_lora_once", "begin_weight_update")},
    "_handle_abort_req": Hooked("sync", ("self", "recv_obj")),
    "_handle_batch_output": Hooked("async", ("self", "recv_obj")),
}
_MANAGER_0_5_21: Mapping[str, Hooked] = {
    **_OLDER,
    "_release_req_states_on_failure": Hooked("sync", ("self", "rids")),
    "_send_one_request": Hooked("async", ("self", "tokenized_obj")),
    "_send_batch_request": Hooked("async", ("self", "tokenized_objs")),
    "begin_weight_update": _MANAGER_0_5_23["begin_weight_update"],
}
_MANAGER_0_5_17: Mapping[str, Hooked] = {
    **{k: v for k, v in _OLDER.items() if k != "_release_req_states_on_failure"},
    "_discard_pending_req_states": Hooked("sync", ("self", "obj", "lifecycle_ids")),
    "_send_one_request": Hooked("sync", ("self", "tokenized_obj")),
    "_send_batch_request": Hooked("sync", ("self", "tokenized_objs")),
}
_MANAGER_0_5_15: Mapping[str, Hooked] = {
    **_MANAGER_0_5_17,
    "__init__": Hooked("sync", ("self", "server_args", "port_args")),
    "_discard_pending_req_states": Hooked("sync", ("self", "obj")),
}


@frozen
class Supported:
    """What the guard rests on in one version of SGLang.

    `classes` by name.  `releases_once`: SGLang itself releases each reference once (n = 1).  `lists_by_unload`: the
    unload of an id that nobody has lists what is there; before 0.5.21 it ends the scheduler.  `aborts_cancelled`: a
    request whose task is cancelled is aborted.
    """

    classes: Mapping[str, Mapping[str, Hooked]]
    releases_once: bool = True
    lists_by_unload: bool = True
    aborts_cancelled: bool = True


def _with(manager: Mapping[str, Hooked]) -> Mapping[str, Mapping[str, Hooked]]:
    return {"TokenizerManager": manager, "LoRARegistry": _REGISTRY_0_5_23, "ConcurrentCounter": _COUNTER_0_5_23}


SUPPORTED: Mapping[str, Supported] = {
    "0.5.15.post1": Supported(
        _with(_MANAGER_0_5_15), releases_once=False, lists_by_unload=False, aborts_cancelled=False
    ),
    "0.5.17": Supported(_with(_MANAGER_0_5_17), releases_once=False, lists_by_unload=False),
    "0.5.21": Supported(_with(_MANAGER_0_5_21), releases_once=False),
    "0.5.23": Supported(_with(_MANAGER_0_5_23)),
}
"""0.5.23 was run as whole engines, the others as the real TokenizerManager beside a stand-in scheduler."""


def self_test(version: str, classes: Mapping[str, type]) -> tuple[str, ...]:
    """What keeps the guard from hooking these classes of SGLang `version`; empty: all is as the table says."""
    supported = SUPPORTED.get(version)
    if supported is None:
        return (f"SGLang {version} is not in the table ({', '.join(SUPPORTED)}); it is not guarded",)
    faults = []
    for name, hooks in supported.classes.items():
        for method, wanted in hooks.items():
            found = getattr(classes.get(name), method, None)
            if found is None:
                faults.append(f"{name}.{method} is not there")
            elif (seen := _shape(found)) != wanted:
                faults.append(f"{name}.{method} is {seen}, not {wanted}")
    return tuple(faults)


def _shape(method: object) -> Hooked:
    assert callable(method)
    if inspect.isasyncgenfunction(method):
        kind = "asyncgen"
    else:
        kind = "async" if inspect.iscoroutinefunction(method) else "sync"
    return Hooked(kind, tuple(inspect.signature(method).parameters))
