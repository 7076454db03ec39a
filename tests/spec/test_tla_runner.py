"""The runner of the formal models: what it asks of a run, and what it says when something is missing."""

import re
import shutil
from pathlib import Path

import pytest
from attrs import evolve

from lorafsm_cli.one_line import CliError
from lorafsm_tla import jar
from lorafsm_tla.manifest import TIERS, Model, read_manifest, table
from lorafsm_tla.tlc import run
from tests.spec.test_tla_trace import needs_tlc
from tests.spec.tla_boxes import TLA

MODELS = {model.name: model for model in read_manifest(TLA / "manifest.toml")}
PROMISE = MODELS["promise"]


def test_a_missing_java_names_its_package(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(CliError, match="apt-get install default-jre-headless"):
        jar.java()


def test_a_jar_that_is_named_must_be_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("TLA2TOOLS_JAR", str(tmp_path / "none.jar"))
    with pytest.raises(CliError, match="TLA2TOOLS_JAR"):
        jar.tla2tools()
    (tmp_path / "own.jar").write_bytes(b"a newer one")
    monkeypatch.setenv("TLA2TOOLS_JAR", str(tmp_path / "own.jar"))
    assert jar.tla2tools() == tmp_path / "own.jar"


@needs_tlc
def test_another_jar_under_the_pinned_name_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TLA2TOOLS_JAR", raising=False)
    monkeypatch.setattr(jar, "SHA256", "0" * 64)
    with pytest.raises(CliError, match="not the pinned one"):
        jar.tla2tools()


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ('name = "x"\nmodule = "M"\ncfg = "c"\nspeed = 3', "model x has unknown fields speed"),
        ('name = "x"\nmodule = "M"', "model x: .*cfg"),
        ('name = "x"\nmodule = "M"\ncfg = "c"\ntier = "never"', "model x: .*tier"),
        ('name = "x"\nmodule = "M"\ncfg = "c"\nexit = 12', "model x: `violates` belongs"),
        ('name = "x"\nmodule = "M"\ncfg = "c"\nviolates = "P"', "model x: `violates` belongs"),
    ],
)
def test_a_wrong_entry_of_the_manifest_is_named(tmp_path: Path, entry: str, words: str):
    (tmp_path / "manifest.toml").write_text(f"[[model]]\n{entry}\n")
    with pytest.raises(CliError, match=words):
        read_manifest(tmp_path / "manifest.toml")


def test_every_module_and_configuration_is_there_and_used():
    assert [
        m.name for m in MODELS.values() if not (TLA / m.cfg).is_file() or not (TLA / f"{m.module}.tla").is_file()
    ] == []
    used = {m.cfg for m in MODELS.values()}
    ours = [path for folder in (".", "bugs", "witnesses") for path in (TLA / "models" / folder).glob("*.cfg")]
    assert {path.relative_to(TLA).as_posix() for path in ours} - used == set()
    goldens = {m.golden for m in MODELS.values() if m.golden}
    assert {path.relative_to(TLA).as_posix() for path in (TLA / "golden").iterdir()} == goldens


def test_every_bug_and_witness_of_the_registry_is_run():
    text = (TLA / "LoraRegistryBugs.tla").read_text()
    mistakes, witnesses = text.split("(* Witnesses:")
    run_as = "\n".join((TLA / m.cfg).read_text() for m in MODELS.values() if m.module == "LoraRegistryBugs")
    replacements = set(re.findall(r"<- (\w+)$", run_as, re.MULTILINE))
    parts = {"Reserved"}  # what several mistakes have in common
    assert set(re.findall(r"^(\w+)\(.*\) ==", mistakes, re.MULTILINE)) - parts <= replacements
    named = {m.violates for m in MODELS.values() if m.name.startswith("witness ")}
    assert set(re.findall(r"^(\w+)\s+==", witnesses, re.MULTILINE)) <= named


@pytest.mark.parametrize("tier", TIERS)
def test_the_readme_has_the_table_of_the_manifest(tier: str):
    """If not: `python -m lorafsm_tla check --pin NAME` renews it."""
    assert table(list(MODELS.values()), tier) in (TLA / "README.md").read_text()


@needs_tlc
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, None),
        ({"distinct": 1}, "distinct [0-9]+, pinned 1"),
        ({"depth": None}, "depth [0-9]+, pinned None"),
        ({"exit": 12, "violates": "TypeOK"}, "TLC ended with 0 .*expected 12"),
        ({"minutes": 0.001}, "time limit"),
        ({"module": "Nowhere"}, "TLC ended with"),
    ],
)
def test_a_run_must_be_as_the_manifest_says(change: dict, words: str | None):
    result = run(evolve(PROMISE, **change), TLA)
    if words is None:
        assert result.ok, result.faults
    else:
        assert re.search(words, " ".join(result.faults)), result.faults


@needs_tlc
def test_another_broken_property_does_not_count():
    bug = MODELS["bug ReadyByName"]
    result = run(evolve(bug, violates="TypeOK"), TLA)
    assert result.faults == (f"{bug.violates} is broken, TypeOK should be",)


@needs_tlc
def test_a_search_that_a_constraint_cuts_short_has_other_counts(tmp_path: Path):
    cfg = (TLA / PROMISE.cfg).read_text() + "CONSTRAINT\n    NothingIsTaken\n"
    (tmp_path / "bounded.cfg").write_text(cfg)
    bounded: Model = evolve(PROMISE, cfg=str(tmp_path / "bounded.cfg"))
    assert any("distinct" in fault for fault in run(bounded, TLA).faults)
