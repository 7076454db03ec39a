"""Starting, finding and stopping a registry in a Ray cluster."""

from __future__ import annotations

import time
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from lorafsm.errors import LoraFsmError
from lorafsm.records import Config
from lorafsm_journal import Level
from lorafsm_ray.actor import RegistryActor
from lorafsm_ray.calls import NAMESPACE, RayCalls
from lorafsm_ray.client import AsyncClient, BlockingClient
from lorafsm_ray.patience import PATIENT, Patience
from lorafsm_ray.settings import RegistrySettings, require_name

_MOST_AT_ONCE = 10_000  # calls that an actor holds open; each long poll is one


def start_registry(
    name: str,
    config: Config,
    journal: str | PathLike[str],
    *,
    epoch: str,
    level: Level | str = Level.PROCESS,
    epochs: str | PathLike[str] | None = None,
    metrics_host: str = "127.0.0.1",
    metrics_port: int | None = None,
    on_event: str | None = None,
    node_id: str | None = None,
    timeout_s: float = 60.0,
) -> RegistrySettings:
    """Start the registry of this name, or find it running with the same settings; returns when it answers.

    The actor is named, detached and restarted whenever its process ends; it then recovers from its journal.  It
    stays on one node, this one unless `node_id` names another, because the journal lies on that node's disk.  Raises
    InvalidField, JournalError (JOURNAL_LOCKED: another registry writes this journal), REGISTRY_EXISTS (it runs with
    other settings), RAY_NOT_CONNECTED, and REGISTRY_NOT_STARTED when it does not answer in time.
    """
    try:
        asked = Level(level)
    except ValueError:
        raise LoraFsmError("BAD_INPUT", f"must be one of {', '.join(Level)}", "level") from None
    settings = RegistrySettings(
        name=name,
        epoch=epoch,
        journal=str(Path(journal).absolute()),
        config=config,
        level=asked,
        epochs=None if epochs is None else str(Path(epochs).absolute()),
        metrics_host=metrics_host,
        metrics_port=metrics_port,
        on_event=on_event,
    )
    if not ray.is_initialized():
        raise LoraFsmError("RAY_NOT_CONNECTED", "this process is in no Ray cluster; call ray.init first")
    actor = _actor_for(settings, node_id or ray.get_runtime_context().get_node_id())
    try:
        running = ray.get(actor.settings.remote(), timeout=timeout_s)
        if running != settings:
            raise LoraFsmError("REGISTRY_EXISTS", f"registry {name} runs as {running}; stop it first, or name another")
        ray.get(actor.start.remote(), timeout=timeout_s)
    except RayTaskError as error:
        ray.kill(actor, no_restart=True)
        raise error.cause if isinstance(error.cause, LoraFsmError) else error from error
    except RayError as error:
        raise LoraFsmError("REGISTRY_NOT_STARTED", f"registry {name} does not answer: {error}") from error
    return settings


def stop_registry(name: str, *, timeout_s: float = 30.0) -> bool:
    """Close the journal and end the actor for good; returns once the name is free; False: there was none."""
    calls = RayCalls(require_name(name))
    try:
        actor = calls.find()
    except LoraFsmError as error:
        if error.code == "UNKNOWN_REGISTRY":
            return False
        raise
    with suppress(RayError):  # whatever became of it, its lock ends with its process
        ray.get(actor.stop.remote(), timeout=timeout_s)
    ray.kill(actor, no_restart=True)
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        try:
            ray.get_actor(name, namespace=NAMESPACE)
        except ValueError:
            return True
        time.sleep(0.02)
    raise LoraFsmError("REGISTRY_NOT_STOPPED", f"registry {name} is still there {timeout_s:g} s after it was killed")


def connect(name: str, patience: Patience = PATIENT, *, coalesce: bool = True) -> AsyncClient:
    """A client for one event loop; raises UNKNOWN_REGISTRY when there is no such registry now."""
    calls = RayCalls(require_name(name))
    calls.find()
    return AsyncClient(calls, name, patience, coalesce=coalesce)


def connect_blocking(name: str, patience: Patience = PATIENT) -> BlockingClient:
    """A client for threads; raises UNKNOWN_REGISTRY when there is no such registry now."""
    calls = RayCalls(require_name(name))
    calls.find()
    return BlockingClient(calls, patience)


def _actor_for(settings: RegistrySettings, node_id: str) -> ActorHandle:
    # Lost calls are repeated by the client, which knows its deadline, and by nobody else (max_task_retries=0).
    remote: Any = ray.remote(RegistryActor)
    return remote.options(
        name=settings.name,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        num_cpus=0,
        max_restarts=-1,
        max_task_retries=0,
        max_concurrency=_MOST_AT_ONCE,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
    ).remote(settings, own_process=True)
