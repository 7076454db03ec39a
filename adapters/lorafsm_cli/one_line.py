"""Every failure of the command line is one line on stderr and an exit status that is not 0.

1: the thing asked for went wrong; 2: it was asked wrongly, or something is not installed; 130: interrupted.
LORAFSM_TRACEBACK=1 shows where an error came from.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from typer.core import TyperGroup

from lorafsm.errors import LoraFsmError

_INTERRUPTED = 130


class CliError(Exception):
    """A failure that the command line itself found: one sentence, and the exit status."""

    def __init__(self, message: str, status: int = 2) -> None:
        super().__init__(message)
        self.status = status


def told(error: BaseException) -> tuple[str, int]:
    """The sentence and the exit status for an error."""
    if isinstance(error, CliError):
        return str(error), error.status
    if isinstance(error, LoraFsmError):
        return str(error), 1
    if isinstance(error, KeyboardInterrupt) or type(error).__name__ == "Abort":
        return "interrupted", _INTERRUPTED
    # Usage errors of click, which typer brings in one of two places, depending on its version.
    format_message, exit_code = getattr(error, "format_message", None), getattr(error, "exit_code", None)
    if callable(format_message) and isinstance(exit_code, int):
        return f"{format_message()} (see --help)", exit_code
    return f"{type(error).__name__}: {error}", 1


def say(error: BaseException) -> int:
    """Print the error as one line on stderr; returns the exit status."""
    message, status = told(error)
    if os.environ.get("LORAFSM_TRACEBACK"):
        traceback.print_exception(error)
    print("lorafsm:", " ".join(message.split()), file=sys.stderr)
    return status


class OneLineGroup(TyperGroup):
    """The command group whose errors fit one line."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run, and end the process with the status; errors are told, not raised."""

        def run() -> Any:
            return super(OneLineGroup, self).main(args, prog_name, complete_var, False, windows_expand_args, **extra)

        if not standalone_mode:
            return run()
        try:
            status = run()
            if status == _INTERRUPTED:  # typer has made a status of Ctrl-C, and says nothing
                raise KeyboardInterrupt
            sys.stdout.flush()
        except SystemExit:
            raise
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads; end quietly
            sys.exit(1)
        except BaseException as error:
            sys.exit(say(error))
        sys.exit(status if isinstance(status, int) else 0)
