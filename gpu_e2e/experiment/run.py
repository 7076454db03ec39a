"""One run of the experiment: is everything as planned, then the sections one after another, then the report.

`prepare` refuses to start where plan and reality differ; `dry_run` says what it found and starts no engine.
"""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import subprocess
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gpu_e2e.checks import Expectations
from gpu_e2e.experiment import baselines, comparison, kv, numeric, online, profiles
from gpu_e2e.experiment.context import Context
from gpu_e2e.experiment.deployment import deployment
from gpu_e2e.experiment.plan import Plan, PlanMismatch, Reality, check_before
from gpu_e2e.fleet import ended_by_sigterm
from lorafsm.errors import InvalidField, LoraFsmError
from lorafsm_sglang.guard.fingerprint import base_fingerprint
from lorafsm_sglang.ports import free_port

SECTIONS = ("numeric", "kv", "online", "comparison")
MARK = ".lorafsm-experiment"

_LEAST_DISK_GIB = 1.0
_MANY = 200  # characters of a value in a dry run


def packages(plan: Plan) -> dict[str, str]:
    """The installed versions of the plan's packages; a missing one has none."""
    found = {}
    for name in plan.code.packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return found


def prepare(plan: Plan, out: Path, progress: Callable[[str], None]) -> Context:
    """Model, fixtures and folder for a run; PlanMismatch or InvalidField where it may not start.

    `out` must be new, empty, or an earlier run's, which is cleared.
    """
    out = out.resolve()
    _check_packages(plan)  # before anything is computed with them, and before an earlier run's results go
    _clear(out)
    model = profiles.model_folder(plan, out)
    config = profiles.model_config(model)
    snapshots = profiles.fixtures(plan, config)
    base = base_fingerprint(model)
    check_before(
        plan,
        Reality(
            packages=packages(plan),
            config=config,
            fingerprint=base,
            digests={letter: snapshot.digest for letter, snapshot in snapshots.items()},
            devices=0 if plan.engine.device == "cpu" else profiles.devices(),
            memory_gib=profiles.free_memory_gib(plan),
        ),
    )
    if (free := profiles.free_disk_gib(out)) < _LEAST_DISK_GIB:
        raise PlanMismatch("out", f"{free:.1f} GiB are free there, {_LEAST_DISK_GIB:.0f} are needed")
    return Context(plan, out, model, base, snapshots, progress)


def check_sections(sections: Sequence[str]) -> None:
    """Raises InvalidField for a name that is no section's."""
    if odd := sorted(set(sections) - set(SECTIONS)):
        raise InvalidField("sections", f"{odd[0]!r} is none; take some of {', '.join(SECTIONS)}")


def run(context: Context, sections: Sequence[str] = SECTIONS) -> dict[str, Any]:
    """Run the sections and write report.json (and the page) into the run's folder; returns the report.

    `ok` of what is returned is of these sections; in report.json a section that did not run keeps it from being true.
    EngineStartError names the log of an engine that does not start; PlanMismatch the setting of one that is not as
    planned.  Conditions that did not hold are in the report.
    """
    check_sections(sections)
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    with ended_by_sigterm():
        found = asyncio.run(play(context, sections))
    context.recorder.close()
    about = {
        "run": {"started_at": started_at, "duration_s": round(context.recorder.now(), 1)},
        "plan": context.plan.as_dict(),
        "environment": environment(context.plan),
    }
    module = import_module("gpu_e2e.experiment.report")
    report: dict[str, Any] = module.write({**about, **found}, context.out)
    played = [condition["state"] for condition in report["conditions"] if condition["section"] in found]
    return {**report, "ok": bool(played) and set(played) <= module.GOOD}


