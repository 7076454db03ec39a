"""Every tempting mistake is caught, and spec/counterexamples/ keeps how: written anew, each page is the same."""

import subprocess
import sys
from pathlib import Path

import pytest

from lorafsm.system import Model
from lorafsm.system.counterexample import MAX_STATES, as_page, shortest
from lorafsm.system.weak import WEAK

PAGES = Path(__file__).parents[2] / "spec" / "counterexamples"
LISTED = (
    "window_retention same_name_swap any_unknown_is_fatal reclaim_without_id commit_on_one_ready ready_without_digest "
    "evicted_tombstones begin_accepted_after_cleanup broadcast_before_arming repeated_reserve_opens_a_second_attempt "
    "cleanup_by_name repair_load_overtakes_unload old_inventory"
).split()


def test_every_mistake_of_the_list_is_there():
    assert sorted(WEAK) == sorted(LISTED)
    assert sorted(page.stem for page in PAGES.glob("*.md") if page.stem != "README") == sorted(LISTED)


@pytest.mark.parametrize("name", WEAK)
def test_a_mistake_breaks_its_invariant(name: str):
    violation = shortest(WEAK[name])
    assert violation is not None, "nothing is broken"
    assert [s for s in violation.sentences if s.startswith(WEAK[name].breaks)] != [], violation.sentences


@pytest.mark.parametrize("name", WEAK)
def test_the_same_box_breaks_nothing_under_the_real_rules(name: str):
    found = Model(WEAK[name].box).search(MAX_STATES)
    assert (found.violations, found.frontier) == ((), 0)


@pytest.mark.parametrize("name", WEAK)
def test_the_page_is_up_to_date(name: str):
    violation = shortest(WEAK[name])
    assert violation is not None
    written = (PAGES / f"{name}.md").read_text()
    assert as_page(name, violation) == written, f"lorafsm explore --weak {name} > spec/counterexamples/{name}.md"


@pytest.mark.parametrize("name", WEAK)
def test_the_program_of_a_page_runs_and_says_the_same(name: str):
    page = (PAGES / f"{name}.md").read_text()
    program = page.split("```python\n")[1].split("```")[0]
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    said = ran.stdout.splitlines()
    broken = [line[2:] for line in page.splitlines() if line.startswith("* ")]
    assert broken != []
    for sentence in broken:
        if sentence.startswith("liveness"):
            assert said[-1] == "rest is out of reach"
        else:
            assert sentence in said
