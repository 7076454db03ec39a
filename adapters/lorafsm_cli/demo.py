"""`lorafsm demo`: run the main job of `gpu_e2e` and show what was expected and what was seen."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lorafsm_cli.one_line import CliError

_NEEDS = ("torch", "safetensors", "httpx", "psutil", "sglang", "transformers", "jinja2")
_INSTALL = "run `make venv` in a checkout (CPU), or pip install 'lorafsm[cli,cuda]' (CUDA)"


def missing() -> tuple[str, ...]:
    """Packages that the demo needs and that are not installed."""
    return tuple(name for name in _NEEDS if find_spec(name) is None)


def run(
    out: Path,
    engines: int,
    transport: str = "torch",
    registry: str = "",
    *,
    quiet: bool,
    keep_stdout_clean: bool,
) -> dict[str, Any]:
    """Run the demo into `out` and return its report; raises CliError when it cannot start here."""
    if lacking := missing():
        raise CliError(f"lorafsm demo needs {', '.join(lacking)}: {_INSTALL}")
    # What a library prints while it is imported must not end up in the JSON.
    with redirect_stdout(sys.stderr) if keep_stdout_clean else nullcontext():
        try:
            from gpu_e2e.cpu import run_demo
        except ModuleNotFoundError as error:
            raise CliError(f"lorafsm demo needs {error.name}: {_INSTALL}") from error
        report: dict[str, Any] = run_demo(out, engines, teller(quiet), transport=transport, registry=registry)
    return report


def _ignore(_line: str) -> None:
    pass


def teller(quiet: bool) -> Callable[[str], None]:
    """Progress lines on stderr, each with the seconds since the start; none where `quiet`."""
    if quiet:
        return _ignore
    console, start = Console(stderr=True, highlight=False), monotonic()

    def tell(line: str) -> None:
        console.print(Text.assemble((f"{monotonic() - start:7.1f} s  ", "dim"), line), soft_wrap=True)

    return tell


def show(report: dict[str, Any], out: Path, console: Console) -> None:
    """The table of expectations, the key figures and where the report lies."""
    table = Table(title="Expectations", title_justify="left", title_style="bold")
    table.add_column("")
    table.add_column("expectation", overflow="fold")
    table.add_column("expected", overflow="fold")
    table.add_column("seen", overflow="fold")
    for item in report["expectations"]:
        held = bool(item["ok"])
        mark = Text("ok", "green") if held else Text("FAILED", "bold red")
        table.add_row(mark, Text(item["name"]), Text(_shown(item["expected"])), Text(_shown(item["seen"])))
    console.print(table)
    failed = sum(not item["ok"] for item in report["expectations"])
    verdict = f"{failed} of {len(report['expectations'])} failed" if failed else "every expectation held"
    if not report["ok"] and not failed:
        verdict = "the run did not end well"
    console.print(Text(f"{verdict}; {_figures(report)}", "bold green" if report["ok"] else "bold red"), soft_wrap=True)
    for name in ("report.html", "report.json"):
        if (out / name).is_file():
            console.print(Text(f"  {out / name}"), soft_wrap=True)


def _figures(report: dict[str, Any]) -> str:
    parts = (
        f"{report['requests']} requests",
        f"{report['request_failures']} failed",
        f"{len(report['sessions'])} sessions",
        f"at most {report['max_managed_versions']} versions on an engine",
        f"{report['pause_calls']} pause calls",
    )
    return ", ".join(parts)


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
