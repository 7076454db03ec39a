"""What arrives is what was frozen, byte for byte, once; and what may not be sent is not."""

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch", reason="torch is missing: pip install 'lorafsm[torch]'")

from attrs import frozen  # noqa: E402

from lorafsm.engine import answers as ans  # noqa: E402
from lorafsm.engine import orders as inp  # noqa: E402
from lorafsm.errors import LoraFsmError  # noqa: E402
from lorafsm_torch import Snapshot  # noqa: E402
from lorafsm_torch.errors import TransferError  # noqa: E402
from lorafsm_torch.rounds import send_bucket  # noqa: E402
from tests.adapters.transport.stories import (  # noqa: E402
    EPOCH,
    QUICK,
    EngineProcess,
    Fleet,
    adapter,
    new_attempt,
    publish,
    send_all,
    two_engines,
)


@frozen
class Wrong:
    """A port that says something else than it was told."""

    port: EngineProcess
    wrong: dict

    @property
    def engine(self) -> str:
        return self.port.engine

    def arm(self, number: int, bucket: int) -> ans.Answer:
        said = {"epoch": EPOCH, "engine": self.engine, "incarnation": self.port.incarnation, "number": number}
        return self.port.give(inp.ArmBucket(**{**said, "bucket": bucket, **self.wrong}))

    def receive(self, number: int, bucket: int, wait_s: float) -> ans.Answer:
        raise AssertionError("nothing was sent")


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    yield from two_engines()


@pytest.mark.parametrize("cap", [3000, 8192, 1 << 20])
def test_every_engine_reads_what_was_frozen(fleet: Fleet, cap: int):
    publish(fleet, adapter(1), cap=cap)


def test_tensors_that_are_no_sequence_travel_as_well(fleet: Fleet):
    snapshot = adapter(2)
    publish(fleet, Snapshot(snapshot.manifest, snapshot.digest, snapshot.tensors), cap=5000)


def test_the_snapshot_is_proved_while_it_is_on_the_wire(fleet: Fleet):
    publish(fleet, adapter(3), check=True)


def test_a_second_arm_or_receive_starts_no_second_collective(fleet: Fleet):
    attempt = new_attempt(fleet, adapter(4), cap=1 << 20)
    with attempt.sender:
        attempt.begin_all()
        for engine in attempt.ports:
            assert isinstance(attempt.begin(engine), ans.Prepared)
        e0 = attempt.ports[0]
        first = e0.arm(attempt.number, 0)
        assert e0.arm(attempt.number, 0) == first, "a repeat has the stored answer"
        done = attempt.send(0)
        assert [e.arm(attempt.number, 0) for e in attempt.ports] == [
            ans.Armed(number=attempt.number, bucket=0, incarnation=e.incarnation, seq=done.answers[e.engine].seq)
            for e in attempt.ports
        ]
        for engine in attempt.ports:
            assert engine.receive(attempt.number, 0, 0) == done.answers[engine.engine]
            assert engine.ask("look")["posted"].count([attempt.number, 0]) == 1
        with pytest.raises(TransferError) as refusal:
            attempt.sender.broadcast(0)
        assert refusal.value.code == "OUT_OF_ORDER"
    for engine in attempt.ports:
        assert isinstance(attempt.end(engine), ans.Ready)
        assert isinstance(attempt.clean(engine), ans.Cleaned)


@pytest.mark.parametrize("wrong, code", [({"bucket": 1}, "OUT_OF_ORDER"), ({"incarnation": 9}, "STALE_INCARNATION")])
def test_the_agents_refusal_to_arm_ends_the_attempt_on_all_without_a_collective(fleet: Fleet, wrong: dict, code: str):
    attempt = new_attempt(fleet, adapter(5))
    with attempt.sender:
        attempt.begin_all()
        e0, e1 = attempt.ports
        ports = [e0, Wrong(e1, wrong)]
        asked: list[str] = []
        with pytest.raises(TransferError) as refusal:
            send_bucket(attempt.sender, ports, 0, lambda: asked.append("authorised"), deadlines=QUICK)
        assert (refusal.value.code, refusal.value.field) == ("ARM_REFUSED", "E1")
        assert code in refusal.value.message
        assert asked == [], "nothing was authorised, nothing was sent"
    assert isinstance(e0.receive(attempt.number, 0, 5), ans.Failed), "what was armed ends by itself"
    for engine in (e0, e1):
        assert isinstance(attempt.clean(engine), ans.Cleaned)
        assert not engine.stash(attempt.number).exists()
    publish(fleet, adapter(5))


def test_a_registry_that_does_not_authorise_stops_the_bucket(fleet: Fleet):
    attempt = new_attempt(fleet, adapter(6))

    def refuse() -> None:
        raise LoraFsmError("STALE_ATTEMPT", "somebody took over")

    with attempt.sender:
        attempt.begin_all()
        with pytest.raises(LoraFsmError, match="somebody took over"):
            attempt.send(0, authorize=refuse)
    for engine in attempt.ports:
        assert isinstance(attempt.clean(engine), ans.Cleaned)
    publish(fleet, adapter(6))


def test_a_snapshot_that_is_written_to_is_not_loaded_anywhere(fleet: Fleet):
    snapshot = adapter(8)
    attempt = new_attempt(fleet, snapshot, check=True)
    victim = snapshot.manifest.tensors[0].name
    snapshot.tensors[victim][0, 0] += 1
    with pytest.raises(TransferError) as refusal:
        send_all(attempt)
    assert (refusal.value.code, refusal.value.field) == ("DIGEST_MISMATCH", victim)
    for engine in attempt.ports:
        assert isinstance(attempt.clean(engine), ans.Cleaned)
    unchecked = new_attempt(fleet, snapshot)
    send_all(unchecked)
    for engine in unchecked.ports:
        answer = unchecked.end(engine)
        assert isinstance(answer, ans.Failed)
        assert "DIGEST_MISMATCH" in answer.reason
        assert victim in answer.reason
        assert isinstance(unchecked.clean(engine), ans.Cleaned)
