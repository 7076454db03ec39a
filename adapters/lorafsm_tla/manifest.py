"""tla/manifest.toml: which models there are, and what each run of TLC must find."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from attrs import field, fields, frozen
from attrs.validators import in_, instance_of

from lorafsm_cli.one_line import CliError

TIERS = ("ci", "long")
EXITS = {0: "holds", 11: "deadlocks", 12: "breaks", 13: "breaks"}


@frozen(kw_only=True)
class Model:
    """One run of TLC and its expected result."""

    name: str = field(validator=instance_of(str))
    module: str = field(validator=instance_of(str))
    cfg: str = field(validator=instance_of(str))
    tier: str = field(default="ci", validator=in_(TIERS))
    workers: int = field(default=1, validator=instance_of(int))
    exit: int = field(default=0, validator=in_(EXITS))
    violates: str = ""  # the property that must be broken when `exit` is not 0
    deadlock: bool = False  # a deadlock is an error: for traces, whose end is a loop
    generated: int | None = None  # states
    distinct: int | None = None
    depth: int | None = None
    seconds: float | None = None  # how long it took when it was pinned; for the reader only
    golden: str = ""  # the committed graph that the dump must equal
    simulate: int = 0  # behaviours to walk at random instead of searching
    simulate_depth: int = 100
    minutes: float = 5.0  # the time limit
    why: str = ""  # one sentence: what the model is for, or which mistake it makes


def folder() -> Path:
    """The folder tla/ of this checkout, or of the installed package; raises CliError naming where it was sought."""
    near = (Path(__file__).parents[2] / "tla", Path(__file__).parent / "tla")
    for path in near:
        if (path / "manifest.toml").is_file():
            return path
    raise CliError(f"no manifest.toml in {' or '.join(map(str, near))}; run from a checkout")


def read_manifest(path: Path) -> list[Model]:
    """The models in the order of the file; raises CliError naming the entry that is wrong."""
    known = {f.name for f in fields(Model)}
    models = []
    for entry in tomllib.loads(path.read_text()).get("model", []):
        models.append(_model(entry, known, path))
    names = [model.name for model in models]
    if len(set(names)) != len(names):
        raise CliError(f"{path}: a name occurs twice; names must be unique")
    return models


def _model(entry: dict[str, Any], known: set[str], path: Path) -> Model:
    name = entry.get("name", "?")
    if unknown := set(entry) - known:
        raise CliError(f"{path}: model {name} has unknown fields {', '.join(sorted(unknown))}")
    try:
        model = Model(**entry)
    except (TypeError, ValueError) as error:
        raise CliError(f"{path}: model {name}: {error}") from None
    if (model.exit in (12, 13)) != bool(model.violates):
        raise CliError(f"{path}: model {name}: `violates` belongs to exit 12 or 13, and to no other")
    return model


def table(models: list[Model], tier: str) -> str:
    """The models of a tier as a table in Markdown."""
    lines = ["| model | what for | result | generated | distinct | depth | s |", "|---|---|---|---:|---:|---:|---:|"]
    for m in models:
        if m.tier == tier:
            result = f"breaks `{m.violates}`" if m.violates else EXITS[m.exit]
            counts = [f"{count:,}" if count is not None else "" for count in (m.generated, m.distinct, m.depth)]
            seconds = "" if m.seconds is None else f"{m.seconds:.0f}"
            lines.append(f"| {m.name} | {m.why} | {result} | {' | '.join(counts)} | {seconds} |")
    return "\n".join(lines)


def write_tables(tla: Path) -> None:
    """Put the tables of both tiers into tla/README.md, between the comments that mark their places."""
    models = read_manifest(tla / "manifest.toml")
    readme = tla / "README.md"
    text = readme.read_text()
    for tier in TIERS:
        begin, end = f"<!-- models: {tier} -->", f"<!-- end: {tier} -->"
        before, found, rest = text.partition(begin)
        if not found or end not in rest:
            raise CliError(f"{readme} lacks {begin} or {end}, between which the table stands")
        text = f"{before}{begin}\n{table(models, tier)}\n{end}{rest.partition(end)[2]}"
    readme.write_text(text)


def pinned(path: Path, found: dict[str, dict[str, float]]) -> None:
    """Write the counts of these models into the manifest; everything else stays as it is."""
    import tomlkit

    document = tomlkit.parse(path.read_text())
    for entry in document["model"]:
        for key, value in found.get(str(entry["name"]), {}).items():
            entry[key] = value
    path.write_text(tomlkit.dumps(document))
