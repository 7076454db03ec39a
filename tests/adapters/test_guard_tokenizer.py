"""The guard in SGLang's real TokenizerManager: every way in which a request can end, and what SGLang alone gets wrong.

Two processes (`guard_program.py`, with the guard and without it) tell what they saw; the tests judge it.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from lorafsm_sglang.guard.versions import SUPPORTED
from tests.adapters import guard_end_names
from tests.adapters.guard_processes import Seen, run

EXACT = {"after": 1, "unload while r2 runs": "pending", "unload": "done", "states left": 0}
OLDER = tuple(version for version in SUPPORTED if version != "0.5.23")
WHEELS = "LORAFSM_OLDER_SGLANG"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny model."""
    needed = ("sglang", "torch", "transformers", "safetensors")
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        pytest.skip(f"not installed: {', '.join(missing)} (`make test` installs them)")
    from lorafsm_sglang.tiny_model import write_model

    folder = tmp_path_factory.mktemp("tokenizer")
    write_model(folder / "model")
    return folder


@pytest.fixture(scope="module")
def seen(world: Path) -> dict[str, Seen]:
    """What was seen: `guarded` and `native`, by scenario.  Both processes run at once and end by themselves."""
    return run(world, {"guarded": None, "native": None})


@pytest.fixture(scope="module")
def older(world: Path) -> dict[str, Seen]:
    """What was seen under the guard on older versions, by version."""
    folder = Path(os.environ.get(WHEELS, ".")).resolve()
    if missing := [version for version in OLDER if not (folder / version / "sglang").is_dir()]:
        pytest.skip(
            f"{WHEELS} names no folder with the unzipped wheels of {', '.join(missing)}; `make test-older` fetches them"
        )
    return run(world, {version: folder / version for version in OLDER})


@pytest.mark.parametrize("how", guard_end_names.ENDS)
def test_each_end_drops_exactly_one_reference(seen: dict[str, Seen], how: str):
    """r1 and r2 run; r1 ends like this; r2's reference keeps the version; after r2 nothing does (RFC 7.1)."""
    row = seen["guarded"][how]
    assert {name: row[name] for name in EXACT} == EXACT, row
    assert row["during"] in (2, None)  # None: it never got to run
    assert row["r1"] != "open"


def test_sixty_requests_that_end_in_every_way_leave_nothing(seen: dict[str, Seen]):
    assert seen["guarded"]["stress"] == {"refs": 0, "dropped": 60, "unload": "done", "states left": 0}


def test_a_batch_whose_second_part_is_refused_leaves_nothing(seen: dict[str, Seen]):
    row = seen["guarded"]["batch"]
    assert (row["refs"], row["unload"]) == (0, "done")


def test_several_samples_are_refused_before_a_reference_is_taken(seen: dict[str, Seen]):
    assert seen["guarded"]["samples"] == {"outcome": "SEVERAL_SAMPLES", "refs": 0}


def test_a_session_stays_with_its_version(seen: dict[str, Seen]):
    assert seen["guarded"]["sessions"] == {
        "other version": "SESSION_VERSION",
        "base": "SESSION_VERSION",
        "after it was closed": "answered",
    }


def test_a_load_that_sglang_refuses_fails_and_leaves_nothing(seen: dict[str, Seen]):
    assert seen["guarded"]["failed_load"] == {"answer": "Failed", "reason": "made up: rank too large", "left": 0}


def test_a_managed_name_as_model_is_never_the_base(seen: dict[str, Seen]):
    """SGLang alone takes it for the base model's name."""
    row = seen["guarded"]["model_names"]
    assert row["native"] is None
    assert row["guarded"] == [row["name"], row["name"], None, "visitor"]


def test_a_plugin_that_is_seen_twice_is_active_once(seen: dict[str, Seen]):
    assert seen["guarded"]["plugin_twice"] == {"hooks": 1}


def test_a_hook_that_somebody_took_away_voids_the_proof(seen: dict[str, Seen]):
    row = seen["guarded"]["proof"]
    assert (row["active"], row["judged"]) == ([True, False, True], "E0")
    assert row["self_test"] == ["abort_request is not the guard's any more"]


def test_an_sglang_that_the_table_does_not_know_is_not_guarded(seen: dict[str, Seen]):
    row = seen["guarded"]["unknown_version"]
    assert row["unknown"].startswith("SGLang 0.5.99 is not in the table")
    assert "TokenizerManager.init_lora is not there" in row["renamed"]


def test_an_unsupported_setting_stops_every_begin_and_every_managed_request(seen: dict[str, Seen]):
    """M23; each setting by its name: `test_guard_proof.py`."""
    row = seen["guarded"]["unsupported_setting"]
    assert (row["begin"], row["request"], row["active"]) == ("NO_RESOURCES", "GUARD_INACTIVE", False)
    assert "tp_size is 2" in row["reason"]


