"""`--machine M`, for every command that reads hardware."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from dranode.driver.cli.settings import MACHINE
from dranode.driver.machine.forms import HOST, open_machine
from dranode.driver.machine.guard import guard_host
from dranode.driver.machine.root import Root

F = TypeVar("F", bound=Callable[..., Any])


def _open(ctx: click.Context, parameter: click.Parameter, value: str) -> Root:
    del ctx, parameter
    # On another machine this process touches nothing of the host's.
    if value != HOST:
        guard_host()
    return open_machine(value)


def machine_option(function: F) -> F:
    """Add the option `--machine M`; the command gets the machine's file tree as `root`."""
    return click.option(
        MACHINE.flag,
        MACHINE.parameter,
        default=MACHINE.default,
        metavar=MACHINE.metavar,
        callback=_open,
        help=MACHINE.help,
    )(function)
