"""The actor's class in this process, without Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lorafsm_ray import RegistryActor, RegistrySettings
from tests.adapters.journal_stories import CONFIG, EPOCH

HOOKS = "tests.ray.hooks"


class TickingClock:
    """A millisecond more each time it is asked."""

    def __init__(self, start: int = 1_000) -> None:
        self.now = start

    def __call__(self) -> int:
        self.now += 1
        return self.now


def settings(folder: Path, name: str = "local", **changes: Any) -> RegistrySettings:
    """Settings with a journal in this folder."""
    given = {"name": name, "epoch": EPOCH, "journal": str(folder / f"{name}.journal"), "config": CONFIG}
    return RegistrySettings(**(given | changes))


def local_actor(folder: Path, **changes: Any) -> RegistryActor:
    """The plain class, its clock ticking."""
    return RegistryActor(settings(folder, **changes), TickingClock())
