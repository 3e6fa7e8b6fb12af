"""The command line, `dranode`: one file for each command, loaded when the command runs.

A driver adds its own commands by the entry point group `dranode.commands`.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final, NoReturn

import click

from dranode.driver.core.api.errors import DranodeError, UsageError
from dranode.driver.process.deferred import defer_untouched

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

# In the order of `dranode --help`; each is a module of this package with a click command called `command`.
_COMMANDS: Final = {
    "serve": "serve",
    "slices": "slices",
    "topo": "topo",
    "claims": "claims",
    "drain": "drain",
    "forget-lost": "forget_lost",
    "machine": "machine",
    "cdi": "cdi",
}


# So many values are made before the next look for cycles.
_MANY_VALUES: Final = 1_000_000


def _contributed() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group="dranode.commands")}


class _Commands(click.Group):
    """Imports a command when it is used, so that `serve` loads nothing but itself."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return [*_COMMANDS, *sorted(_contributed())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name in _COMMANDS:
            # The objects that imports create stay alive, so a garbage collection among them would only cost time.
            gc.disable()
            loaded = import_module(f"dranode.driver.cli.{_COMMANDS[cmd_name]}").command
            gc.freeze()
            gc.enable()
        elif point := _contributed().get(cmd_name):
            # What they read of a cluster are many values that stay; half of the time would go into looking for cycles.
            gc.set_threshold(_MANY_VALUES)
            loaded = point.load()
        else:
            return None
        if not isinstance(loaded, click.Command):
            raise TypeError(f"the command {cmd_name} is a {type(loaded).__name__}, not a click command")
        return loaded


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="dranode")
def cli() -> None:
    """Kubernetes DRA node drivers, and everything to try them without a cluster.

    \b
    Example:
      dranode demo
      dranode topology --machine sockets=2,numa=2,cores=4,threads=2
    """
    from dranode.driver.cli.environment import check_environment
    from dranode.driver.cli.options import unknown_prefixes, variables

    # `doctor` reports them beside what else is wrong.
    if click.get_current_context().invoked_subcommand != "doctor":
        check_environment(os.environ, variables(), unknown_prefixes())


def _left_out(module: str | None) -> str:
    return (
        f"this command needs the Python module {module}, which this installation leaves out: run it from the image's "
        "debug variant or from `pip install dranode`"
    )


def main() -> None:
    """Run the program; the exit status is 0 done, 1 "no" or failed, 2 wrong usage or an invalid configuration."""
    defer_untouched()
    run(cli, sys.argv[1:])


def run(command: click.Command, arguments: list[str], name: str | None = None) -> NoReturn:
    """Run a command, and end the process with its exit status; errors are one sentence on stderr.

    Args:
        command: the command.
        arguments: what follows its name.
        name: what its help calls it; None for the program's own name.
    """
    try:
        sys.exit(command.main(arguments, prog_name=name, standalone_mode=False))
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except DranodeError as error:
        click.echo(f"dranode: {error}", err=True)
        sys.exit(2 if isinstance(error, UsageError) else 1)
    except ModuleNotFoundError as missing:
        if (missing.name or "dranode").partition(".")[0] == "dranode":
            raise
        click.echo(f"dranode: {_left_out(missing.name)}", err=True)
        sys.exit(1)
    except BrokenPipeError:
        # The reader of our output has closed the pipe; without stdout the flush at exit does not fail.
        sys.stdout = None
        sys.exit(1)
