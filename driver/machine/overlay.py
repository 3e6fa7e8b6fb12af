"""A tree laid over other files: its files hide theirs, folders are merged, and nothing can be removed.

One rule is about hardware: a CPU's own `node<N>` entry in the tree hides the entries of that name below it from
listings, because a CPU is on one NUMA node (reference behaviour: dra-driver-cpu's sysfs overlay).
"""

# ruff: noqa: D102 - the protocols Root and Files say what their methods promise

from __future__ import annotations

import re
from typing import Final

from dranode.driver.machine.confined import ConfinedFiles
from dranode.driver.machine.tree import TreeEntry, TreeFiles

CPU_FOLDER: Final = re.compile(r"sys/devices/system/cpu/cpu[0-9]+", re.ASCII)
NODE_NAME: Final = re.compile(r"node[0-9]+", re.ASCII)


class OverlayFiles:
    """`ConfinedFiles` of a tree over other files."""

    def __init__(self, tree: dict[str, TreeEntry], below: ConfinedFiles) -> None:
        self._above = TreeFiles(tree)
        self._below = below

    def stands(self, path: str) -> bool:
        return (self._below if self._above.find(path) is None else self._above).stands(path)

    def link(self, path: str) -> str | None:
        return (self._below if self._above.find(path) is None else self._above).link(path)

    def read(self, path: str) -> bytes:
        return (self._below if self._above.find(path) is None else self._above).read(path)

    def names(self, path: str) -> list[str]:
        above = self._above.find(path)
        if above is None:
            return self._below.names(path)
        names = set(self._above.names(path))
        try:
            below = self._below.names(path)
        except OSError:
            return list(names)
        if CPU_FOLDER.fullmatch(path) and any(NODE_NAME.fullmatch(name) for name in names):
            below = [name for name in below if not NODE_NAME.fullmatch(name)]
        return list(names.union(below))

    def device(self, path: str) -> tuple[str, int, int]:
        return (self._below if self._above.find(path) is None else self._above).device(path)
