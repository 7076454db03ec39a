"""The diagrams under spec/ are those of today's tables."""

import re
from pathlib import Path

import pytest

from lorafsm_cli import diagram
from lorafsm_cli.tables import NAMES, read_table

FOLDER = Path(__file__).parents[2] / "spec" / "diagrams"
REDRAW = "stale; run: python -m lorafsm_cli.diagram"


@pytest.mark.parametrize("lifecycle", NAMES)
def test_the_page_is_drawn_from_the_table(lifecycle: str):
    assert (FOLDER / f"{lifecycle}.md").read_text() == diagram.page(read_table(lifecycle)), REDRAW


@pytest.mark.parametrize("lifecycle", NAMES)
def test_the_picture_is_drawn_from_the_table(lifecycle: str):
    text = (FOLDER / f"{lifecycle}.svg").read_text()
    found = re.match(r"<!-- (\w+): drawn from ([0-9a-f]{64}) -->\n<svg", text)
    assert found is not None
    assert found[1] == lifecycle
    assert found[2] == diagram.digest_of(diagram.dot(lifecycle)), REDRAW


@pytest.mark.parametrize("lifecycle", NAMES)
def test_a_picture_shows_every_state_and_every_change(lifecycle: str):
    table = read_table(lifecycle)
    arrows = re.findall(r"^    (\S+) --> (\S+): ", diagram.mermaid(lifecycle), re.MULTILINE)
    drawn = {("-" if source == "[*]" else source, dest) for source, dest in arrows}
    assert drawn == {(row.state, row.value) for row in table.changes()}
    svg = (FOLDER / f"{lifecycle}.svg").read_text()
    assert set(re.findall(r"<title>(\w+)</title>", svg)) >= set(table.states) - {"-"}


def test_nothing_else_lies_there():
    expected = {f"{name}{suffix}" for name in NAMES for suffix in (".md", ".svg")}
    assert {path.name for path in FOLDER.iterdir()} == expected


def test_without_graphviz_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(diagram, "which", lambda program: None)
    with pytest.raises(RuntimeError, match="Graphviz"):
        diagram.svg("version")
