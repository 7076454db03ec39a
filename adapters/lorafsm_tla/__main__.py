"""`python -m lorafsm_tla check`: every model of tla/manifest.toml finds what the manifest says."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Annotated

import typer

from lorafsm_cli.one_line import CliError, OneLineGroup
from lorafsm_tla.jar import java, tla2tools
from lorafsm_tla.manifest import TIERS, Model, folder, pinned, read_manifest, write_tables
from lorafsm_tla.tlc import Result, run

app = typer.Typer(cls=OneLineGroup, pretty_exceptions_enable=False, add_completion=False, rich_markup_mode=None)


@app.callback()
def root() -> None:
    """The formal models and TLC."""


@app.command()
def check(
    names: Annotated[list[str] | None, typer.Argument(help="Models to run; none: all of the tier.")] = None,
    tier: Annotated[str, typer.Option(help="ci, or long (which holds the larger models and simulation).")] = "ci",
    jobs: Annotated[int, typer.Option(min=1, help="Runs beside one another.")] = min(2, os.cpu_count() or 1),
    pin: Annotated[
        bool, typer.Option("--pin", help="Take counts and golden graphs as they come; renew README.md.")
    ] = False,
    output: Annotated[bool, typer.Option("--output", help="Print what TLC printed, for models that fail.")] = False,
) -> None:
    """Run models with TLC; every exit status, property, count and graph must be as the manifest says."""
    java(), tla2tools()  # say what is missing before anything starts
    tla = folder()
    models = _chosen(read_manifest(tla / "manifest.toml"), names or [], tier)
    started = monotonic()
    results = _run_all(models, tla, jobs, pin, output)
    if pin:
        pinned(tla / "manifest.toml", {r.model.name: _counts(r) for r in results if r.ok})
        write_tables(tla)
    failed = [result.model.name for result in results if not result.ok]
    total = sum(result.distinct or 0 for result in results)
    print(f"{len(results)} models, {total:,} distinct states, {monotonic() - started:.0f} s", flush=True)
    if failed:
        raise CliError(f"not as the manifest says: {', '.join(failed)}", 1)


@app.command()
def trace(journal: Annotated[Path, typer.Argument(help="A journal; may be in use by its writer.")]) -> None:
    """Check with TLC that what a journal tells is what LoraRegistry.tla allows."""
    from lorafsm_tla.trace import check_journal

    java(), tla2tools()
    print(check_journal(journal))


def _chosen(models: list[Model], names: list[str], tier: str) -> list[Model]:
    if tier not in TIERS:
        raise CliError(f"--tier: {tier} is none; take one of {', '.join(TIERS)}")
    if unknown := set(names) - {model.name for model in models}:
        raise CliError(f"no model is called {', '.join(sorted(unknown))}; see tla/manifest.toml")
    return [model for model in models if (model.name in names if names else model.tier == tier)]


def _run_all(models: list[Model], tla: Path, jobs: int, pin: bool, output: bool) -> list[Result]:
    lock, width = Lock(), max((len(model.name) for model in models), default=0)
    live = sys.stderr.isatty()

    def say(result: Result) -> None:
        m = result.model
        verdict = "ok" if result.ok else "FAILED"
        found = f"{result.distinct or 0:,} states"
        if m.exit and result.ok:
            found = f"{m.violates or 'deadlock'} is broken, as it must be"
        with lock:
            print(f"{verdict:6} {m.name:{width}} {result.seconds:6.1f} s  {found}", flush=True)
            for fault in result.faults:
                print(f"       {fault}", flush=True)
            if output and not result.ok:
                print(result.output, flush=True)

    def one(model: Model) -> Result:
        def tell(line: str) -> None:
            if live:
                with lock:
                    print(f"       {model.name}: {line}", end="\x1b[K\r", file=sys.stderr, flush=True)

        result = run(model, tla, tell=tell, pin=pin)
        say(result)
        return result

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, models))


def _counts(result: Result) -> dict[str, float]:
    found: dict[str, float | None] = {"seconds": round(result.seconds, 1)}
    if result.model.exit == 0:
        found |= {"generated": result.generated, "distinct": result.distinct, "depth": result.depth}
    return {name: value for name, value in found.items() if value is not None}


if __name__ == "__main__":
    app()
