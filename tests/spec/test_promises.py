"""Codes, invariants and clauses: what spec/ names exists, and what exists is named."""

import ast
import inspect
import re
import tomllib
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from lorafsm.dispatch.records import DispatchCode
from lorafsm.engine.answers import AgentCode
from lorafsm.outcomes import Code

ROOT = Path(__file__).parents[2]
CODES = tomllib.loads((ROOT / "spec" / "codes.toml").read_text())
INVARIANTS = tomllib.loads((ROOT / "spec" / "invariants.toml").read_text())["invariant"]
CLAUSES = tomllib.loads((ROOT / "spec" / "clauses.toml").read_text())["clause"]
OF = {"outcomes": Code, "engine": AgentCode, "dispatch": DispatchCode}
CHECKERS = ("lorafsm.invariants", "lorafsm.engine.invariants", "lorafsm.dispatch.step")


def named(path: str):
    module, name = path.split(":")
    return getattr(import_module(module), name)


@cache
def names_of_tests(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in tree.body if isinstance(node, kinds))


@pytest.mark.parametrize("family", OF)
def test_every_code_has_a_sentence_and_a_way_on(family: str):
    assert [name for name, words in CODES.items() if words["of"] == family] == [str(code) for code in OF[family]]


@pytest.mark.parametrize("name", CODES)
def test_a_code_says_whose_fault_it_is_and_what_to_do(name: str):
    words = CODES[name]
    assert set(words) == {"of", "fault", "sentence", "do"}
    assert words["fault"] in {"nobody", "caller", "state", "engine"}
    assert words["sentence"].endswith(".")
    assert words["do"].endswith(".")


def test_every_invariant_of_the_protocol_is_listed_once():
    assert [entry["id"] for entry in INVARIANTS] == [*(f"I{n}" for n in range(1, 15)), "tables"]


@pytest.mark.parametrize("entry", INVARIANTS, ids=lambda entry: entry["id"])
def test_an_invariant_is_checked_where_it_says(entry: dict):
    assert entry["sentence"].endswith(".")
    silent = [path for path in entry["checked"] if not re.search(rf'"{entry["id"]}\b', _source(path))]
    assert entry["checked"]
    assert silent == [], "these report nothing under this id"


def _source(path: str) -> str:
    return inspect.getsource(named(path)).replace('f"', '"')


@pytest.mark.parametrize("module", CHECKERS)
def test_no_check_reports_an_invariant_that_is_not_listed(module: str):
    known = {entry["id"] for entry in INVARIANTS}
    assert set(re.findall(r'"(I\d+)\b', inspect.getsource(import_module(module)))) <= known


def test_every_rule_and_every_row_is_mapped():
    ids = [clause["id"] for clause in CLAUSES]
    assert len(set(ids)) == len(ids)
    assert {f"RFC 7.1 row {n}" for n in range(1, 10)} <= set(ids)
    assert {f"rule {n}" for n in range(1, 19)} <= set(ids)
    assert {"RFC 3.1", "RFC 3.2", "RFC 3.3", "RFC 3.4", "RFC 4.1", "RFC 4.2", "RFC 4.3", "RFC 5.1", "RFC 5.2"} <= set(
        ids
    )


@pytest.mark.parametrize("clause", CLAUSES, ids=lambda clause: clause["id"])
def test_what_a_clause_names_exists(clause: dict):
    assert clause["says"].endswith(".")
    assert clause["core"]
    assert clause["tests"]
    for path in clause["core"]:
        assert callable(named(path)), path
    for node in clause["tests"]:
        file, test = node.split("::")
        assert test in names_of_tests(file), node
