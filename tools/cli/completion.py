"""`dranode completion`: prints a script for shell completion."""

import click
from click.shell_completion import get_completion_class

from dranode.api.errors import DranodeError


@click.command(short_help="Print a script that completes dranode in bash, zsh or fish.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print a script that completes the commands, options and values of `dranode` in SHELL.

    For the current shell: source <(dranode completion bash). For every new shell: write the script to
    /etc/bash_completion.d/dranode, to _dranode in a folder of zsh's fpath, or to
    ~/.config/fish/completions/dranode.fish.

    \b
    Example:
      dranode completion bash
    """
    click.echo(completion_script(ctx.find_root().command, shell, "dranode"))


def completion_script(program: click.Command, shell: str, name: str) -> str:
    """Return the script that makes a shell complete a program's arguments.

    Raises:
        DranodeError: click does not support the shell.
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise DranodeError(f"click has no completion for {shell}")
    return kind(program, {}, name, f"_{name.upper().replace('-', '_')}_COMPLETE").source()
