"""`python -m lorafsm_sglang.serve ...`: SGLang's own server with the guard, and the CPU profile where it is asked for.

Takes the flags of `sglang.launch_server`; the guard is told by the environment (`guard.guard_environment`).
Without the guard's variables it does not start: an engine that was meant to be guarded must not run unguarded.
"""

from __future__ import annotations

import os
import runpy
import sys

from lorafsm.errors import InvalidField
from lorafsm_sglang.guard.settings import ENGINE, PLUGIN, settings_from


def main() -> None:
    """Check what the guard is told, then be SGLang's server in this process."""
    try:
        settings = settings_from(os.environ)
    except InvalidField as error:
        sys.exit(f"lorafsm_sglang.serve: {error}")
    if settings is None:
        sys.exit(f"lorafsm_sglang.serve: set {ENGINE} and its neighbours; see lorafsm_sglang.guard.guard_environment")
    allowed = [name.strip() for name in os.environ.get("SGLANG_PLUGINS", "").split(",") if name.strip()]
    if allowed and PLUGIN not in allowed:
        sys.exit(f"lorafsm_sglang.serve: SGLANG_PLUGINS leaves out {PLUGIN}; add it, or this engine runs unguarded")
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
