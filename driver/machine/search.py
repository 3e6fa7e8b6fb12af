"""Finds the machine in a folder or an archive: the folder that holds `sys/`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dranode.driver.core.api.errors import MachineError

# Folders that distinguish a machine's /sys from other folders of that name, such as /proc/sys.
_IN_SYS: Final = frozenset({"block", "bus", "class", "devices", "module"})
_NOT_ABOVE_SYS: Final = frozenset({"proc", "sys"})
_MAX_FOLDERS: Final = 100_000


def find_machine(folders: Callable[[str], list[str]], place: str) -> str:
    """Return the folder nearest to the start that holds `sys/`, relative to the start.

    Args:
        folders: returns the names of the folders in a folder; `""` is the start, and links do not count.
        place: the searched folder or archive, for messages.

    Raises:
        MachineError: there is no such folder, or several on one level.
    """
    level, seen = [""], 0
    bare: list[str] = []
    while level:
        machines: list[str] = []
        below: list[str] = []
        for path in level:
            names = folders(path)
            if "sys" in names and path.rpartition("/")[2] not in _NOT_ABOVE_SYS:
                inner = set(folders(f"{path}/sys".lstrip("/")))
                (machines if inner & _IN_SYS else bare).append(path)
            below += [f"{path}/{name}".lstrip("/") for name in sorted(names)]
        seen += len(level)
        if len(machines) > 1:
            raise MachineError(
                f"{place} holds {len(machines)} machines, {machines[0]} and {machines[1]} among them; name one"
            )
        if machines:
            return machines[0]
        if seen > _MAX_FOLDERS:
            raise MachineError(f"{place} has no sys/ in its first {_MAX_FOLDERS} folders; name a folder nearer to it")
        level = below
    if bare:
        return bare[0]
    raise MachineError(f"{place} holds no sys/ folder; it takes a copy of a machine's /sys (dranode machine capture)")
