"""The command line, `dranode`: a file for each command, loaded when the command runs.

A driver adds its own commands by the entry point group `dranode.commands`.
"""

from __future__ import annotations

import gc
import os
import sys
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Final, NoReturn

import click

from dranode.driver.cli.options import check_environment, unknown_prefixes, variables
from dranode.driver.core.api.errors import DranodeError, UsageError, in_words, is_out_of_threads

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
    return {point.name: point for point in entry_points(group="dranode.commands")}


class _Commands(click.Group):
    """Imports a command when it is used, so that none loads what only others need."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return [*_COMMANDS, *sorted(_contributed())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name in _COMMANDS:
            loaded = import_module(f"dranode.driver.cli.{_COMMANDS[cmd_name]}").command
        elif point := _contributed().get(cmd_name):
            # What they read of a cluster are many values that stay; half of the time would go into looking for cycles.
            gc.set_threshold(_MANY_VALUES)
            loaded = point.load()
        else:
            return None
        if not isinstance(loaded, click.Command):
            raise TypeError(f"the command {cmd_name} is a {type(loaded).__name__}, not a click command")
        return loaded

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; where there is none of that name, name those that it may be."""
        name = args[0]
        if name.startswith("-") or self.get_command(ctx, name) is not None:
            return super().resolve_command(ctx, args)
        near = get_close_matches(name, self.list_commands(ctx))
        hint = f"did you mean {' or '.join(near)}?" if near else "dranode --help lists them"
        raise UsageError(f'there is no command "{name}"; {hint}')


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="dranode")
def cli() -> None:
    """Kubernetes DRA node drivers, and everything to try them without a cluster.

    \b
    Example:
      dranode demo
      dranode topology --machine sockets=2,numa=2,cores=4,threads=2
    """
    # `doctor` reports them beside what else is wrong.
    if click.get_current_context().invoked_subcommand != "doctor":
        check_environment(os.environ, variables(), unknown_prefixes())


def main() -> None:
    """Run the program; the exit status is 0 done, 1 "no" or failed, 2 wrong usage or an invalid configuration."""
    # gRPC reads when it loads whether to prepare for forks, which no command of ours does.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    run(cli, sys.argv[1:])


def run(command: click.Command, arguments: list[str], name: str | None = None) -> NoReturn:
    """Run a command, and end the process with its exit status; errors are one sentence on stderr.

    Args:
        command: the command.
        arguments: what follows its name.
        name: what its help calls it; None for the program's own name.
    """
    try:
        status = command.main(arguments, prog_name=name, standalone_mode=False)
    except click.exceptions.Exit as stop:
        status = stop.exit_code
    except click.ClickException as error:
        error.show()
        status = error.exit_code
    except (KeyboardInterrupt, click.Abort):
        status = 130
    except DranodeError as error:
        print(f"dranode: {error}", file=sys.stderr)  # noqa: T201 - what people read
        status = 2 if isinstance(error, UsageError) else 1
    except ModuleNotFoundError as missing:
        if (missing.name or "dranode").partition(".")[0] == "dranode":
            raise
        print(f"dranode: {_left_out(missing.name)}", file=sys.stderr)  # noqa: T201 - likewise
        status = 1
    except RuntimeError as error:
        if not is_out_of_threads(error):
            raise
        print(f"dranode: {in_words(error)}", file=sys.stderr)  # noqa: T201 - likewise
        status = 1
    except BrokenPipeError:
        # The reader of our output has closed the pipe; without stdout the flush at exit does not fail.
        sys.stdout = None
        status = 1
    sys.exit(status)


def _left_out(module: str | None) -> str:
    return (
        f"this command needs the Python module {module}, which this installation leaves out: run it from the image's "
        "debug variant, or install the wheel with pip"
    )
