"""The source is killed or paused at each step: the engines end by themselves, and another source goes on."""

import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest

torch = pytest.importorskip("torch", reason="torch is missing: pip install 'lorafsm[torch]'")

import os  # noqa: E402
import signal  # noqa: E402

from lorafsm.engine import answers as ans  # noqa: E402
from tests.adapters.transport import source_process  # noqa: E402
from tests.adapters.transport.stories import (  # noqa: E402
    FORKS,
    QUICK,
    Fleet,
    adapter,
    large,
    new_attempt,
    publish,
    two_engines,
)


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    yield from two_engines()


class Source:
    """The source's process, and what it says."""

    def __init__(self, fleet: Fleet) -> None:
        fleet.number += 1
        self.number = fleet.number
        engines = [(e.engine, e.incarnation, e.root, e.port) for e in fleet.engines.values()]
        self.says, theirs = FORKS.Pipe()
        self.process = FORKS.Process(target=source_process.main, args=(engines, self.number, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def until(self, where: str) -> None:
        """Let it go on up to this step."""
        while (seen := self.hear())[0] != where:
            assert seen[0] != "ended", seen
            self.says.send("go on")

    def hear(self) -> tuple[str, object]:
        says: Connection = self.says
        assert says.poll(20), "the source says nothing"
        return says.recv()

    def signal(self, which: signal.Signals) -> None:
        os.kill(self.process.pid, which)


STEPS = ("begun", "armed", "in the collective", "sent")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["kill", "pause"])
@pytest.mark.parametrize("step", STEPS)
def test_the_source_is_struck(fleet: Fleet, step: str, how: signal.Signals):
    e0, e1 = fleet.engines.values()
    pids = [e.process.pid for e in (e0, e1)]
    source = Source(fleet)
    try:
        if step == "in the collective":
            source.until("armed")
            e1.pause()  # what is sent does not fit into the sockets: the source stays in the broadcast
            source.says.send("go on")
            assert isinstance(e0.receive(source.number, 0, 10), ans.BucketDone | ans.Failed)
            source.signal(how)
            e1.go_on()
        else:
            source.until(step)
            source.signal(how)
        check_engines(fleet, source.number, step)
        for seed in (1, 2):
            publish(fleet, adapter(seed))
        if how is signal.SIGSTOP:
            late_source(source, halted=step != "in the collective")
        publish(fleet, adapter(3))
        assert [e.process.pid for e in fleet.engines.values()] == pids, "nobody was restarted"
    finally:
        source.process.kill()
        source.process.join()


def check_engines(fleet: Fleet, number: int, step: str) -> None:
    """Each engine's receive ends by itself; then its cleanup does."""
    abandoned = new_attempt_like(fleet, number)
    for engine in fleet.engines.values():
        if step in ("armed", "in the collective"):
            start = time.monotonic()
            answer = engine.receive(number, 0, QUICK.receive + 4)
            assert isinstance(answer, ans.Failed | ans.BucketDone), answer
            assert time.monotonic() - start < QUICK.receive + 2
        start = time.monotonic()
        assert isinstance(abandoned.clean(engine), ans.Cleaned)
        assert time.monotonic() - start < 2
        assert not engine.stash(number).exists()


def new_attempt_like(fleet: Fleet, number: int):
    """What anybody knows of the attempt whose source is gone: enough to order its cleanup."""
    fleet.number = number - 1
    return new_attempt(fleet, large(7), cap=32 << 20)


def late_source(source: Source, halted: bool) -> None:
    """A source that wakes up later finds its attempt over."""
    source.signal(signal.SIGCONT)
    if halted:
        source.says.send("go on")
    while (seen := source.hear())[0] != "ended":
        source.says.send("go on")
    assert seen[1] != "without an error"
