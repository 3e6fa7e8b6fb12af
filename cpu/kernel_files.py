"""The files of `/sys/devices/system`, as numbers and CPU masks, and what is odd about them.

A file that is missing is no error, for kernels differ in what they tell; one that cannot be read or parsed is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.api.errors import MachineError
from dranode.driver.machine.root import Root, read_text

CPU_ROOT: Final = "sys/devices/system/cpu"
NODE_ROOT: Final = "sys/devices/system/node"

_MASKS: Final = frozenset({"core_cpus", "thread_siblings", "package_cpus", "core_siblings", "shared_cpu_map", "cpumap"})
_MASK: Final = re.compile(r"[0-9a-fA-F]+(?:,[0-9a-fA-F]{1,8})*", re.ASCII)
_NUMBER: Final = re.compile(r"-?[0-9]+", re.ASCII)


class KernelFiles:
    """One reading of one machine; CPU masks are integers with bit n set for CPU n.

    Attributes:
        root: the machine's files.
        oddities: the first contradiction of each kind, one sentence each.
    """

    def __init__(self, root: Root) -> None:
        self.root = root
        self.oddities: dict[str, str] = {}
        self._masks: dict[str, int] = {}

    def text(self, path: str) -> str | None:
        """A file's text; None if there is no such file.

        Raises:
            MachineError: the file cannot be read.
        """
        try:
            return read_text(self.root, path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise MachineError(f"/{path} cannot be read: {error.strerror or error}") from error

    def number(self, path: str) -> int:
        """A file's number; -1 if there is no such file.

        Raises:
            MachineError: the file cannot be read or holds something else.
        """
        text = self.text(path)
        if text is None:
            return -1
        if not _NUMBER.fullmatch(text):
            raise MachineError(f'/{path} should be a number, but is "{text}"')
        return int(text)

    def mask(self, path: str) -> int | None:
        """The set that a list or mask file holds; None if there is no such file.

        Raises:
            MachineError: the file cannot be read or parsed.
        """
        text = self.text(path)
        if text is None:
            return None
        is_mask = path.rpartition("/")[2] in _MASKS
        key = f"x{text}" if is_mask else text
        found = self._masks.get(key)
        if found is None:
            found = self._masks[key] = _parse_mask(path, text) if is_mask else _parse_list(path, text)
        return found

    def numbered(self, folder: str, prefix: str) -> list[int]:
        """The numbers N of the entries `<prefix>N` in a folder that may be missing, ascending.

        Raises:
            MachineError: the folder is there and cannot be read.
        """
        try:
            names = self.root.listdir(folder)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise MachineError(f"/{folder} cannot be read: {error.strerror or error}") from error
        ends = (name.removeprefix(prefix) for name in names if name.startswith(prefix))
        return sorted(int(end) for end in ends if end.isascii() and end.isdigit())

    def shared(self, kind: str, cpu: int, folder: str, names: Iterable[str]) -> int | None:
        """The first set told in `cpu<N>/<folder>` that the CPU is in; 0 if what is told is empty; None without any."""
        told: int | None = None
        strange = 0
        for name in names:
            found = self.mask(f"{CPU_ROOT}/cpu{cpu}/{folder}/{name}")
            if found is not None and found >> cpu & 1:
                return found
            strange = strange or found or 0
            told = told if found is None else 0
        if strange:
            self.doubt(kind, f"the {kind} told for cpu{cpu} is that of {CPUSet.of_mask(strange)}")
            return None
        return told

    def doubt(self, kind: str, sentence: str) -> None:
        """Keep the first contradiction of its kind; a machine that has one has many."""
        self.oddities.setdefault(kind, sentence)


def _parse_mask(path: str, text: str) -> int:
    if text and not _MASK.fullmatch(text):
        raise MachineError(f'/{path} should be a CPU mask of hexadecimal words, but is "{text}"')
    return CPUSet.parse_mask(text).mask if text else 0


def _parse_list(path: str, text: str) -> int:
    try:
        return CPUSet.parse(text).mask
    except ValueError as error:
        raise MachineError(f"/{path} cannot be understood: {error}") from error
