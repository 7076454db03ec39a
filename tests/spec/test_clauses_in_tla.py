"""What spec/ says about tla/: every definition that a clause names is there, and some model checks every promise."""

import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

from lorafsm_tla.manifest import folder, read_manifest

ROOT = Path(__file__).parents[2]
TLA = folder()
CLAUSES = tomllib.loads((ROOT / "spec" / "clauses.toml").read_text())["clause"]
PROMISES = re.compile(r"^\(\* What (?:is promised|holds)", re.MULTILINE)
REFINED_BY = {"Promise"}
"""Modules whose actions are checked through a refinement."""


@cache
def definitions(module: str) -> frozenset[str]:
    return frozenset(re.findall(r"^(\w+)(?:\([^=]*\))?\s*==", (TLA / f"{module}.tla").read_text(), re.MULTILINE))


@cache
def checked() -> str:
    """The text of every configuration that TLC runs."""
    return "\n".join((TLA / model.cfg).read_text() for model in read_manifest(TLA / "manifest.toml"))


@pytest.mark.parametrize("clause", CLAUSES, ids=lambda clause: clause["id"])
def test_a_clause_names_what_is_in_tla(clause: dict):
    assert clause["tla"], "no action and no property of tla/ is about this clause"
    missing = [name for name in clause["tla"] if name.split("!")[1] not in definitions(name.split("!")[0])]
    assert missing == []


@pytest.mark.parametrize("module", ["LoraRegistry", "EngineAgent"])
def test_every_promise_is_checked(module: str):
    """A property that no model checks promises nothing."""
    text = (TLA / f"{module}.tla").read_text()
    promised = text[PROMISES.search(text).start() :]  # type: ignore[union-attr]
    names = re.findall(r"^(\w+) ==", promised, re.MULTILINE)
    used = {name for name in names if len(re.findall(rf"\b{name}\b", promised)) > 1}
    assert len(names) >= 10
    assert [name for name in names if name not in used and not re.search(rf"\b{name}\b", checked())] == []
