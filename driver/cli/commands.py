"""The command line, `dranode`: `serve`, and every command of the entry point group `dranode.commands`.

Packages of other drivers can add commands to this group.
"""

import errno
import gc
import os
import re
import signal
import sys
from collections.abc import Iterator
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from dranode.api.errors import DranodeError, UsageError, in_words, is_out_of_threads
from dranode.driver.cli.options import check_environment, unknown_prefixes, variables

# The sections of `dranode --help`. Commands in none of them are listed under "Other commands".
_SECTIONS: Final = {
    "On a node": ("serve", "claims", "slices", "topology", "pick", "machine", "cdi", "drain", "forget-lost"),
    "Find out why": ("doctor", "explain"),
    "Without a cluster": ("demo", "local", "allocate", "check", "fit", "bundle", "report"),
    "For driver authors": ("sanity",),
}

# The disk to which the output goes is full or broken, the user's quota is used up, or stdout is closed.
_DISK: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})
_INTERRUPTED: Final = 130
# The number of new objects between two runs of the garbage collector.
_MANY_VALUES: Final = 1_000_000


def _contributed() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group="dranode.commands")}


class _Commands(click.Group):
    """Finds every command except `serve` by its entry point, and imports it only when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        available = {"serve", *_contributed()}
        listed = [name for names in _SECTIONS.values() for name in names if name in available]
        return [*listed, *sorted(available.difference(listed))]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands of `--help` in their sections."""
        remaining = self.list_commands(ctx)
        for section, names in (*_SECTIONS.items(), ("Other commands", tuple(remaining))):
            shown = [name for name in names if name in remaining]
            remaining = [name for name in remaining if name not in shown]
            commands = [(name, self.get_command(ctx, name)) for name in shown]
            rows = [(name, command.get_short_help_str(100)) for name, command in commands if command is not None]
            if rows:
                with formatter.section(section):
                    formatter.write_dl(rows, col_max=max(map(len, self.list_commands(ctx))))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        # A node runs only `serve`, so this is found without reading the metadata of all installed packages.
        if cmd_name == "serve":
            return import_module("dranode.driver.cli.serve").command  # type: ignore[no-any-return]
        point = _contributed().get(cmd_name)
        if point is None:
            return None
        # A command reads many values of a cluster and keeps them, so frequent garbage collection only costs time.
        gc.set_threshold(_MANY_VALUES)
        loaded = point.load()
        if not isinstance(loaded, click.Command):
            raise TypeError(f"the command {cmd_name} is a {type(loaded).__name__}, not a click command")
        return loaded

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; if there is none with that name, suggest similar ones."""
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
    # `doctor` reports wrong variables together with everything else.
    if click.get_current_context().invoked_subcommand != "doctor":
        check_environment(os.environ, variables(), unknown_prefixes())


def main() -> None:
    """Run the program; the exit status is 0 done, 1 "no" or failed, 2 wrong usage or an invalid configuration."""
    # gRPC reads this when it is imported. No command forks, so it need not prepare for that.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    run(cli, sys.argv[1:])


def run(command: click.Command, arguments: list[str], name: str | None = None) -> NoReturn:
    """Run a command and end the process with its exit status; errors are one sentence on stderr.

    Args:
        command: the command.
        arguments: what follows its name.
        name: its name in the help; None for the program's own name.
    """
    _prepare_streams()
    try:
        status = _status(command, [*_as_click_reads(arguments)], name)
        # A flush that fails at exit would print a traceback.
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the output closed the pipe. Without stdout there is no flush at exit that could fail again.
        sys.stdout = None
        status = 1
    except OSError as error:
        if error.errno not in _DISK:
            raise
        print(f"dranode: the output cannot be written: {error.strerror}", file=sys.stderr)  # noqa: T201 - what people read
        sys.stdout = None
        status = 1
    if status == _INTERRUPTED:
        # If the program ended by itself, a shell would go on with the loop or script that it is in.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    sys.exit(status)


# Options without a value that kubectl has, too.
_FLAGS: Final = "(-A|--all-namespaces|--no-headers|--insecure-skip-tls-verify)"


def _as_click_reads(arguments: list[str]) -> Iterator[str]:
    """Yield arguments without the forms of kubectl that click reads otherwise: `-n=default` and `--no-headers=true`."""
    for place, word in enumerate(arguments):
        if word == "--":
            yield from arguments[place:]
            return
        if re.fullmatch(f"{_FLAGS}=false", word) is None:
            yield re.sub(f"^({_FLAGS}=true$|(-[a-zA-Z])=)", r"\2\3", word)


def _status(command: click.Command, arguments: list[str], name: str | None) -> Any:
    """Run a command and return its exit status."""
    # With its standalone mode, click would end the process itself, with its own messages and exit statuses.
    try:
        return command.main(arguments, prog_name=name, standalone_mode=False)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return _INTERRUPTED
    except DranodeError as error:
        print(f"dranode: {error}", file=sys.stderr)  # noqa: T201 - what people read
        return 2 if isinstance(error, UsageError) else 1
    except (ModuleNotFoundError, OSError, RuntimeError) as error:
        if (sentence := _sentence_of(error)) is None:
            raise
        print(f"dranode: {sentence}", file=sys.stderr)  # noqa: T201 - what people read
        return 1


def _sentence_of(error: Exception) -> str | None:
    """Return what to say about an error of Python's own; None for one that needs its traceback."""
    # A missing module of ours is a bug.
    if isinstance(error, ModuleNotFoundError) and (error.name or "dranode").partition(".")[0] != "dranode":
        return _left_out(error.name)
    # A driver may raise the error itself if a file of its hardware cannot be read.
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, RuntimeError) and is_out_of_threads(error):
        return in_words(error)
    return None


def _prepare_streams() -> None:
    """Make sure that output can be written to a terminal that lacks some characters, and that no stream is missing.

    A missing stdin is empty, writing to a missing stdout fails, and what goes to a missing stderr is lost.
    """
    # Python sets a stream to None if it was closed before the start (`<&-`, `>&-`), and then prints errors on stdout.
    if sys.stdin is None:
        sys.stdin = Path(os.devnull).open()  # noqa: SIM115 - until the process ends
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - until the process ends
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _left_out(module: str | None) -> str:
    return (
        f"this command needs the Python module {module}, which this installation leaves out: run it from the image's "
        "debug variant, or install the wheel with pip"
    )
