"""The commands of `dranode`: one file for each, loaded when the command runs.

A driver adds its own commands by the entry point group `dranode.commands`.
"""

from __future__ import annotations

import gc
import os
from importlib import import_module
from typing import Final, NoReturn

import click

from dranode.driver.cli import end_with
from dranode.driver.entry_points import EntryPoint, entry_points

# In the order of `dranode --help`; each is a module of this package with a click command called `command`.
_COMMANDS: Final = {
    "serve": "serve",
    "slices": "slices",
    "claims": "claims",
    "drain": "drain",
    "forget-lost": "forget_lost",
    "machine": "machine",
    "cdi": "cdi",
}


# So many values are made before the next look for cycles.
_MANY_VALUES: Final = 1_000_000


def _contributed() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(("dranode.commands",))}


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
    from dranode.driver.cli.options import variables
    from dranode.driver.cli.settings import unknown_prefixes

    # `doctor` reports them beside what else is wrong.
    if click.get_current_context().invoked_subcommand != "doctor":
        check_environment(os.environ, variables(), unknown_prefixes())


def run(command: click.Command, arguments: list[str], name: str | None = None) -> NoReturn:
    """Run a command, and end the process with its exit status; errors are one sentence on stderr.

    Args:
        command: the command.
        arguments: what follows its name.
        name: what its help calls it; None for the program's own name.
    """

    def work() -> object:
        try:
            return command.main(arguments, prog_name=name, standalone_mode=False)
        except click.exceptions.Exit as stop:
            return stop.exit_code
        except click.ClickException as error:
            error.show()
            return error.exit_code
        except click.Abort as error:
            raise KeyboardInterrupt from error

    end_with(work)
