"""`update_weights_for_rollout` with a publication in place of the push: one outcome for all ranks, the order kept."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest

from lorafsm_relax import PublicationFatal, VersionedUpdate
from lorafsm_relax.update import Flag
from tests.adapters.relax.stand_ins import DeviceDirectBackend

OFF = ["pause", "flush", "barrier", "base", "actor_fwd", "weight_updated_stop", "push", "all_reduce 0", "continue"]


class Result:
    """What a step answers."""

    def __init__(self, flag: int, reason: str = "because") -> None:
        self.flag, self.reason = flag, reason

    def __int__(self) -> int:
        return self.flag


def backend(flags: list[int], *, bootstrapped: bool = True, all_reduce_max: Callable[[int], int] = lambda f: f):
    steps: list[int] = []

    def step(version_id: int, export: Callable[[], Any]) -> Result:
        assert export() == "adapter"
        steps.append(version_id)
        return Result(flags.pop(0))

    lora = VersionedUpdate(step, lambda: "adapter", bootstrapped=bootstrapped)
    return DeviceDirectBackend(lora, all_reduce_max), steps


def test_off_the_old_path_is_what_it_was():
    old = DeviceDirectBackend(None)
    old.update_weights_for_rollout()
    assert old.events == [*OFF, "barrier"]


def test_the_first_version_pauses_as_before_and_later_ones_do_not():
    it, steps = backend([0, 0, 0], bootstrapped=False)
    it.update_weights_for_rollout()
    assert it.events == [event for event in [*OFF, "barrier"] if event != "push"]
    for _ in range(2):
        it.events.clear()
        it.update_weights_for_rollout()
        assert {"pause", "flush", "continue"}.isdisjoint(it.events)
    assert steps == [1, 2, 3]


@pytest.mark.parametrize("flag", list(Flag))
def test_actor_fwd_and_reference_keep_their_place_and_their_stop_marker(flag: Flag):
    """Whatever becomes of the publication: accepted, refused, failed."""
    it, _ = backend([int(flag)])
    if flag is Flag.FATAL:
        with pytest.raises(PublicationFatal):
            it.update_weights_for_rollout()
    else:
        it.update_weights_for_rollout()
    assert it.events == ["barrier", "base", "actor_fwd", "weight_updated_stop", f"all_reduce {int(flag)}", "barrier"]


def test_an_update_of_actor_fwd_alone_publishes_nothing():
    it, steps = backend([])
    it.update_weights_for_rollout(actor_fwd_only=True)
    assert (steps, it.events) == ([], ["base", "actor_fwd", "weight_updated_stop"])
    assert VersionedUpdate(lambda *a: Result(3), lambda: None).push(1, actor_fwd_only=True) == 0


def test_an_update_of_the_rollout_alone_publishes():
    it, steps = backend([0])
    it.update_weights_for_rollout(rollout_only=True)
    assert steps == [1]
    assert "actor_fwd" not in it.events


@pytest.mark.parametrize("flag", [Flag.SKIPPED_CAPACITY, Flag.FAILED_CLEAN])
def test_a_refused_publication_ends_no_training(flag: Flag):
    it, steps = backend([int(flag)] * 10 + [0])
    for _ in range(11):
        it.update_weights_for_rollout()
    assert steps == list(range(1, 12))


@pytest.mark.parametrize("flag", [Flag.SKIPPED_CAPACITY, Flag.FAILED_CLEAN])
def test_without_a_first_version_there_is_nothing_to_roll_out_with(flag: Flag):
    it, _ = backend([int(flag)], bootstrapped=False)
    with pytest.raises(PublicationFatal, match="first version"):
        it.update_weights_for_rollout()
    assert it.events[-2:] == ["continue", "barrier"], "the engines are resumed before anything is raised"


def test_fatal_is_marked_only_where_the_state_says_so():
    """A failed publication that was cleaned is not fatal; a step that broke, and nobody knows, is."""

    def broken(version_id: int, export: Callable[[], Any]) -> Result:
        raise OSError("the board is gone")

    assert VersionedUpdate(broken, lambda: None).push(1) == Flag.FATAL
    assert VersionedUpdate(lambda *a: Result(7), lambda: None).push(1) == Flag.FATAL, "no such outcome"
    assert VersionedUpdate(lambda *a: Result(2), lambda: None, bootstrapped=True).settle(2) is Flag.FAILED_CLEAN


def test_all_ranks_end_alike_when_one_of_them_fails():
    """Four ranks as threads and a real maximum between them: the one that fails makes it FATAL for all; none hangs."""
    size, flags = 4, [0, 0, 3, 0]
    barrier, shared = threading.Barrier(size), [0] * size
    ends: list[str] = [""] * size

    def run(rank: int) -> None:
        def all_reduce_max(flag: int) -> int:
            shared[rank] = flag
            barrier.wait(10)
            return max(shared)

        it, _ = backend([flags[rank]], all_reduce_max=all_reduce_max)
        try:
            it.update_weights_for_rollout()
            ends[rank] = "OK"
        except PublicationFatal as error:
            ends[rank] = error.code

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert ends == ["PUBLICATION_FATAL"] * size


def test_the_flags_are_those_of_the_training_ranks():
    ranks = pytest.importorskip("lorafsm_torch.ranks", reason="torch is not installed")
    assert {f.name: int(f) for f in ranks.Flag} == {f.name: int(f) for f in Flag}


def test_the_error_crosses_processes():
    error = pickle.loads(pickle.dumps(PublicationFatal("why")))
    assert (error.code, error.message) == ("PUBLICATION_FATAL", "why")
