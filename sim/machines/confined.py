"""The file tree of a machine other than the host; links cannot lead out of it."""

import errno
import os
import re
import stat
from typing import Final, Protocol

from dranode.driver.machine.folder import HostRoot
from dranode.driver.machine.root import ReadOnlyMachineError
from dranode.sim.machines.tree import TreeEntry, TreeFiles

# ruff: noqa: D102 - the protocols Root and ConfinedFiles document their methods

_MAX_LINKS: Final = 40  # the kernel's MAXSYMLINKS


class ConfinedFiles(Protocol):
    """Files by their real paths, which are relative to the root and do not contain links. Errors are the kernel's."""

    def stands(self, path: str) -> bool:
        """Return whether the path exists and contains no link, not even at its end; False if unknown."""

    def link(self, path: str) -> str | None:
        """Return the target of a symbolic link, or None for anything else.

        Raises:
            FileNotFoundError: the path does not exist.
        """

    def read(self, path: str) -> bytes:
        """Return the content of a file.

        Raises:
            OSError: there is no such file, or it cannot be read.
        """

    def names(self, path: str) -> list[str]:
        """Return the names in a folder, in any order.

        Raises:
            OSError: there is no such folder.
        """

    def device(self, path: str) -> tuple[str, int, int]:
        """Return type (`c` or `b`), major and minor of a device node.

        Raises:
            OSError: there is no such node.
        """


class FolderFiles:
    """`ConfinedFiles` of a folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder.rstrip("/")
        self._root = HostRoot(self.folder)

    def stands(self, path: str) -> bool:
        del path
        return False  # unknown without an lstat of every part of the path, which ConfinedRoot does next

    def link(self, path: str) -> str | None:
        if not stat.S_ISLNK(os.lstat(f"{self.folder}/{path}").st_mode):
            return None
        return self._root.readlink(path)

    def read(self, path: str) -> bytes:
        return self._root.read_bytes(path)

    def names(self, path: str) -> list[str]:
        return self._root.listdir(path)

    def device(self, path: str) -> tuple[str, int, int]:
        return self._root.device_number(path)


class ConfinedRoot:
    """A `Root` over `ConfinedFiles`. An absolute link starts at the root of the tree, as on the original machine."""

    def __init__(self, files: ConfinedFiles) -> None:
        self.files = files

    def read_bytes(self, path: str) -> bytes:
        return self.files.read(self.resolve(path))

    def listdir(self, path: str) -> list[str]:
        return sorted(self.files.names(self.resolve(path)))

    def readlink(self, path: str) -> str:
        target = self.files.link(self._follow(path, to_the_end=False))
        if target is None:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        return target

    def resolve(self, path: str) -> str:
        return self._follow(path, to_the_end=True)

    def exists(self, path: str) -> bool:
        try:
            self.resolve(path)
        except OSError:
            return False
        return True

    def device_number(self, path: str) -> tuple[str, int, int]:
        return self.files.device(self.resolve(path))

    def write(self, path: str, content: str) -> None:
        del content
        raise ReadOnlyMachineError(path)

    def _follow(self, path: str, *, to_the_end: bool) -> str:
        if self.files.stands(path):
            return path
        pending = path.split("/")[::-1]
        done: list[str] = []
        links = 0
        while pending:
            part = pending.pop()
            if part in ("", "."):
                continue
            if part == "..":
                if not done:
                    raise FileNotFoundError(errno.ENOENT, "leads out of the machine's files", path)
                done.pop()
                continue
            done.append(part)
            target = self.files.link("/".join(done)) if pending or to_the_end else None
            if target is None:
                continue
            links += 1
            if links > _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            done.pop()
            if target.startswith("/"):
                done.clear()
            pending.extend(target.split("/")[::-1])
        return "/".join(done)


# A tree over other files: its files hide theirs, folders are merged, and nothing can be removed. There is one hardware
# rule: a `node<N>` entry of a CPU in the tree hides those below it from listings, because a CPU is on only one NUMA
# node (like dra-driver-cpu's sysfs overlay).
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
