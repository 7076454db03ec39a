"""The fixed plan: what a file must hold, and the refusal to start where plan and reality differ (RFC 7.2)."""

from __future__ import annotations

import itertools
import pickle
import tomllib
from pathlib import Path

import attrs
import pytest

from gpu_e2e.experiment.plan import PLANS, PlanMismatch, Reality, check_before, check_engine, read_plan
from lorafsm.errors import InvalidField


@pytest.fixture(scope="module")
def plan():
    return read_plan(PLANS / "cpu.toml")


@pytest.fixture
def reality(plan) -> Reality:
    """A machine that is as the plan says."""
    return Reality(
        packages=dict(plan.code.packages),
        config={**plan.model.config, "tie_word_embeddings": False},
        fingerprint=plan.model.fingerprint,
        digests=dict(plan.fixtures.digests),
        devices=0,
        memory_gib=64.0,
    )


@pytest.mark.parametrize("profile", ["cpu", "cuda"])
def test_the_plans_that_come_with_the_project_are_whole(profile):
    read = read_plan(PLANS / f"{profile}.toml")
    assert read.profile == profile
    assert len(read.sha256) == 64
    assert read.as_dict()["numeric"]["sessions"][0]["name"] == "S_old"


def test_both_plans_fix_the_same_prefixes_and_tokens():
    cpu, cuda = (read_plan(PLANS / f"{profile}.toml") for profile in ("cpu", "cuda"))
    assert cpu.numeric.sessions == cuda.numeric.sessions
    assert cpu.numeric.scored_tokens == cuda.numeric.scored_tokens
    assert cpu.kv.prefixes == cuda.kv.prefixes


def test_every_turn_has_its_own_full_prefix(plan):
    for session in plan.numeric.sessions:
        prefixes = session.prefixes()
        assert prefixes[0] == session.opening
        assert len(prefixes) == len(session.turns) + 1
        assert all(longer[: len(shorter)] == shorter for shorter, longer in itertools.pairwise(prefixes))


def test_s_old_and_s_new_share_their_opening(plan):
    by_name = {session.name: session for session in plan.numeric.sessions}
    assert by_name["S_old"].opening == by_name["S_new"].opening
    assert by_name["S_old"].turns != by_name["S_new"].turns


def written(tmp_path: Path, old: str, new: str) -> Path:
    text = (PLANS / "cpu.toml").read_text()
    assert text.count(old) >= 1, old
    path = tmp_path / "plan.toml"
    path.write_text(text.replace(old, new, 1))
    return path


@pytest.mark.parametrize(
    "old, new, field",
    [
        ("epsilon = 0.001", "epsilon = 0.0", "numeric.separation"),
        ("epsilon = 0.001", 'epsilon = "small"', "numeric.epsilon"),
        ("epsilon = 0.001", "epsilom = 0.001", "numeric.epsilom"),
        ("separation = 10.0", "separation = 9.0", "numeric.separation"),
        ("repeats = 3", "repeats = 1", "numeric.repeats"),
        ("count = 2", "count = 1", "engine.count"),
        ("count = 2", "count = true", "engine.count"),
        ('profile = "cpu"', 'profile = "tpu"', "profile"),
        ("bucket_cap = 40960", "", "transport.bucket_cap"),
        ('name = "S_mid"', 'name = "S_late"', "numeric.sessions"),
        ("scored_tokens = [", "scored_tokens = [512, ", "numeric.scored_tokens"),
        ("scored_tokens = [", 'scored_tokens = ["a", ', "numeric.scored_tokens[0]"),
        ("no_progress_ms = 2000.0", "no_progress_ms = 2000.0\nlater = 1", "limits.later"),
    ],
)
def test_a_plan_with_a_fault_is_refused_by_its_field(tmp_path, old, new, field):
    with pytest.raises(InvalidField) as refused:
        read_plan(written(tmp_path, old, new))
    assert refused.value.field == field


def test_a_file_that_is_no_plan_is_refused(tmp_path):
    (tmp_path / "plan.toml").write_bytes(b"\xff[")
    for path in (tmp_path / "plan.toml", tmp_path / "absent.toml", tmp_path):
        with pytest.raises(InvalidField) as refused:
            read_plan(path)
        assert refused.value.field == "plan"


def test_a_machine_as_planned_may_start(plan, reality):
    check_before(plan, reality)


@pytest.mark.parametrize(
    "change, field",
    [
        ({"packages": {"sglang": "0.5.22"}}, "code.packages.lorafsm"),
        ({"fingerprint": "0" * 64}, "model.fingerprint"),
        ({"digests": {}}, "fixtures.digests.A"),
        ({"config": {"model_type": "llama"}}, "model.config.model_type"),
        ({"memory_gib": 0.5}, "engine.memory_gib"),
    ],
)
def test_a_machine_that_differs_may_not_start(plan, reality, change, field):
    with pytest.raises(PlanMismatch) as refused:
        check_before(plan, attrs.evolve(reality, **change))
    assert refused.value.field == field
    assert pickle.loads(pickle.dumps(refused.value)).field == field


def test_too_few_devices_may_not_start(reality):
    cuda = read_plan(PLANS / "cuda.toml")
    found = attrs.evolve(
        reality,
        packages=dict(cuda.code.packages),
        config=dict(cuda.model.config),
        fingerprint=cuda.model.fingerprint,
        digests=dict(cuda.fixtures.digests),
        devices=1,
    )
    with pytest.raises(PlanMismatch, match="1 devices are here, 2 are needed"):
        check_before(cuda, found)
    check_before(cuda, attrs.evolve(found, devices=2))


def said(plan) -> dict:
    return {**plan.engine.settings, "dtype": plan.engine.dtype, "version": plan.code.packages["sglang"]}


def test_an_engine_as_planned_is_taken(plan):
    check_engine(plan, "E0", {**said(plan), "more": 1})


@pytest.mark.parametrize("setting", [*tomllib.loads((PLANS / "cpu.toml").read_text())["engine"]["settings"], "dtype"])
def test_an_engine_that_differs_is_refused_by_the_setting(plan, setting):
    other = {name: value for name, value in said(plan).items() if name != setting}
    for differs in (other, {**other, setting: "something else"}):
        with pytest.raises(PlanMismatch) as refused:
            check_engine(plan, "E1", differs)
        assert refused.value.field == f"engine.settings.{setting}"
