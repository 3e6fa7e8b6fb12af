"""Writable machines: a folder, and a synthetic machine in memory, which only accepts known kernel settings.

Writes to CPU settings, and to the files that bind a PCI function to a driver, have effects beyond the file or may be
refused. These effects are imitated, so that a driver reads the same values afterwards as on a node.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeAlias

from dranode.api.cpuset import CPUSet, mask_text
from dranode.api.errors import MachineError, UsageError
from dranode.driver.machine.pci import PCI_DEVICES
from dranode.driver.machine.root import ReadOnlyMachineError, Root, read_attribute
from dranode.sim.machines.confined import ConfinedRoot, FolderFiles, OverlayFiles
from dranode.sim.machines.tree import INDEX, DeviceFile, Link, TreeEntry, TreeFiles, index_of, leaves, plant

_INTERRUPT: Final = re.compile(r"proc/irq/[0-9]+/smp_affinity_list", re.ASCII)
_CGROUP_CPUS: Final = re.compile(r"sys/fs/cgroup/.+/cpuset\.cpus(\.exclusive)?")
_MASK: Final = re.compile(r"proc/irq/default_smp_affinity|sys/devices/virtual/workqueue/cpumask")
_QUEUE: Final = re.compile(r"sys/.+/queues/[^/]+/[rx]ps_cpus")
_BINDING: Final = re.compile(r"sys/bus/pci/drivers/(?P<driver>[^/]+)/(?P<way>bind|unbind)")

_Changes: TypeAlias = Mapping[str, bytes | Link | None]


class WritableMachine(ConfinedRoot):
    """A writable machine other than the running one.

    Attributes:
        before: the content of each written file before its first write, by path; for a link, its last part.
    """

    def __init__(self, files: TreeFiles | FolderFiles | OverlayFiles) -> None:
        super().__init__(files)
        self.before: dict[str, str] = {}

    def shown(self, path: str) -> str:
        """Return the current content of a file, as in `before`; empty if the file does not exist."""
        try:
            return self.readlink(path).rpartition("/")[2]
        except OSError:
            return read_attribute(self, path) or ""

    def held(self) -> dict[str, str]:
        """Return the current content of each written file, by path."""
        return {path: self.shown(path) for path in self.before}

    def write(self, path: str, content: str) -> None:
        """Write a file like `Root.write`, with the effects that the kernel would cause."""
        real = self.resolve(path) if self.exists(path) else path
        changes = self._changes(real, content)
        self.read_bytes(real)  # raises if the file does not exist
        for place, entry in changes.items():
            self.before.setdefault(place, self.shown(place))
            self._put(place, entry)

    def _changes(self, path: str, content: str) -> _Changes:
        """Return the new contents and links by real path; None removes a path."""
        text = content.strip()
        if _INTERRUPT.fullmatch(path) or _MASK.fullmatch(path):
            return {path: _cpus(path, text, some=True)}
        if _CGROUP_CPUS.fullmatch(path) or _QUEUE.fullmatch(path):
            return {path: _cpus(path, text, some=False)}
        if path.endswith("/cpuset.cpus.partition"):
            return {path: f"{text}\n".encode()}
        if path.endswith("/driver_override"):
            return {path: f"{text or '(null)'}\n".encode()}
        if binding := _BINDING.fullmatch(path):
            return self._bound(text, binding["driver"], bind=binding["way"] == "bind")
        return self._unknown(path, content)

    def _bound(self, address: str, driver: str, *, bind: bool) -> _Changes:
        """Bind or unbind a PCI function (drivers/pci/pci-driver.c: an override only admits the driver it names)."""
        function = self.resolve(f"{PCI_DEVICES}/{address}")
        bound_to, override = self.shown(f"{function}/driver"), self.shown(f"{function}/driver_override")
        variant = driver.replace("_", "-").endswith("vfio-pci")
        admitted = driver == override if override not in ("", "(null)") else not variant
        if (bound_to or not admitted) if bind else bound_to != driver:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), address)
        above = "../" * function.count("/")
        return {f"{function}/driver": Link(f"{above}bus/pci/drivers/{driver}") if bind else None}

    def _unknown(self, path: str, content: str) -> _Changes:
        """Return the changes of a write that is not imitated."""
        raise NotImplementedError

    def _put(self, path: str, entry: bytes | Link | None) -> None:
        raise NotImplementedError


def _cpus(path: str, text: str, *, some: bool) -> bytes:
    """Return CPUs as the kernel writes them back; with `some`, at least one CPU is required."""
    listed = path.endswith(("_list", ".cpus", ".exclusive"))
    try:
        cpus = CPUSet.parse(text) if listed else CPUSet.parse_mask(text)
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error), path) from error
    if some and not cpus:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
    return f"{cpus if listed else mask_text(cpus)}\n".encode()


class RehearsedMachine(WritableMachine):
    """A machine in memory, which accepts only the imitated settings and refuses other writes."""

    def __init__(self, tree: dict[str, TreeEntry]) -> None:
        self._tree = TreeFiles(tree)
        super().__init__(self._tree)

    def make(self, path: str, content: str) -> None:
        """Create a file, as when a cgroup is created."""
        plant(self._tree.tree, path, f"{content}\n".encode())

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with its content."""
        self._put(path, None)

    def _unknown(self, path: str, content: str) -> _Changes:
        del content
        raise ReadOnlyMachineError(path)

    def _put(self, path: str, entry: bytes | Link | None) -> None:
        folder, _, name = path.rpartition("/")
        inside = self._tree.find(folder)
        if not isinstance(inside, dict):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if entry is None:
            del inside[name]
        else:
            inside[name] = entry