def test_a_request_costs_two_steps_of_the_agent(seen: dict[str, Seen]):
    """What the two take is a figure of `tests.benchmarks` (guard.cpu_us); tests are not timed."""
    row = seen["guarded"]["cost"]
    assert row["steps"] == ["Acquire", "Release"]
    assert row["cpu_us"] > 0


class TestImplicitReload:
    """Native defects R1, R2: a late request loads the version again."""

    def test_after_the_unload(self, seen: dict[str, Seen]):
        assert seen["native"]["late_after"] == {"late": "answered", "loads": 1}
        assert seen["guarded"]["late_after"] == {"late": "VERSION_CLOSED", "loads": 0}

    def test_during_the_unload_without_the_control_lock(self, seen: dict[str, Seen]):
        native = {"late": "answered", "at once": False, "control lock held": True, "unload": "done", "loads": 1}
        guarded = {"late": "VERSION_CLOSED", "at once": True, "control lock held": False, "unload": "done", "loads": 0}
        assert (seen["native"]["late_during"], seen["guarded"]["late_during"]) == (native, guarded)


def test_a_clients_lora_id_drops_nobodys_reference(seen: dict[str, Seen]):
    """Native defect O1: it drops the live request's."""
    assert seen["native"]["foreign_lora_id"]["refs"] == 0
    assert seen["guarded"]["foreign_lora_id"] == {"bad": "VERSION_MISSING", "refs": 1, "unload": "done"}


def test_a_cancelled_load_gives_its_reply_to_nobody_else(seen: dict[str, Seen]):
    """Native defect C1: the next load is answered with the cancelled one's reply, before it happened."""
    told = "in the scheduler when the load was answered"
    assert (seen["native"]["cancelled_load"][told], seen["guarded"]["cancelled_load"][told]) == (False, True)


def test_samples_that_could_not_be_sent_leave_no_reference(seen: dict[str, Seen]):
    """Native defect L1: of n = 4 the third cannot be sent; the fourth, never made, keeps its reference for good."""
    native = seen["native"]["samples_part"]
    assert (native["refs"], native["unload"]) == (1, "pending")
    assert seen["guarded"]["samples"] == {"outcome": "SEVERAL_SAMPLES", "refs": 0}


def test_two_tokenizer_workers_are_refused_for_each_counts_for_itself(seen: dict[str, Seen]):
    """Native defect P1: one unloads under the other's request, and what one loads the other never had.  With the
    guard: `tokenizer_worker_num`, in `test_guard_proof.py`.
    """
    row = seen["native"]["two_workers"]
    assert (row["unload by the other worker"], row["its request"]) == ("done", "runs")
    assert "has never been loaded" in row["known to the other worker"]


def test_no_release_fails_where_nobody_sees_it(seen: dict[str, Seen]):
    """Native defects O2, O3: TypeError for a name that was never there, KeyError after an unload came too early."""
    native = seen["native"]["lost_tasks"]
    assert (native["unknown name"], native["after"]) == (["TypeError"], ["KeyError"])
    assert native["unload while r1 runs"] == "done"
    guarded = seen["guarded"]["lost_tasks"]
    assert guarded == {"unknown name": [], "unload while r1 runs": "pending", "after": [], "unload": "done"}


@pytest.mark.timeout(900)  # three processes at once: 110 s on two cores, minutes on shared ones
class TestOlderVersions:
    """The real TokenizerManager of other supported versions, Relax's pin 0.5.17 among them."""

    @pytest.mark.parametrize("version", OLDER)
    @pytest.mark.parametrize("how", guard_end_names.ENDS)
    def test_each_end_drops_exactly_one_reference(self, older: dict[str, Seen], version: str, how: str):
        row = older[version][how]
        assert {name: row[name] for name in EXACT} == EXACT, row

    @pytest.mark.parametrize("version", OLDER)
    def test_what_else_the_guard_promises(self, older: dict[str, Seen], version: str):
        row = older[version]
        assert row["late_after"] == {"late": "VERSION_CLOSED", "loads": 0}
        assert row["late_during"]["at once"]
        assert not row["late_during"]["control lock held"]
        assert row["foreign_lora_id"] == {"bad": "VERSION_MISSING", "refs": 1, "unload": "done"}
        assert row["samples"] == {"outcome": "SEVERAL_SAMPLES", "refs": 0}
        assert row["stress"] == {"refs": 0, "dropped": 60, "unload": "done", "states left": 0}
        assert row["failed_load"]["answer"] == "Failed"
        assert row["cost"]["steps"] == ["Acquire", "Release"]
        assert row["proof"]["active"] == [True, False, True]
        assert row["unknown_version"]["unknown"].startswith("SGLang 0.5.99 is not in the table")
