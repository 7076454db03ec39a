"""Adapters do not bypass the core: with a `step` that refuses everything, the tests of the adapters fail.

The tests run in a process of their own, once: a plugin puts the refusing step into `lorafsm.registry` before any of
them is imported.  That the same tests pass with the real step is what the rest of the suite says.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

PLUGIN = """
from lorafsm import registry
from lorafsm.outcomes import Code, Refusal
from lorafsm.registry.answer import Step

def refuses_everything(state, event):
    return Step(state, Refusal(Code.BAD_INPUT, "this step refuses everything"))

registry.step = refuses_everything
"""

RESULT = re.compile(r"^(PASSED|FAILED|ERROR) (tests/\S+)", re.MULTILINE)
JOURNAL = "tests/adapters/test_journal.py"
SGLANG = "tests/adapters/asyncio_services/test_staged_engines.py"
# Of the journal's tests, those whose point is that a life is written down and comes back.
MUST_NOTICE = {
    f"{JOURNAL}::test_a_life_comes_back",
    f"{JOURNAL}::test_a_life_goes_on_where_it_stopped",
    f"{JOURNAL}::test_the_journal_is_written_before_the_state_is_seen",
    f"{JOURNAL}::test_recovery_is_step",
}


def test_a_step_that_refuses_everything_fails_the_adapters_tests(tmp_path: Path):
    (tmp_path / "refusing_step.py").write_text(PLUGIN)
    words = ["-p", "refusing_step", "-p", "no:cacheprovider", "-q", "--tb=no", "-rA", JOURNAL, SGLANG]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTEST_ADDOPTS": "", "HYPOTHESIS_PROFILE": "dev"},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=120,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    failed = {name.split("[")[0] for result, name in RESULT.findall(done.stdout) if result == "FAILED"}
    other = {name for result, name in RESULT.findall(done.stdout) if result != "FAILED"}
    assert failed >= MUST_NOTICE
    assert {name for name in failed if name.startswith(SGLANG)}
    assert {name for name in other if name.startswith(SGLANG)} == set(), "a test that passes without a registry"
