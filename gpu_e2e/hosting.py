"""Where a run's registry lives: a Ray actor in a cluster that is the run's own, or this process.

Both are journaled, and both are a `RegistryClient`: what goes on around them is the same.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, TypeAlias

from lorafsm.errors import InvalidField
from lorafsm.records import Config
from lorafsm_asyncio import LocalClient, RegistryClient
from lorafsm_journal import JournaledRegistry

Kind: TypeAlias = Literal["ray", "local"]
KINDS: tuple[Kind, ...] = ("ray", "local")

_OBJECT_STORE_BYTES = 100_000_000  # nothing large is ever put into it; Ray takes no less than about 75 MB


def chosen(kind: str = "") -> Kind:
    """The kind of this name; left out: `ray` where Ray is installed.  Raises InvalidField."""
    has_ray = find_spec("ray") is not None
    if kind == "ray" and not has_ray:
        raise InvalidField("registry", "ray is not installed here; pip install 'lorafsm[ray]', or take local")
    for known in KINDS:
        if kind == known:
            return known
    if kind:
        raise InvalidField("registry", f"must be one of {', '.join(KINDS)}")
    return "ray" if has_ray else "local"


async def process_of(client: RegistryClient) -> int:
    """The pid of the registry's process: its actor's, or this one's."""
    live = getattr(client, "live", None)
    return os.getpid() if live is None else int((await live()).pid)


@contextmanager
def hosted(kind: Kind, journal: Path, config: Config, epoch: str) -> Iterator[RegistryClient]:
    """A client of a new registry with this journal, for one event loop; the registry ends with the block."""
    if kind == "ray":
        with _in_ray(journal, config, epoch) as client:
            yield client
        return
    with JournaledRegistry.open(journal, config, epoch) as host:
        yield LocalClient(host)


@contextmanager
def _in_ray(journal: Path, config: Config, epoch: str) -> Iterator[RegistryClient]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a demo tells nobody
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # the new way, without its warning
    import ray

    from lorafsm_ray import connect, start_registry, stop_registry

    ended_by = signal.getsignal(signal.SIGTERM)
    ray.init(
        address="local",  # never somebody's cluster, whatever RAY_ADDRESS says
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=_OBJECT_STORE_BYTES,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    try:
        if callable(ended_by):
            signal.signal(signal.SIGTERM, ended_by)  # Ray's own handler prints a stack and aborts
        start_registry(epoch, config, journal, epoch=epoch)
        try:
            yield connect(epoch)
        finally:
            stop_registry(epoch)
    finally:
        ray.shutdown()
