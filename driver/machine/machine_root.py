"""A machine by what `--machine` says of it."""

from __future__ import annotations

from typing import Final

from dranode.driver.machine.folder import HostRoot
from dranode.driver.machine.root import Root

# The host is known here too, so that `serve` on it does not load the code of other forms.
_HOST: Final = "host"


def machine_root(machine: str) -> Root:
    """Return the file tree of the host, or of another machine; then this process touches nothing of the host's.

    Raises:
        UsageError: there is no such machine.
    """
    if machine == _HOST:
        return HostRoot()
    from dranode.driver.machine.forms import open_machine  # noqa: PLC0415 - see above
    from dranode.driver.machine.guard import guard_host  # noqa: PLC0415 - see above

    guard_host()
    return open_machine(machine)
