"""The forms of `--machine`: the host, a folder, an archive, a YAML machine, a description, a scratch machine."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from dranode.api.errors import DocumentError, MachineError, UsageError
from dranode.driver.machine.folder import HOST, HostRoot
from dranode.driver.machine.root import Root
from dranode.sim.machines.archive import read_archive
from dranode.sim.machines.confined import ConfinedFiles, ConfinedRoot, FolderFiles, OverlayFiles
from dranode.sim.machines.machine_file import parse_machine, read_machine_file
from dranode.sim.machines.scratch import RehearsedMachine, ScratchMachine
from dranode.sim.machines.synthetic import parse_description, synthetic_tree
from dranode.sim.machines.synthetic_devices import plant_devices
from dranode.sim.machines.tree import INDEX, TreeEntry, TreeFiles

# Folders that distinguish a machine's /sys from other folders of that name, such as /proc/sys.
_IN_SYS: Final = frozenset({"block", "bus", "class", "devices", "module"})
_NOT_ABOVE_SYS: Final = frozenset({"proc", "sys"})
_MAX_FOLDERS: Final = 20_000


def find_machine(folders: Callable[[str], list[str]], place: str) -> str:
    """Return the nearest folder with a `sys/` folder, relative to the start.

    Args:
        folders: returns the names of the folders in a folder, without links; `""` is the start.
        place: the searched folder or archive, for messages.

    Raises:
        MachineError: there is no such folder, or there are several on one level.
    """
    level, visited = [""], 0
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
        visited += len(level)
        if len(machines) > 1:
            raise MachineError(
                f"{place} holds {len(machines)} machines, including {machines[0]} and {machines[1]}; choose one"
            )
        if machines:
            return machines[0]
        if visited > _MAX_FOLDERS:
            raise MachineError(f"{place} has no sys/ in its first {_MAX_FOLDERS} folders; choose a folder nearer to it")
        level = below
    if bare:
        return bare[0]
    raise MachineError(f"{place} has no sys/ folder; copy a machine's /sys into it (dranode machine capture)")


SCRATCH: Final = "scratch:"
"""The prefix of a writable folder."""
_ARCHIVE: Final = re.compile(r".*\.(tar(\.[A-Za-z0-9]+)?|tgz|tbz2?|txz)", re.DOTALL)
_YAML: Final = (".yaml", ".yml", ".json")
_DESCRIPTION: Final = re.compile(r"\s*[\w-]+\s*=[^/]*")


def open_machine(text: str) -> Root:
    """Open the machine that `--machine TEXT` names.

    Raises:
        UsageError: the text is not a form of a machine, names nothing, or is an invalid description.
        DocumentError: a YAML machine is invalid.
        MachineError: a folder or an archive cannot be read, or has no `sys/`.
    """
    if text == HOST:
        return HostRoot()
    if text.startswith(SCRATCH):
        return _scratch(Path(text.removeprefix(SCRATCH)))
    path = Path(text)
    # Unlike Path, os.path does not raise for any text.
    if os.path.isdir(text):  # noqa: PTH112 - as above
        return _folder(path)
    if os.path.exists(text):  # noqa: PTH110 - as above
        if _ARCHIVE.fullmatch(path.name):
            return _archive(path)
        if path.suffix in _YAML:
            return read_machine_file(path)
        raise UsageError(f"{text} is not a machine: it is neither a folder nor named .tar*, .yaml or .yml")
    if _DESCRIPTION.match(text):
        description = parse_description(text)
        tree = synthetic_tree(description)
        plant_devices(tree, description)
        return RehearsedMachine(tree)
    raise UsageError(
        f'there is no machine "{text}"; pass host, a folder or .tar archive with sys/, a YAML machine, '
        "a description such as sockets=2,cores=4, or scratch: and a writable folder"
    )


def _scratch(path: Path) -> Root:
    if not path.exists():
        raise MachineError(f"{path} does not exist; dranode machine copy creates such a folder")
    place = path / find_machine(_folders(path), str(path))
    return ScratchMachine(place, _index(FolderFiles(str(place)), str(path)))


def _folder(path: Path) -> Root:
    return _machine(_folders(path), str(path), lambda inner: FolderFiles(str(path / inner)))


def _folders(path: Path) -> Callable[[str], list[str]]:
    def folders(inner: str) -> list[str]:
        try:
            with os.scandir(path / inner) as entries:
                return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError as error:
            # An unreadable subfolder cannot be the machine, so it is skipped.
            if not inner:
                raise MachineError(f"{path} cannot be read: {error.strerror}") from error
            return []

    return folders


def _archive(path: Path) -> Root:
    tree = TreeFiles(read_archive(path))

    def folders(inner: str) -> list[str]:
        node = tree.find(inner)
        return [name for name, below in node.items() if isinstance(below, dict)] if isinstance(node, dict) else []

    def files(inner: str) -> ConfinedFiles:
        node = tree.find(inner)
        return TreeFiles(node if isinstance(node, dict) else {})

    return _machine(folders, str(path), files)


def _machine(folders: Callable[[str], list[str]], place: str, files_at: Callable[[str], ConfinedFiles]) -> Root:
    files = files_at(find_machine(folders, place))
    index = _index(files, place)
    return ConfinedRoot(OverlayFiles(index, files) if index else files)


def _index(files: ConfinedFiles, place: str) -> dict[str, TreeEntry]:
    """Return the device nodes in the index of a capture, which override its `dev/`."""
    try:
        text = files.read(INDEX)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return {}
    except OSError as error:
        # Without this error, the machine would silently lack its device nodes.
        raise MachineError(f"{place}: {INDEX} cannot be read: {error.strerror}") from error
    try:
        return parse_machine(msgspec.json.decode(text))[0]
    except (ValueError, RecursionError, DocumentError) as error:
        raise MachineError(f"{place}: {INDEX} is damaged: {error}") from error
