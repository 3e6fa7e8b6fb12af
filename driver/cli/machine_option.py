"""`--machine M`, for every command that reads hardware."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from dranode.driver.machine.folder import HostRoot
from dranode.driver.machine.root import Root

F = TypeVar("F", bound=Callable[..., Any])


# The host is known here too, so that `serve` on it does not load the code of other forms.
_HOST: Final = "host"


def _open(ctx: click.Context, parameter: click.Parameter, value: str) -> Root:
    del ctx, parameter
    if value == _HOST:
        return HostRoot()
    from dranode.driver.machine.forms import open_machine
    from dranode.driver.machine.guard import guard_host

    guard_host()
    return open_machine(value)


def machine_option(function: F) -> F:
    """Add the option `--machine M`; the command gets the machine's file tree as `root`."""
    return click.option(
        "--machine",
        "root",
        default=_HOST,
        metavar="M",
        callback=_open,
        help="host (default), a folder or .tar archive that holds sys/, a YAML machine, or a description "
        "such as sockets=2,numa=2,l3=4,cores=4,threads=2 (each number per parent).",
    )(function)
