"""The tools of net 3: what they find in the trees, what they make of it, and that what is noted is of today's text."""

import ast
import tomllib
from collections import Counter

import pytest

from lorafsm.records import new_registry
from tests.mutants import core_killers, notes, spec_run
from tests.mutants.core_tree import core_mutants, modules, mutants_of, mutated
from tests.mutants.forked import each
from tests.mutants.spec_tree import ROOTS, actions_of, spec_mutants
from tests.spec.test_tla_trace import needs_tlc

CORE = {mutant.id: mutant for mutant in core_mutants()}
SPEC = {mutant.id: mutant for mutant in spec_mutants()}
FEWEST = 600
EQUIVALENT = 0.05
SOURCE = """
def guarded(a, b):
    if a is None or a.x < b:
        return refuse(a, 1, "no" if b else "never", field="x")
    return evolve(a, x=b + 1, reason="because" if b else "")
"""


def test_there_are_many_and_each_has_its_own_name():
    assert len(CORE) == len(core_mutants()) >= FEWEST
    assert len(SPEC) == len(spec_mutants()) >= FEWEST
    assert {mutant.kind for mutant in CORE.values()} == {"drop guard", "negate guard", "drop effect", "boundary"}
    assert {mutant.kind for mutant in SPEC.values()} == {"drop guard", "drop effect", "boundary"}


def test_what_is_found_in_a_function():
    found = [(mutant.kind, mutant.text) for mutant in mutants_of("m", SOURCE)]
    assert found == [
        ("drop guard", "a is None or a.x < b"),
        ("drop guard", "a is None"),
        ("drop guard", "a.x < b"),
        ("boundary", "a.x < b"),
        ("drop effect", "x=b + 1"),
        ("drop effect", "b + 1"),
    ]


def test_a_mutant_of_the_core_is_another_program():
    sources = {name: path.read_text() for name, path in modules().items()}
    plain = {name: ast.unparse(ast.parse(source)) for name, source in sources.items()}
    for mutant in list(CORE.values())[::15]:
        tree = mutated(sources[mutant.module], mutant)
        compile(tree, "mutant", "exec")
        assert ast.unparse(tree) != plain[mutant.module], mutant.id


def test_every_action_has_mutants():
    for module in ROOTS:
        having = Counter(mutant.definition for mutant in SPEC.values() if mutant.module == module)
        assert [name for name in actions_of(module) if not having[name]] == []


@needs_tlc
@pytest.mark.parametrize(("module", "box"), [("LoraRegistry", "lag"), ("EngineAgent", "agent two")])
def test_the_text_with_all_mutants_in_it_is_the_specification_while_none_acts(module: str, box: str):
    chosen = dict(enumerate((mutant for mutant in SPEC.values() if mutant.module == module), 1))
    assert spec_run._run(box, chosen, [0]) == spec_run._Run()


def _killed(name: str) -> bool:
    core_killers.put_in(CORE[name])
    return any(killer.look() for killer in core_killers.killers(CORE[name]) if killer.name.endswith(" 20"))


def test_a_mutant_is_seen_and_leaves_this_process_alone():
    [name] = [
        name for name in CORE if name.startswith("registry.sessions:bind_first: drop effect: version.session_refs")
    ]
    core_killers.read_all([core_killers.FIRST])
    assert list(each([name], _killed, 1, lambda name: 120.0)) == [(name, True)]
    box = core_killers.graph_of_registry("lag", frozenset(core_killers.step_module._TRANSITIONS), 20)
    assert box is None
    assert new_registry("e1").next_number == 1


def test_who_takes_too_long_is_stopped():
    def forever(name: str) -> None:
        while True:
            pass

    assert list(each(["a"], forever, 1, lambda name: 0.2)) == [("a", "too late")]


def test_what_is_excused_exists_has_a_reason_and_is_little():
    entries = tomllib.loads((notes.HERE / "equivalents.toml").read_text())
    for part, known in (("core", CORE), ("spec", SPEC)):
        assert set(notes.equivalent(part)) <= set(known)
        assert len(notes.equivalent(part)) <= EQUIVALENT * len(known)
        assert all(len(entry["why"]) > 20 for entry in entries.get(part, []))


def test_what_is_noted_is_of_todays_text():
    """If not: `make mutants` runs them all, `python -m tests.mutants --write` notes what was seen."""
    for part, known in (("core", CORE), ("spec", SPEC)):
        noted = notes.read_notes(part)
        assert not noted or set(noted) == set(known)
        assert {name for name, killer in noted.items() if not killer} <= set(notes.equivalent(part))
    assert notes.table() in notes.README.read_text()
