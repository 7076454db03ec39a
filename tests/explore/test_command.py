"""`lorafsm explore` with the composed system: boxes, weak variants, simulations, and programs that run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lorafsm.explore import Path as Way
from lorafsm.system import Model
from lorafsm.system.boxes import BOXES, LARGE
from lorafsm.system.words import as_program

PAGES = Path(__file__).parents[2] / "spec" / "counterexamples"
COMMAND = "import sys; sys.path.insert(0, 'adapters'); from lorafsm_cli.main import app; app(sys.argv[1:])"


def run(*words: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "explore", *words],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
    )
    return done.returncode, done.stdout, done.stderr


def test_a_composed_box_as_json():
    code, out, _ = run("--box", "nothing goes wrong", "--json")
    [seen] = json.loads(out)
    assert code == 0
    assert (seen["box"], seen["of"], seen["frontier"], seen["violations"]) == ("nothing goes wrong", "system", 0, [])
    assert seen["states"] > 200
    assert seen["states_per_s"] > 0
    assert seen["taken"]["deliver begin"] == {"Prepared": seen["taken"]["deliver begin"]["Prepared"]}


def test_every_box_is_listed():
    out = run("--list")[1].splitlines()
    assert {*BOXES, *LARGE, "one bucket"} <= set(out)


def test_a_weak_variant_prints_its_page():
    code, out, _ = run("--weak", "broadcast_before_arming")
    assert code == 0
    assert out.rstrip() == (PAGES / "broadcast_before_arming.md").read_text().rstrip()


def test_a_simulation_says_that_it_is_one():
    words = ("--box", "large: every fault", "--simulate", "2", "--seed", "5", "--json")
    [seen] = json.loads(run(*words)[1])
    assert (seen["simulated"], seen["seed"], seen["frontier"]) == (2, 5, 1)
    [again] = json.loads(run(*words)[1])
    assert (again["states"], again["taken"]) == (seen["states"], seen["taken"])


@pytest.mark.parametrize(
    "words, said",
    [
        (("--weak", "window"), "there is no weak 'window'"),
        (("--box", "large: every"), "did you mean 'large: every fault'"),
        (("--box", "one bucket", "--simulate", "3"), "searched to its end"),
    ],
)
def test_an_error_is_one_line(words: tuple[str, ...], said: str):
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_a_path_of_a_box_is_a_program_that_runs():
    model = Model(BOXES["a publisher changes hands"])
    state, taken = model.start(), []
    for _ in range(12):
        taken.append(next(iter(model.moves(state))))
        state = model.step(state, taken[-1]).state
    program = as_program(Way(model.start(), tuple(taken)), "box a publisher changes hands")
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == "rest can be reached"
