"""A file tree in memory, made from an archive, a YAML machine or a description."""

# ruff: noqa: D102 - the protocols Root and ConfinedFiles document their methods

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeAlias

import msgspec

INDEX: Final = "machine.json"
"""A file next to `sys/` in a folder: the device nodes, which only root could create, as a YAML machine."""


class Link(msgspec.Struct, frozen=True):
    """A symbolic link."""

    target: str


class DeviceFile(msgspec.Struct, frozen=True):
    """A device node: `c` or `b`, major and minor."""

    kind: str
    major: int
    minor: int


class LazyFolder(msgspec.Struct, frozen=True):
    """A folder whose content is computed when it is first read."""

    make: Callable[[], dict[str, TreeEntry]]


TreeEntry: TypeAlias = "bytes | Link | DeviceFile | LazyFolder | dict[str, TreeEntry]"


class TreeFiles:
    """`ConfinedFiles` of a tree."""

    def __init__(self, tree: dict[str, TreeEntry]) -> None:
        self.tree = tree

    def find(self, path: str) -> TreeEntry | None:
        """Return the entry at a path, or None if there is none; a folder is returned as its content."""
        node: TreeEntry = self.tree
        for part in path.split("/") if path else ():
            if not isinstance(node, dict):
                return None
            below = node.get(part)
            if below is None:
                return None
            node = below.make() if isinstance(below, LazyFolder) else below
        return node

    def stands(self, path: str) -> bool:
        node = self.find(path)
        return node is not None and not isinstance(node, Link)

    def link(self, path: str) -> str | None:
        node = self._get(path)
        return node.target if isinstance(node, Link) else None

    def read(self, path: str) -> bytes:
        node = self._get(path)
        if isinstance(node, bytes):
            return node
        raise _error(errno.EISDIR if isinstance(node, dict) else errno.EINVAL, path)

    def names(self, path: str) -> list[str]:
        node = self._get(path)
        if isinstance(node, dict):
            return list(node)
        raise _error(errno.ENOTDIR, path)

    def device(self, path: str) -> tuple[str, int, int]:
        node = self._get(path)
        if isinstance(node, DeviceFile):
            return node.kind, node.major, node.minor
        raise OSError(errno.ENODEV, "is not a device node", path)

    def _get(self, path: str) -> TreeEntry:
        node = self.find(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        return node


def plant(tree: dict[str, TreeEntry], path: str, node: TreeEntry) -> None:
    """Add an entry and its parent folders to a tree.

    Raises:
        FileExistsError: the path exists already, or a parent is a file; the error has its path.
    """
    *folders, name = path.split("/")
    parent = tree
    for depth, folder in enumerate(folders):
        below = parent.setdefault(folder, {})
        if not isinstance(below, dict):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), "/".join(folders[: depth + 1]))
        parent = below
    if name in parent:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
    parent[name] = node


def index_of(devices: Mapping[str, DeviceFile]) -> bytes:
    """Return the content of `INDEX` for device nodes by path."""
    written = {f"/{path}": f"{node.kind} {node.major}:{node.minor}" for path, node in devices.items()}
    return json.dumps({"devices": written}, indent=1, sort_keys=True).encode() + b"\n"


def leaves(tree: dict[str, TreeEntry], above: str = "") -> Iterator[tuple[str, TreeEntry]]:
    """Yield every entry of a tree that is not a folder, with its path."""
    for name, node in tree.items():
        path = f"{above}/{name}" if above else name
        inner = node.make() if isinstance(node, LazyFolder) else node
        if isinstance(inner, dict):
            yield from leaves(inner, path)
        else:
            yield path, inner


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
