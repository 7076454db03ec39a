"""The switch off: nothing imported, nothing changed (M17).  Each process is a fresh one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PATHS = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'adapters')!r}]\n"


def modules_after(program: str) -> set[str]:
    """What a fresh process has imported after this program."""
    done = subprocess.run(
        [sys.executable, "-c", f"{PATHS}{program}\nprint(*sorted(sys.modules))"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_asking_the_switch_imports_nothing():
    program = "import argparse\nfrom lorafsm_relax import versioned_enabled\n"
    program += "assert versioned_enabled(argparse.Namespace()) is False"
    new = modules_after(program) - modules_after("import argparse, importlib, typing")
    assert new - {"__future__"} == {"lorafsm_relax", "lorafsm_relax.switch"}


def test_the_services_import_neither_ray_nor_torch_nor_an_http_client():
    new = modules_after("import lorafsm_asyncio, lorafsm_relax.shard, lorafsm_relax.update, lorafsm_relax.fleet")
    assert "lorafsm_asyncio.binder" in new
    assert new.isdisjoint({"ray", "torch", "httpx", "sglang", "lorafsm_ray", "lorafsm_torch", "lorafsm_sglang"})


def test_a_name_that_is_not_there_is_an_attribute_error():
    import lorafsm_relax

    assert {"VersionedShard", "versioned_enabled", "post_once"} <= set(lorafsm_relax.__all__)
    for name in lorafsm_relax.__all__:
        assert getattr(lorafsm_relax, name) is not None
    with pytest.raises(AttributeError, match="no attribute nothing"):
        _ = lorafsm_relax.nothing