class ScratchMachine(WritableMachine):
    """A folder as a writable machine; a write replaces the content of an existing file.

    Args:
        folder: contains `sys/`, `proc/` or `dev/`.
        devices: device nodes in addition to those in the folder.
    """

    def __init__(self, folder: Path, devices: dict[str, TreeEntry] | None = None) -> None:
        files = FolderFiles(str(folder))
        super().__init__(OverlayFiles(devices, files) if devices else files)
        self.folder = folder

    @classmethod
    def copy(cls, machine: Root, folder: Path) -> ScratchMachine:
        """Write a description, a YAML machine or an archive to a new folder, and open that.

        Raises:
            UsageError: the machine is a folder or the running one.
            MachineError: the folder exists already, or cannot be written.
        """
        files = getattr(machine, "files", None)
        if not isinstance(files, TreeFiles):
            raise UsageError(
                "only a description, a YAML machine without base: host and an archive without machine.json can be "
                "copied; use cp -r for a folder, tar for an archive, dranode machine capture for the running machine"
            )
        devices: dict[str, TreeEntry] = {}
        nodes: dict[str, DeviceFile] = {}
        try:
            folder.mkdir(parents=True)
            for path, entry in leaves(files.tree):
                place = folder / path
                if isinstance(entry, DeviceFile):
                    plant(devices, path, entry)
                    nodes[path] = entry
                    continue
                place.parent.mkdir(parents=True, exist_ok=True)
                if isinstance(entry, Link):
                    place.symlink_to(entry.target)
                elif isinstance(entry, bytes):
                    place.write_bytes(entry)
            (folder / INDEX).write_bytes(index_of(nodes))
        except FileExistsError as error:
            raise MachineError(f"{folder} exists already; choose a new folder") from error
        except OSError as error:
            raise MachineError(f"{folder} cannot be created: {error.strerror}") from error
        return cls(folder, devices)

    def contents(self) -> Mapping[str, bytes]:
        """Return every file by path, without the final newline, which the kernel always adds."""
        paths = (path for path in sorted(self.folder.rglob("*")) if path.is_file() and not path.is_symlink())
        return {str(path.relative_to(self.folder)): path.read_bytes().removesuffix(b"\n") for path in paths}

    @contextmanager
    def gone(self) -> Iterator[None]:
        """Empty the machine temporarily, as when a card is pulled out."""
        away = self.folder.with_name(f"{self.folder.name}.gone")
        self.folder.rename(away)
        self.folder.mkdir()
        try:
            yield
        finally:
            self.folder.rmdir()
            away.rename(self.folder)

    def _unknown(self, path: str, content: str) -> _Changes:
        return {path: content.encode()}

    def _put(self, path: str, entry: bytes | Link | None) -> None:
        place = self.folder / path
        match entry:
            case None:
                place.unlink()
            case Link(target):
                place.symlink_to(target)
            case bytes():
                with place.open("r+b") as file:
                    file.truncate()
                    file.write(entry)
