"""One Ray cluster for all tests of a session that need one, and registries that end with their test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from lorafsm_ray import RegistrySettings, start_registry, stop_registry
from tests.adapters.journal_stories import CONFIG, EPOCH
from tests.ray.hooks import FOLDER


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address.  The folder of sentences (see hooks) is known to all of its processes."""
    os.environ[FOLDER] = str(tmp_path_factory.mktemp("sentences"))
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=100_000_000,
        log_to_driver=False,
        logging_level="ERROR",
    )
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()


@pytest.fixture(scope="session")
def shared(cluster: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name of a registry that tests share; what one does must not matter to another."""
    start_registry("shared", CONFIG, tmp_path_factory.mktemp("shared") / "journal", epoch=EPOCH)
    yield "shared"
    stop_registry("shared")


@pytest.fixture
def started(cluster: str, tmp_path: Path) -> Iterator[Callable[..., RegistrySettings]]:
    """Start a registry, by default with a journal of its name; it is stopped after the test."""
    names: list[str] = []

    def start(name: str, **changes: Any) -> RegistrySettings:
        names.append(name)
        given = {"config": CONFIG, "journal": tmp_path / f"{name}.journal", "epoch": EPOCH}
        return start_registry(name, **(given | changes))

    yield start
    for name in names:
        stop_registry(name)
