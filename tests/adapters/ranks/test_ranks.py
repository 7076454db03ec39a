"""One outcome for all training ranks: three processes, a real registry, real kills and stops (RFC 6, M15)."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is missing: pip install 'lorafsm[torch]'")

from lorafsm_torch.ranks import Flag  # noqa: E402
from tests.adapters.ranks.rank_process import DEADLINES, LIMIT_S  # noqa: E402
from tests.adapters.ranks.world import World  # noqa: E402


def one(results: list[dict[str, Any]], within_s: float = LIMIT_S) -> tuple[Flag, str]:
    """What all ranks answered: the same, in time."""
    assert len({(each["flag"], each["reason"], each["skipped"]) for each in results}) == 1, results
    assert max(each["seconds"] for each in results) < within_s
    return Flag(results[0]["flag"]), results[0]["reason"]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Ranks that live through everything that is not fatal, one test after the other."""
    world = World(tmp_path_factory.mktemp("ranks"))
    yield world
    world.end()


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[World]:
    """Ranks of whom some will not live."""
    world = World(tmp_path)
    yield world
    world.end()


class Versions:
    """Version ids that go on from test to test."""

    last = 0

    def new(self) -> int:
        self.last += 1
        return self.last


versions = Versions()


def two_in_a_row(world: World) -> None:
    """The next two publications become the default, for all ranks alike; nothing hangs or is left over."""
    for _ in range(2):
        world.reclaim()
        world.train()
        version = versions.new()
        flag, reason = one(world.step(version))
        assert flag is Flag.OK, reason
        assert world.default() == f"e1-{version}"


def test_all_ranks_hear_that_the_version_is_the_default(running: World):
    flag, reason = one(running.step(version := versions.new()))
    assert (flag, reason) == (Flag.OK, f"e1-{version} is the default, revision 1")
    assert running.default() == f"e1-{version}"


def test_the_same_again_is_a_no_op_with_the_same_flag(running: World):
    flag, reason = one(running.step(versions.last))
    assert (int(flag), reason) == (0, f"NO_OP: e1-{versions.last} was published already")


def test_capacity_is_refused_for_all_and_counted(running: World):
    running.train()
    assert one(running.step(versions.new()))[0] is Flag.OK
    running.train()
    skipped = [running.step(versions.new()) for _ in range(2)]
    assert [one(each)[0] for each in skipped] == [Flag.SKIPPED_CAPACITY] * 2
    assert [each[2]["skipped"] for each in skipped] == [1, 2]
    assert "e1-1 RETIRED: nobody holds it" in skipped[1][1]["reason"]
    two_in_a_row(running)


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("raise before the collective", "ZeroDivisionError: the export has a bug"),
        ("raise after the collective", "ZeroDivisionError: the export has a bug"),
        ("a parameter is missing", "is missing on this rank"),
    ],
)
def test_an_export_that_fails_on_one_rank_fails_cleanly_on_all(running: World, rank: int, fault: str, says: str):
    flag, reason = one(running.step(versions.new(), {rank: fault}), within_s=DEADLINES.export_s + DEADLINES.agree_s)
    assert flag is Flag.FAILED_CLEAN
    assert reason.startswith(f"the export failed on rank {rank}: ")
    assert says in reason
    two_in_a_row(running)


def test_a_registry_that_is_not_reached_is_a_clean_failure_on_all(running: World):
    flag, reason = one(running.step(versions.new(), {0: "registry unreachable"}))
    assert flag is Flag.FAILED_CLEAN
    assert reason.startswith("nothing was begun: REGISTRY_UNAVAILABLE")
    two_in_a_row(running)


def test_ranks_that_publish_different_versions_publish_none(running: World):
    for rank in running.ranks:
        rank.tell(do="step", version=90 + rank.rank, fault="")
    flag, reason = one([rank.hear() for rank in running.ranks])
    assert flag is Flag.FAILED_CLEAN
    assert "different versions: [90, 91, 92]" in reason
    two_in_a_row(running)


def test_the_flag_fits_the_reduction_that_a_framework_does(running: World):
    for rank in running.ranks:
        rank.tell(do="agree", flag=int(Flag.SKIPPED_CAPACITY) if rank.rank == 1 else 0)
    assert [rank.hear()["flag"] for rank in running.ranks] == [1, 1, 1]


def test_rank_0_raises_between_reserve_and_commit(fresh: World):
    flag, reason = one(fresh.step(1, {0: "raise in the driver"}))
    assert flag is Flag.FAILED_CLEAN
    assert "ZeroDivisionError: the driver has a bug" in reason
    # A lost reply to the commit that follows is resolved by asking: the version is the default, and all say so.
    assert one(fresh.step(1, {0: "lose the commit's reply"})) == (Flag.OK, "e1-1 is the default, revision 1")
    fresh.train()
    assert one(fresh.step(2))[0] is Flag.OK
    versions.last = max(versions.last, 2)
    two_in_a_row(fresh)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize(("rank", "fault"), [(1, "stop in the export"), (0, "stop in the driver")])
def test_a_rank_that_dies_or_stands_still_is_fatal_for_the_rest(fresh: World, rank: int, fault: str, how):
    assert one(fresh.step(1))[0] is Flag.OK
    fresh.train()
    fresh.start(2, {rank: fault})
    lost = fresh.ranks[rank]
    assert lost.hear()["reached"] in fault
    lost.signal(how)
    results = [each.hear() for each in fresh.ranks if each is not lost]
    assert {each["flag"] for each in results} == {Flag.FATAL}, results
    assert max(each["seconds"] for each in results) < LIMIT_S
    assert all(f"rank {rank}" in each["reason"] or "store" in each["reason"] for each in results), results
    if how is signal.SIGSTOP:
        lost.signal(signal.SIGCONT)
        lost.tell(go="on")
        assert lost.hear()["flag"] == Flag.FATAL


def test_a_rank_that_dies_while_rank_0_publishes_is_fatal_though_the_version_is_the_default(fresh: World):
    fresh.start(1, {0: "stop in the driver"})
    assert fresh.ranks[0].hear() == {"reached": "driver"}
    fresh.ranks[2].signal(signal.SIGKILL)
    fresh.ranks[2].process.join(30)
    fresh.ranks[0].tell(go="on")
    results = [fresh.ranks[rank].hear() for rank in (0, 1)]
    flag, reason = one(results)
    assert (flag, reason) == (Flag.FATAL, "rank 2 did not answer, after: e1-1 is the default, revision 1")
