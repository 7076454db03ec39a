"""What is wrong with an attempt is said before any collective, by a typed error that names the field."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is missing: pip install 'lorafsm[torch]'")

from attrs import evolve  # noqa: E402

from lorafsm.engine import answers as ans  # noqa: E402
from lorafsm.errors import InvalidField  # noqa: E402
from lorafsm.identity import VersionKey, lora_name  # noqa: E402
from lorafsm.manifest import Plan  # noqa: E402
from lorafsm.orders import Begin  # noqa: E402
from lorafsm_torch import Snapshot  # noqa: E402
from lorafsm_torch.announcement import Announcement, Meeting  # noqa: E402
from lorafsm_torch.deadlines import Deadlines  # noqa: E402
from lorafsm_torch.errors import TransferError  # noqa: E402
from lorafsm_torch.group import Group  # noqa: E402
from lorafsm_torch.receiver import Receiver  # noqa: E402
from lorafsm_torch.rounds import send_bucket  # noqa: E402
from lorafsm_torch.sender import Lobby, Sender  # noqa: E402
from tests.adapters.transport.stories import EPOCH, QUICK, adapter  # noqa: E402

KEY = VersionKey(EPOCH, 1)
SNAPSHOT = adapter(1)
NOWHERE = Meeting(host="127.0.0.1", port=9, group="nobody.comes")


def announcement(**other) -> Announcement:
    fields = {
        "epoch": EPOCH,
        "number": 1,
        "manifest": SNAPSHOT.manifest,
        "cap": 4096,
        "engines": (("E0", 1), ("E1", 1)),
        "meeting": NOWHERE,
    }
    return Announcement(**{**fields, **other})


def begin(**other) -> Begin:
    fields = {
        "epoch": EPOCH,
        "engine": "E0",
        "incarnation": 1,
        "number": 1,
        "key": KEY,
        "digest": SNAPSHOT.digest,
        "lora_name": lora_name(KEY, SNAPSHOT.digest),
        "plan": announcement().plan.plan,
    }
    return Begin(**{**fields, **other})


class Told(list):
    """What a receiver said about posted buckets."""

    def __call__(self, number: int, bucket: int, fault: str | None) -> None:
        self.append((number, bucket, fault))


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def receiver(tmp_path: Path, told: Told) -> Iterator[Receiver]:
    receiver = Receiver(tmp_path / "stash", "E0", 1, told, deadlines=Deadlines(join=1, receive=1))
    yield receiver
    receiver.close()
    assert not (tmp_path / "stash").exists()


def entry_with(**other):
    """The manifest with its first tensor told differently."""
    first, *rest = SNAPSHOT.manifest.tensors
    return evolve(SNAPSHOT.manifest, tensors=(evolve(first, **other), *rest))


@pytest.mark.parametrize(
    "said, order, code, field",
    [
        (announcement(engines=(("E1", 1),)), begin(), "NOT_A_TARGET", "engines"),
        (announcement(engines=(("E0", 2), ("E1", 1))), begin(), "ENGINE_RESTARTED", "engines"),
        (announcement(number=2), begin(), "OPERATION_CONFLICT", "number"),
        (announcement(epoch="other"), begin(), "OPERATION_CONFLICT", "number"),
        (announcement(cap=4095), begin(), "PLAN_MISMATCH", "plan"),
        (announcement(), begin(plan=Plan(1, "0" * 64)), "PLAN_MISMATCH", "plan"),
        (announcement(manifest=entry_with(shape=(256, 4))), begin(), "DIGEST_MISMATCH", "digest"),
        (announcement(manifest=entry_with(dtype="float16")), begin(), "DIGEST_MISMATCH", "digest"),
        (announcement(manifest=entry_with(sha256="0" * 64)), begin(), "DIGEST_MISMATCH", "digest"),
        (announcement(), begin(digest="0" * 64), "DIGEST_MISMATCH", "digest"),
    ],
)
def test_an_announcement_that_is_not_what_was_begun(receiver: Receiver, tmp_path: Path, said, order, code, field):
    with pytest.raises(TransferError) as refusal:
        receiver.prepare(said, order)
    assert (refusal.value.code, refusal.value.field) == (code, field)
    assert list((tmp_path / "stash").iterdir()) == [], "nothing is left behind"


def test_a_number_is_announced_once(receiver: Receiver):
    receiver.prepare(announcement(), begin())
    receiver.prepare(announcement(), begin())
    with pytest.raises(TransferError) as refusal:
        receiver.prepare(announcement(engines=(("E0", 1),)), begin())
    assert refusal.value.code == "OPERATION_CONFLICT"


def test_memory_that_is_not_there_is_said_at_begin(receiver: Receiver, tmp_path: Path):
    first, *_ = SNAPSHOT.manifest.tensors
    huge = evolve(SNAPSHOT.manifest, tensors=(evolve(first, dtype="bfloat16", shape=(1 << 30, 1 << 12)),))
    said = announcement(manifest=huge, cap=1 << 30)
    with pytest.raises(TransferError) as refusal:
        receiver.prepare(
            said, begin(digest=huge.digest(), lora_name=lora_name(KEY, huge.digest()), plan=said.plan.plan)
        )
    assert (refusal.value.code, refusal.value.field) == ("NO_RESOURCES", "stash")
    assert list((tmp_path / "stash").iterdir()) == []


def test_an_incomplete_or_unknown_number_is_not_sealed(receiver: Receiver):
    for code in ("NOT_PREPARED", "OUT_OF_ORDER"):
        with pytest.raises(TransferError) as refusal:
            receiver.sealed(1, SNAPSHOT.digest)
        assert refusal.value.code == code
        receiver.prepare(announcement(), begin())


@pytest.mark.parametrize(
    "path, value, field",
    [
        (["format"], "lorafsm/transfer/v0", "transfer.format"),
        (["epoch"], "a-b", "transfer.epoch"),
        (["number"], -1, "transfer.number"),
        (["cap"], 0, "cap"),
        (["cap"], 1 << 40, "cap"),
        (["size"], 2, "transfer.size"),
        (["size"], 4, "transfer.size"),
        (["engines"], [], "transfer.engines"),
        (["engines"], [["E0", 1], ["E0", 2]], "transfer.engines"),
        (["engines"], [["../E0", 1], ["E1", 1]], "transfer.engines"),
        (["tensors"], [], "tensors"),
        (["tensors"], {}, "transfer.tensors"),
        (["tensors", 0], ["w", "float64", [1], "0" * 64], "tensors['w'].dtype"),
        (["tensors", 0], ["../w", "float32", [1], "0" * 64], "tensors['../w']"),
        (["tensors", 0], ["w", "float32", [0], "0" * 64], "tensors['w'].shape"),
        (["tensors", 0], "w", "transfer.tensors"),
        (["meeting", "backend"], "mpi", "transfer.meeting.backend"),
        (["meeting", "port"], 0, "transfer.meeting.port"),
        (["meeting", "host"], "a b", "transfer.meeting.host"),
        (["meeting", "group"], "../x", "transfer.meeting.group"),
        (["more"], 1, "transfer"),
    ],
)
def test_a_document_from_outside_names_its_fault(path: list, value, field: str):
    document = announcement().render()
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(InvalidField) as refusal:
        Announcement.parse(document)
    assert refusal.value.field == field


def test_a_document_reads_back_as_it_was():
    assert Announcement.parse(announcement().render()) == announcement()


def test_a_sender_sends_its_own_version_only():
    with pytest.raises(TransferError) as refusal:
        Sender(adapter(2), announcement())
    assert refusal.value.code == "DIGEST_MISMATCH"


class Never:
    """A port that must not be asked."""

    def __init__(self, engine: str) -> None:
        self.engine = engine

    def arm(self, number: int, bucket: int) -> ans.Answer:
        raise AssertionError("armed")

    receive = arm


@pytest.mark.parametrize("engines", [["E0"], ["E0", "E1", "E2"], ["E0", "E2"]])
def test_a_group_of_other_members_is_refused_before_anybody_is_armed(engines: list[str]):
    with Sender(SNAPSHOT, announcement()) as sender, pytest.raises(TransferError) as refusal:
        send_bucket(sender, [Never(name) for name in engines], 0, lambda: None, deadlines=QUICK)
    assert (refusal.value.code, refusal.value.field) == ("GROUP_SIZE", "engines")


@pytest.mark.parametrize(
    "bucket, code", [(1, "OUT_OF_ORDER"), (-1, "OUT_OF_ORDER"), (99, "OUT_OF_ORDER"), (0, "GROUP_FAILED")]
)
def test_only_the_next_bucket_is_sent_and_only_in_a_group(bucket: int, code: str):
    with Sender(SNAPSHOT, announcement()) as sender, pytest.raises(TransferError) as refusal:
        sender.broadcast(bucket)
    assert refusal.value.code == code


def test_a_bucket_of_the_wrong_size_is_not_sent():
    longer = Snapshot(SNAPSHOT.manifest, SNAPSHOT.digest, SNAPSHOT.tensors, sequence=SNAPSHOT.sequence[:100])
    with Sender(longer, announcement()) as sender, pytest.raises(TransferError) as refusal:
        sender.bytes_of(0)
    assert (refusal.value.code, refusal.value.field) == ("PLAN_MISMATCH", "bucket")


def test_two_sizes_of_one_group_are_found_before_the_group_is_formed():
    lobby = Lobby()
    meeting = lobby.meeting(EPOCH, 1)
    two, three = Group(meeting, 0, 2, 5), Group(meeting, 1, 3, 5)

    def wait_for_a_third() -> None:
        with pytest.raises(TransferError):
            three.join(5)

    other = threading.Thread(target=wait_for_a_third)
    other.start()
    with pytest.raises(TransferError) as refusal:
        two.join(5)
    three.abort("enough was seen")
    other.join()
    assert refusal.value.code == "GROUP_SIZE"


def test_two_processes_of_one_rank_are_found():
    lobby = Lobby()
    meeting = lobby.meeting(EPOCH, 1)
    first, second = Group(meeting, 1, 2, 5), Group(meeting, 1, 2, 5)
    refused = []
    for group in (first, second):
        with pytest.raises(TransferError) as refusal:
            group.join(0.5)
        refused.append(refusal.value.code)
    assert refused == ["DEADLINE", "GROUP_SIZE"]
