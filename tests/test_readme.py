"""The README: its example runs and prints what it says, its links and names exist, its targets can be made."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def block(language: str) -> str:
    """The one block of code in this language."""
    [found] = re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return found


def test_the_example_prints_what_the_readme_says():
    done = subprocess.run([sys.executable, "-c", block("python")], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == block("text")


def test_the_example_needs_the_core_alone():
    imports = [node.module for node in ast.walk(ast.parse(block("python"))) if isinstance(node, ast.ImportFrom)]
    assert imports
    assert {str(module).split(".")[0] for module in imports} == {"lorafsm"}


@pytest.mark.parametrize("page", ["README.md", "gpu_e2e/README.md"])
def test_every_link_leads_to_a_file(page: str):
    text = (ROOT / page).read_text()
    links = [target for target in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in target]
    assert links
    assert [target for target in links if not (ROOT / page).parent.joinpath(target).exists()] == []


def test_what_it_says_to_make_can_be_made():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"make ([a-z-]+)", README))
    assert {"demo", "test", "venv"} <= named
    assert named - targets <= {"a"}, "prose"


def test_the_rule_that_serves_as_example_is_where_it_says():
    clauses = tomllib.loads((ROOT / "spec" / "clauses.toml").read_text())["clause"]
    [rule] = [clause for clause in clauses if clause["id"] == "rule 12"]
    assert "lorafsm.registry.reclaim:confirm_reclaim" in rule["core"]
    assert any(test.endswith("::test_a_receipt_must_show_the_absence") for test in rule["tests"])
    assert "test_a_receipt_must_show_the_absence" in README


def test_the_versions_are_those_that_are_installed():
    pins = "\n".join(path.read_text() for path in sorted((ROOT / "requirements").glob("*.txt")))
    for name, written in (("sglang", "SGLang"), ("torch", "torch"), ("transformers", "transformers")):
        match = re.search(rf"^{name}==(\S+)", pins, re.MULTILINE)
        assert match is not None, name
        assert re.search(rf"{written}\s+{re.escape(match[1])}\b", README), name


def test_the_picture_is_small():
    picture = ROOT / "gpu_e2e" / "report" / "example.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size < 300 * 1024
