"""Starts `guard_program.py` in processes of its own and reads what they saw."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from lorafsm_sglang.cpu_profile import cpu_environment
from lorafsm_sglang.guard import guard_environment, write_token

ROOT = Path(__file__).parents[2]
DEADLINE_S = 560  # seconds; idle cores need 40
_PROGRAM = "import runpy; runpy.run_module('tests.adapters.guard_program', run_name='__main__', alter_sys=True)"

Seen = dict[str, dict[str, Any]]


def run(world: Path, kinds: dict[str, Path | None], only: str = "") -> dict[str, Seen]:
    """One process a kind, all at once, and what each saw, by scenario; `only` names the one that is wanted.

    `kinds` maps a name to the folder of another SGLang than the installed one; "native" runs without the guard.
    `world` holds the tiny model.
    """
    running = {}
    for kind, wheel in kinds.items():
        own = world / kind
        path = [str(wheel)] if wheel else []
        told = guard_environment(
            cpu_environment({**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "adapters")))}),
            "E0",
            "s1",
            store=own / "store",
            host=own / "host",
            token_file=write_token(own / "token", "t" * 32),
        )
        told["PYTHONPATH"] = os.pathsep.join([*path, told["PYTHONPATH"]])
        program = f"{'import tests.adapters.older_wheels; ' if wheel else ''}{_PROGRAM}"
        how = "native" if kind == "native" else "guarded"
        command = [sys.executable, "-c", program, str(world / "model"), str(own), how, only]
        with (own / "log").open("wb") as log:
            running[kind] = subprocess.Popen(command, env=told, stdout=subprocess.PIPE, stderr=log, cwd=ROOT)
    try:
        return {kind: _rows(process, world / kind / "log") for kind, process in running.items()}
    finally:
        for process in running.values():
            process.kill()
            process.wait()


def _rows(process: subprocess.Popen[bytes], log: Path) -> Seen:
    out, _ = process.communicate(timeout=DEADLINE_S)
    rows = [json.loads(line) for line in out.decode().splitlines() if line.startswith('{"scenario"')]
    assert process.returncode == 0, log.read_text(errors="replace")[-3000:]
    return {row.pop("scenario"): row for row in rows}
