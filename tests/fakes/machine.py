"""Machines for tests, built from the files that a test names."""

from collections.abc import Mapping
from pathlib import Path

from dranode.sim.machines.confined import ConfinedRoot
from dranode.sim.machines.synthetic import parse_description, synthetic_tree
from dranode.sim.machines.tree import DeviceFile, Link, TreeEntry, TreeFiles, leaves, plant

CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"
EIGHT_CPUS = "sockets=1,cores=4,threads=2"


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


def write_machine(folder: Path, description: str = EIGHT_CPUS) -> None:
    """Write a synthetic machine's files into a folder."""
    for path, node in leaves(synthetic_tree(parse_description(description))):
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(node, Link):
            place.symlink_to(node.target)
        elif isinstance(node, bytes):
            place.write_bytes(node)
