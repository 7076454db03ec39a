"""`lorafsm experiment`: the acceptance run of RFC 7.2 and 7.3 by a fixed plan, and what it would need."""

from __future__ import annotations

import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lorafsm_cli.demo import missing, teller
from lorafsm_cli.one_line import CliError

_INSTALL = "run `make venv` in a checkout (CPU), or pip install 'lorafsm[cli,cuda,ray]' (CUDA)"


def run(
    profile: str,
    plan: Path | None,
    out: Path,
    *,
    dry: bool,
    quiet: bool,
    keep_stdout_clean: bool,
    sections: str = "",
    publications: int = 0,
) -> dict[str, Any]:
    """Run or dry-run a plan; CliError when it cannot start here, PlanMismatch when it may not."""
    if lacking := missing():
        raise CliError(f"lorafsm experiment needs {', '.join(lacking)}: {_INSTALL}")
    # What a library prints while it is imported must not end up in the JSON.
    with redirect_stdout(sys.stderr) if keep_stdout_clean else nullcontext():
        from gpu_e2e.experiment import run as experiment
        from gpu_e2e.experiment.plan import PLANS, read_plan, with_publications

        read = read_plan(plan or PLANS / f"{profile}.toml")
        if read.profile != profile:
            raise CliError(f"--profile: this is a plan of {read.profile}, not of {profile}")
        if publications:
            read = with_publications(read, publications)
        chosen = tuple(name.strip() for name in sections.split(",")) if sections else experiment.SECTIONS
        experiment.check_sections(chosen)
        if dry:
            return experiment.dry_run(read, out)
        return experiment.run(experiment.prepare(read, out, teller(quiet)), chosen)


def show_dry(found: dict[str, Any], console: Console) -> None:
    """The plan, and the checks of a dry run."""
    console.print_json(data=found["plan"])
    console.print(_table("Checks", [(row["ok"], row["name"], row["seen"]) for row in found["checks"]]))


def show(report: dict[str, Any], out: Path, console: Console) -> None:
    """The conditions that did not hold, the count of those that did, and where the report lies."""
    conditions = report["conditions"]
    failed = [row for row in conditions if row["state"] == "fail"]
    if failed:
        rows = [(False, row["name"], f"expected {row['expected']}, seen {row['seen']}") for row in failed]
        console.print(_table("Conditions that did not hold", rows))
    held = sum(row["state"] == "pass" for row in conditions)
    missing = sum(row["state"] == "not run" for row in conditions)
    verdict = f"{held} of {len(conditions)} conditions held" + (f", {missing} did not run" if missing else "")
    for row in conditions:
        if row["state"] == "not judged":
            verdict += f"; {row['name']} {row['seen']} is not judged ({row['expected']})"
    console.print(Text(verdict, "bold green" if report["ok"] else "bold red"))
    for name in ("report.html", "report.json"):
        if (out / name).is_file():
            console.print(Text(f"  {out / name}"), soft_wrap=True)


def _table(title: str, rows: list[tuple[bool, str, str]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for heading in ("", "what", "seen"):
        table.add_column(heading, overflow="fold")
    for held, name, seen in rows:
        table.add_row(Text("ok", "green") if held else Text("FAILED", "bold red"), Text(name), Text(seen))
    return table
