"""An engine's process is killed or paused at each step of a bucket: everybody ends, and the next attempts succeed."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest

torch = pytest.importorskip("torch", reason="torch is missing: pip install 'lorafsm[torch]'")

from attrs import frozen  # noqa: E402

from lorafsm.engine import answers as ans  # noqa: E402
from lorafsm_torch.errors import TransferError  # noqa: E402
from lorafsm_torch.rounds import send_bucket  # noqa: E402
from tests.adapters.transport.stories import (  # noqa: E402
    QUICK,
    Attempt,
    EngineProcess,
    Fleet,
    adapter,
    large,
    new_attempt,
    publish,
    two_engines,
    until,
)

CAP = 32 << 20


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    yield from two_engines()


def kill(engine: EngineProcess) -> None:
    engine.kill()


def pause(engine: EngineProcess) -> None:
    engine.pause()


@frozen
class Struck:
    """A port whose engine is struck before it is asked for the acknowledgement."""

    port: EngineProcess
    strike: Callable[[EngineProcess], None]

    @property
    def engine(self) -> str:
        return self.port.engine

    def arm(self, number: int, bucket: int) -> ans.Answer:
        return self.port.arm(number, bucket)

    def receive(self, number: int, bucket: int, wait_s: float) -> ans.Answer:
        assert isinstance(self.port.receive(number, bucket, wait_s), ans.BucketDone)  # a reply that is lost
        self.strike(self.port)
        return self.port.receive(number, bucket, wait_s)


def before_arming(attempt: Attempt, victim: EngineProcess, strike) -> None:
    strike(victim)
    attempt.send(0)


def armed(attempt: Attempt, victim: EngineProcess, strike) -> None:
    attempt.send(0, authorize=lambda: strike(victim))


def in_the_collective(attempt: Attempt, victim: EngineProcess, strike) -> None:
    """The victim is held while bytes come to the other engine, and struck then."""
    other = next(engine for engine in attempt.ports if engine is not victim)

    def strike_later() -> None:
        until(lambda: has_bytes(other, attempt.number), "the collective is under way")
        strike(victim)

    def hold() -> None:
        victim.pause()
        watch.start()

    watch = threading.Thread(target=strike_later)
    try:
        attempt.send(0, authorize=hold)
    finally:
        watch.join()


def before_the_acknowledgement(attempt: Attempt, victim: EngineProcess, strike) -> None:
    ports = [Struck(port, strike) if port is victim else port for port in attempt.ports]
    send_bucket(attempt.sender, ports, 0, lambda: None, deadlines=QUICK)


def has_bytes(engine: EngineProcess, number: int) -> bool:
    with engine.stash(number).open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        file.seek(8 + length)
        return any(file.read(64))


STEPS = {
    before_arming: {"ARM_REFUSED"},
    armed: {"BROADCAST_FAILED", "DEADLINE"},
    in_the_collective: {"BROADCAST_FAILED", "DEADLINE"},
    before_the_acknowledgement: {"NOT_RECEIVED"},
}


@pytest.mark.parametrize("strike", [kill, pause])
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_an_engine_is_struck(fleet: Fleet, step, strike):
    victim, other = fleet.engines["E1"], fleet.engines["E0"]
    attempt = new_attempt(fleet, large(3), cap=CAP)
    attempt.begin_all()
    start = time.monotonic()
    try:
        with pytest.raises(TransferError) as refusal:
            step(attempt, victim, strike)
    finally:
        attempt.sender.close()
    assert refusal.value.code in STEPS[step]
    assert time.monotonic() - start < 12, "everything has a deadline"
    sent = [item for item in other.ask("look")["posted"] if item[0] == attempt.number]
    assert sent == [[attempt.number, 0]], "the other engine was armed for one collective"

    start = time.monotonic()
    assert isinstance(attempt.clean(other), ans.Cleaned)
    assert time.monotonic() - start < 2, "the survivor waits for nobody"
    assert not other.stash(attempt.number).exists()
    if strike is kill:
        fleet.restart(victim.engine)
    else:
        victim.go_on()
        assert isinstance(attempt.clean(victim), ans.Cleaned)
        assert not victim.stash(attempt.number).exists()
    survivor = other.process.pid
    for seed in (1, 2):
        publish(fleet, adapter(seed))
    assert fleet.engines["E0"].process.pid == survivor


def test_an_engine_that_dies_before_it_comes_to_the_meeting_is_not_waited_for_in_the_group(fleet: Fleet):
    attempt = new_attempt(fleet, adapter(4))
    e0, e1 = attempt.ports
    assert isinstance(attempt.begin(e0), ans.Prepared)
    with attempt.sender, pytest.raises(TransferError) as refusal:
        attempt.sender.join()  # E1 never heard of it
    assert refusal.value.code == "DEADLINE"
    for engine in (e0, e1):
        assert isinstance(attempt.clean(engine), ans.Cleaned)
    late = attempt.begin(e1)
    assert isinstance(late, ans.Refused)
    assert late.code == "STALE_ATTEMPT"
    assert not e1.stash(attempt.number).exists(), "a begin after the cleanup leaves nothing"
    publish(fleet, adapter(5))
