"""The house rules: what the core may import, names and sizes of files, and what a wheel contains."""

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("spec", "lorafsm", "adapters", "tests", "tla", "gpu_e2e")

CORE_IMPORTS = frozenset(
    "__future__ attrs immutables lorafsm enum re json hashlib struct math typing "
    "collections itertools functools bisect dataclasses".split()
)
CORE_CALLS = frozenset({"__import__", "breakpoint", "compile", "eval", "exec", "input", "open", "print"})
VAGUE = frozenset("util utils common helper helpers manager managers base misc".split())
STAND_INS = "engine-path"  # names of foreign packages that an engine's process imports
MACHINE_PATHS = re.compile(r"/(?:home|Users)/[a-z][\w.-]*/|/r(?:oot)/|C:\\\\Users")
SKIPPED_SUFFIXES = {".png", ".jpg", ".gz", ".zip", ".pyc", ".safetensors"}


def files(*folders: str, pattern: str = "*") -> Iterator[Path]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob(pattern)):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def faults_of_core(source: str) -> list[str]:
    """Every import outside the allow-list and every call that reaches the world, wherever it stands."""
    faults = []
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CORE_CALLS:
            faults.append(f"line {node.lineno}: call of {node.func.id}")
        faults += [f"line {node.lineno}: import of {n}" for n in names if n.split(".")[0] not in CORE_IMPORTS]
    return faults


def test_the_core_imports_only_data():
    seen = {shown(path): faults_of_core(path.read_text()) for path in files("lorafsm", pattern="*.py")}
    assert seen, "no file of the core was found"
    assert {name: faults for name, faults in seen.items() if faults} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import os",
        "import enum, time",
        "from os import path",
        "import os.path as p",
        "def f():\n    import random",
        "try:\n    from torch import Tensor\nexcept ImportError:\n    pass",
        "import lorafsm_journal",
        "import enumeration",
        "__import__('os')",
        "open('x')",
    ],
)
def test_the_import_rule_sees(source: str):
    assert len(faults_of_core(source)) == 1


def test_a_file_fits_in_the_head():
    long = {
        shown(path): lines
        for path in files("lorafsm", "adapters", "gpu_e2e", pattern="*.py")
        if (lines := path.read_text().count("\n")) > 400
    }
    assert long == {}, "more than about 400 lines is two concepts"


def test_names_say_what_is_inside():
    vague = {
        shown(path)
        for path in files("lorafsm", "adapters", "gpu_e2e", "tests", pattern="*.py")
        if STAND_INS not in path.parts and VAGUE & {*path.relative_to(ROOT).with_suffix("").parts}
    }
    assert vague == set()


def test_every_top_level_folder_says_what_lives_in_it():
    for folder in FOLDERS:
        text = (ROOT / folder / "README.md").read_text()
        assert "lives here" in text or "may live here" in text or "holds" in text, folder
        assert "may not" in text, folder


def test_no_path_of_a_machine_is_in_a_file():
    own = [path for path in ROOT.iterdir() if path.is_file() and path.name != ".git"]
    found = []
    for path in [*own, *files(*FOLDERS, ".ci", "requirements")]:
        if path.suffix in SKIPPED_SUFFIXES or path == Path(__file__):
            continue
        text = path.read_text(errors="replace")
        for number, line in enumerate(text.splitlines(), 1):
            if MACHINE_PATHS.search(line) or f"{ROOT}/" in line:
                found.append(f"{shown(path)}:{number}")
    assert found == []


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def name_of(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match is not None, requirement
    return match[0].lower()


def requirements_of(extra: str) -> set[str]:
    """Distribution names behind an extra, the project's own extras followed."""
    names: set[str] = set()
    for line in project()["optional-dependencies"][extra]:
        own = re.match(r"lorafsm\[([\w,]+)\]", line)
        names |= set().union(*map(requirements_of, own[1].split(","))) if own else {name_of(line)}
    return names


def test_the_core_needs_attrs_and_immutables_only():
    assert {name_of(line) for line in project()["dependencies"]} == {"attrs", "immutables"}


@pytest.mark.parametrize("extra", ["cli", "dev", "sglang"])
def test_no_light_extra_leads_to_torch(extra: str):
    names = requirements_of(extra)
    assert names
    assert names.isdisjoint({"torch", "ray", "sglang", "transformers", "safetensors"})


@pytest.mark.parametrize("file", ["engine-deps.txt", "engine-nodeps.txt", "dev.txt"])
def test_installs_are_pinned(file: str):
    lines = [x for x in (ROOT / "requirements" / file).read_text().splitlines() if x and not x.startswith("#")]
    assert lines
    assert [x for x in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", x)] == []


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Names of all files in a wheel that was built from this checkout."""
    out = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    [path] = out.glob("*.whl")
    return zipfile.ZipFile(path).namelist()


def packages() -> set[str]:
    """The import packages of this checkout."""
    return {"lorafsm", "gpu_e2e"} | {path.parent.name for path in (ROOT / "adapters").glob("*/__init__.py")}


def test_a_wheel_holds_every_package_and_nothing_else(wheel: list[str]):
    top = {name.split("/")[0] for name in wheel}
    assert {name for name in top if not name.endswith(".dist-info")} == packages()
    assert "adapters" not in top, "another distribution owns that name"


def test_a_wheel_holds_every_module(wheel: list[str]):
    modules = {shown(path) for path in files("lorafsm", "gpu_e2e", "adapters", pattern="*.py")}
    assert {name.removeprefix("adapters/") for name in modules} <= set(wheel)


def test_every_package_is_typed(wheel: list[str]):
    assert {name.split("/")[0] for name in wheel if name.endswith("/py.typed")} == packages()


def test_a_wheel_holds_the_plans_of_the_experiment(wheel: list[str]):
    assert {shown(path) for path in files("gpu_e2e", pattern="*.toml")} <= set(wheel)


def test_a_wheel_holds_the_tables_and_the_license(wheel: list[str]):
    tables = {f"lorafsm_cli/{shown(path)}" for path in files("spec", pattern="*.toml")}
    assert {name for name in wheel if name.startswith("lorafsm_cli/spec/")} == tables
    assert [name for name in wheel if name.endswith("/licenses/LICENSE")]
