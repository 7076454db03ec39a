"""What a run checks before it starts any engine, and the command around it."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import attrs
import pytest
from typer.testing import CliRunner

from gpu_e2e.experiment.plan import PLANS, PlanMismatch, read_plan
from lorafsm.errors import InvalidField
from lorafsm_cli.main import app

NEEDED = ("torch", "transformers", "safetensors", "psutil", "sglang")
pytestmark = pytest.mark.skipif(
    bool(missing := [name for name in NEEDED if find_spec(name) is None]), reason=f"not installed: {missing}"
)


@pytest.fixture
def plan():
    return read_plan(PLANS / "cpu.toml")


def test_a_dry_run_finds_this_machine_as_planned_and_leaves_nothing(plan, tmp_path):
    from gpu_e2e.experiment.run import dry_run

    found = dry_run(plan, tmp_path / "out")
    assert [row for row in found["checks"] if not row["ok"]] == []
    assert found["ok"]
    assert found["plan"]["sha256"] == plan.sha256
    assert not list((tmp_path / "out").glob("*"))
    json.dumps(found, allow_nan=False)


def test_a_dry_run_of_the_cuda_plan_says_what_is_missing(tmp_path, monkeypatch):
    from gpu_e2e.experiment.run import dry_run

    monkeypatch.delenv("LORAFSM_MODEL", raising=False)
    found = dry_run(read_plan(PLANS / "cuda.toml"), tmp_path / "out")
    assert not found["ok"]
    assert "code.packages.torch" in next(row["seen"] for row in found["checks"] if row["name"] == "packages")


@pytest.mark.parametrize("field, name", [("fixtures.digests.A", "fixtures"), ("model.fingerprint", "model")])
def test_a_run_refuses_to_start_where_it_differs(plan, tmp_path, field, name):
    from gpu_e2e.experiment.run import prepare

    wrong = {"digests": {**plan.fixtures.digests, "A": "0" * 64}} if name == "fixtures" else {"fingerprint": "0" * 64}
    other = attrs.evolve(plan, **{name: attrs.evolve(getattr(plan, name), **wrong)})
    with pytest.raises(PlanMismatch) as refused:
        prepare(other, tmp_path / "out", lambda _: None)
    assert refused.value.field == field


def test_a_foreign_folder_is_refused_and_stays(plan, tmp_path):
    from gpu_e2e.experiment.run import prepare

    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(InvalidField, match=r"thesis\.txt"):
        prepare(plan, tmp_path, lambda _: None)
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_an_unknown_section_is_refused(plan, tmp_path):
    from gpu_e2e.experiment.run import prepare, run

    context = prepare(plan, tmp_path / "out", lambda _: None)
    with pytest.raises(InvalidField, match="offline"):
        run(context, ("offline",))


def test_the_command_prints_the_plan_as_json(tmp_path):
    done = CliRunner().invoke(app, ["experiment", "--out", str(tmp_path / "out"), "--dry-run", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["plan"]["profile"] == "cpu"


@pytest.mark.parametrize(
    "arguments, says",
    [(["--profile", "tpu"], "cpu or cuda"), (["--plan", str(PLANS / "cuda.toml")], "not of cpu")],
)
def test_the_command_says_what_it_was_asked_wrongly(tmp_path, capfd, arguments, says):
    with pytest.raises(SystemExit) as ended:
        app(["experiment", "--out", str(tmp_path / "out"), "--dry-run", *arguments])
    assert ended.value.code == 2
    assert says in capfd.readouterr().err
    assert not Path(tmp_path / "out").exists()


@pytest.mark.parametrize("words", [["--sections", "numeric,foo"], ["--sections", "kv", "--plan", "PLAN"]])
def test_a_refused_run_leaves_an_earlier_runs_report(tmp_path, words):
    out, plan = tmp_path / "out", tmp_path / "plan.toml"
    plan.write_text((PLANS / "cpu.toml").read_text().replace('sglang = "0.5.23"', 'sglang = "0.0.1"'))
    out.mkdir()
    (out / ".lorafsm-experiment").touch()
    (out / "report.json").write_text("{}")
    done = CliRunner().invoke(app, ["experiment", "--out", str(out), *(w.replace("PLAN", str(plan)) for w in words)])
    assert done.exit_code != 0
    assert (out / "report.json").read_text() == "{}"


def test_a_dry_run_looks_at_the_folder_and_the_sections_too(plan, tmp_path):
    from gpu_e2e.experiment.run import dry_run

    (tmp_path / "mine.txt").touch()
    found = dry_run(plan, tmp_path)
    assert not found["ok"]
    assert "mine.txt" in next(row["seen"] for row in found["checks"] if row["name"] == "out")
    done = CliRunner().invoke(app, ["experiment", "--out", str(tmp_path), "--dry-run", "--sections", "kv, foo"])
    assert done.exit_code != 0
