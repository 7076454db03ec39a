"""What the tests give as `on_event`; each name is imported by the actor's own process."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

from attrs import evolve

from lorafsm.events import Event
from lorafsm_ray import Seen

FOLDER = "LORAFSM_TEST_SENTENCES"
seen: list[Seen] = []


def remember(happened: Seen) -> None:
    """Keep it, for a test that runs the actor's class in its own process."""
    seen.append(happened)


def broken(happened: Seen) -> None:
    """A hook that never works."""
    raise RuntimeError(f"no room for {type(happened.event).__name__}")


def sentence(event: Event) -> str:
    """The name of the file that sentences a process to die of this event, whenever it comes."""
    return hashlib.sha256(repr(evolve(event, now=0)).encode()).hexdigest()


def _killer(name: str) -> Callable[[Seen], None]:
    def kill_after_journal(happened: Seen) -> None:
        paper = Path(os.environ[FOLDER]) / name / sentence(happened.event)
        if paper.exists():
            paper.unlink()  # carried out once
            os.kill(os.getpid(), signal.SIGKILL)

    return kill_after_journal


# End the process as kill -9 does when the row is written and the reply is not: one for each registry of a test.
kill_a, kill_b, kill_c, kill_d = map(_killer, "abcd")
