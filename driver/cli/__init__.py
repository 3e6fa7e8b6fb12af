"""The command line, `dranode`.

`serve` as manifests call it goes past click (`dranode.driver.cli.settings`), everything else through it.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from dranode.driver.core.api.errors import DranodeError, UsageError
from dranode.driver.process.deferred import defer_untouched
from dranode.driver.process.saved_modules import saved_modules, use_saved_modules


def main() -> None:
    """Run the program; the exit status is 0 done, 1 "no" or failed, 2 wrong usage or an invalid configuration."""
    # gRPC's handlers for forks are for processes that fork; programs that are only started need none.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    defer_untouched()
    use_saved_modules(saved_modules(sys.prefix))
    command, *arguments = sys.argv[1:] or [""]
    if command == "serve":
        end_with(lambda: _serve(arguments))
    _ask_click()


def _serve(arguments: list[str]) -> None:
    # The objects that a start creates stay alive, so a garbage collection among them would only cost time.
    gc.disable()
    from dranode.driver.cli.daemon import plain_options, serve

    options = plain_options(arguments, os.environ)
    if options is None:
        _ask_click()
    serve(**options)


def _ask_click() -> NoReturn:
    from dranode.driver.cli.commands import cli, run

    run(cli, sys.argv[1:])


def end_with(work: Callable[[], object]) -> NoReturn:
    """Do the work, and end the process with the exit status that comes of it; errors are one sentence on stderr."""
    try:
        status = work()
    except KeyboardInterrupt:
        status = 130
    except DranodeError as error:
        print(f"dranode: {error}", file=sys.stderr)  # noqa: T201 - what people read
        status = 2 if isinstance(error, UsageError) else 1
    except ModuleNotFoundError as missing:
        if (missing.name or "dranode").partition(".")[0] == "dranode":
            raise
        print(f"dranode: {_left_out(missing.name)}", file=sys.stderr)  # noqa: T201 - likewise
        status = 1
    except BrokenPipeError:
        # The reader of our output has closed the pipe; without stdout the flush at exit does not fail.
        sys.stdout = None
        status = 1
    sys.exit(status)  # type: ignore[arg-type]


def _left_out(module: str | None) -> str:
    return (
        f"this command needs the Python module {module}, which this installation leaves out: run it from the image's "
        "debug variant, or install the wheel with pip"
    )
