"""Where in a folder or an archive the machine is: the folder that holds `sys/`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dranode.driver.core.api.errors import MachineError

# What tells a machine's /sys from other folders of that name, such as /proc/sys.
_IN_SYS: Final = frozenset({"block", "bus", "class", "devices", "module"})
_NOT_ABOVE_SYS: Final = frozenset({"proc", "sys"})
_MAX_FOLDERS: Final = 100_000


def find_machine(folders: Callable[[str], list[str]], place: str) -> str:
    """The path, relative to where the search starts, of the folder that holds `sys/`; the one nearest to the start.

    Args:
        folders: gives the names of the folders in a folder, `""` being the start; links are no folders.
        place: what is searched, for messages.

    Raises:
        MachineError: there is no such folder, or several on one level.
    """
    level, seen = [""], 0
    bare: list[str] = []
    while level:
        found: list[str] = []
        below: list[str] = []
        for path in level:
            names = folders(path)
            if "sys" in names and path.rpartition("/")[2] not in _NOT_ABOVE_SYS:
                inner = set(folders(f"{path}/sys".lstrip("/")))
                (found if inner & _IN_SYS else bare).append(path)
            below += [f"{path}/{name}".lstrip("/") for name in sorted(names)]
        seen += len(level)
        if len(found) > 1:
            raise MachineError(f"{place} holds {len(found)} machines, {found[0]} and {found[1]} among them; name one")
        if found:
            return found[0]
        if seen > _MAX_FOLDERS:
            raise MachineError(f"{place} has no sys/ in its first {_MAX_FOLDERS} folders; name a folder nearer to it")
        level = below
    if bare:
        return bare[0]
    raise MachineError(f"{place} holds no sys/ folder; it takes a copy of a machine's /sys (dranode machine capture)")
