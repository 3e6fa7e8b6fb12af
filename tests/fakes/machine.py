"""Machines for tests, made of the files that a test names."""

from __future__ import annotations

from collections.abc import Mapping

from dranode.driver.machine.confined import ConfinedRoot
from dranode.driver.machine.tree import DeviceFile, Link, TreeEntry, TreeFiles, plant

CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"


def machine(
    files: Mapping[str, str],
    links: Mapping[str, str] | None = None,
    devices: Mapping[str, tuple[str, int, int]] | None = None,
) -> ConfinedRoot:
    """A machine with these files (content by path, without the leading slash), links and device nodes."""
    tree: dict[str, TreeEntry] = {}
    for path, content in files.items():
        plant(tree, path, content.encode())
    for path, target in (links or {}).items():
        plant(tree, path, Link(target))
    for path, numbers in (devices or {}).items():
        plant(tree, path, DeviceFile(*numbers))
    return ConfinedRoot(TreeFiles(tree))


def cpu_files(cpu: int, **files: str) -> dict[str, str]:
    """Files of one CPU's `topology` folder."""
    return {f"{CPU}/cpu{cpu}/topology/{name}": content for name, content in files.items()}