async def play(context: Context, sections: Sequence[str]) -> dict[str, Any]:
    """Play the sections one after another, each on engines of its own; returns each one's results by name.

    A section that breaks off says so as a condition, and the others are played; an engine that does not start, or is
    not as planned, ends the run.
    """
    found: dict[str, Any] = {}
    exact = [name for name in ("numeric", "kv") if name in sections]
    if exact or "comparison" in sections:
        context.progress("baselines: A only and B only, in clean processes")
        async with context.clean_engines(baselines.LETTERS) as ports:
            base = await baselines.make(context, ports)
            if "comparison" in sections:  # last: these engines are clean no longer
                found["comparison"] = await _tried(context, "comparison", comparison.run(context, ports))
    if exact:
        context.progress("numbers and KV: fresh guarded engines")
        async with deployment(context, "exact") as stage:
            # The KV experiments need both versions, which the numeric scene publishes; their prefixes are their own.
            found["numeric"] = await _tried(context, "numeric", numeric.run(context, base, stage))
            if "kv" in sections and "rows" in found["numeric"]:
                found["kv"] = await _tried(context, "kv", kv.run(context, base, stage))
    if "online" in sections:
        found |= await online.run(context)
    return found


async def _tried(context: Context, name: str, section: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    try:
        return await section
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        expect = Expectations()
        expect.expect(f"section {name} came to its end", True, f"{type(error).__name__}: {error}"[:400])
        context.progress(f"{name} broke off: {error}")
        return {"ok": False, "conditions": expect.rows}


def dry_run(plan: Plan, out: Path) -> dict[str, Any]:
    """Everything that is checked before engines are started, each with what was found; the plan; starts nothing.

    `ok` is true where a run would go on to start its engines.
    """
    scratch = out.resolve() / "dry-run"
    rows: list[dict[str, Any]] = []

    def check(name: str, look: Callable[[], object]) -> Any:
        try:
            seen = look()
        except (LoraFsmError, OSError, ValueError) as error:
            rows.append({"name": name, "ok": False, "seen": str(error)[:_MANY]})
            return None
        rows.append({"name": name, "ok": True, "seen": str(seen)[:_MANY]})
        return seen

    check("out", lambda: _found_in(out.resolve()))
    check("packages", lambda: _check_packages(plan))
    check("ports", lambda: [free_port() for _ in range(2 * plan.engine.count)])
    check("memory", lambda: f"{profiles.free_memory_gib(plan):.1f} GiB free, {plan.engine.memory_gib} GiB an engine")
    check("disk", lambda: f"{profiles.free_disk_gib(out.resolve()):.1f} GiB free")
    check("devices", lambda: "none needed" if plan.engine.device == "cpu" else profiles.devices())
    check("flags", lambda: " ".join(profiles.flags(plan, Path("MODEL"))))
    check("model, fixtures, all of the plan", lambda: prepare(plan, scratch, lambda _: None).base)
    shutil.rmtree(scratch, ignore_errors=True)
    return {"ok": all(row["ok"] for row in rows), "checks": rows, "plan": plan.as_dict()}


def _check_packages(plan: Plan) -> Mapping[str, str]:
    found = packages(plan)
    for name, planned in plan.code.packages.items():
        if found[name] != planned:
            raise PlanMismatch(f"code.packages.{name}", f"here it is {found[name]!r}, in the plan {planned!r}")
    return found


def environment(plan: Plan) -> dict[str, Any]:
    """Where the run took place; `revision` is the checkout's, with a + where it has changes, or empty."""
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "revision": _revision(),
        **packages(plan),
    }


def _revision() -> str:
    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True, check=False, timeout=10
        )
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        head = git("rev-parse", "HEAD")
        return head + ("+" if head and git("status", "--porcelain", "-uno") else "")
    except OSError:
        return ""


def _clear(out: Path) -> None:
    """Remove an earlier run's results; a folder that holds anything else is somebody's and stays untouched."""
    _found_in(out)
    try:
        for path in out.iterdir() if out.exists() else ():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        out.mkdir(parents=True, exist_ok=True)
        (out / MARK).write_text("written by lorafsm experiment, which clears this folder before each run\n")
    except OSError as error:
        raise InvalidField("out", f"{out} cannot be written: {error.strerror}; name another folder") from error


def _found_in(out: Path) -> str:
    """What is in the folder now, in words; InvalidField where a run may not put its results there."""
    if out.exists() and not out.is_dir():
        raise InvalidField("out", f"{out} is a file; name a folder")
    found = {path.name for path in out.iterdir()} if out.exists() else set()
    if found and MARK not in found:
        raise InvalidField("out", f"{out} holds {min(found)} and no run's mark; name an empty or a new folder")
    return "an earlier run's results, which a run removes" if found else "nothing"
