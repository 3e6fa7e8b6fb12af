"""Loads modules from one file, in which an image saves the bytecode of those that a start needs.

To find and read a module in the usual way takes a dozen system calls, with 300 modules a tenth of a start. The file is
for the Python that saved it, with the same folders for packages; for any other it is not there, nor for a module whose
source is another one now. Those come from where they always come from.

The file is the bytecode of one module after the other, as Python keeps it, then the table of them, the table's length,
and a mark that it is whole. `release/save_modules.py` writes it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import MAGIC_NUMBER
from marshal import dumps, loads
from types import CodeType, ModuleType
from typing import Final

# Of a module: the path of its source and of Python's bytecode of that, whether it is a package, size of the source in
# bytes and its time in nanoseconds, where its bytecode begins here and how many bytes it has. A class takes longer to
# make than all rows to read.
SavedModule = tuple[str, str, bool, int, int, int, int]
_LENGTH: Final = 8
_WHOLE: Final = b"dranode\n"


def saved_modules(prefix: str) -> str:
    """The file of an environment."""
    return f"{prefix}/lib/dranode-modules"


def use_saved_modules(file: str) -> None:
    """Load modules from this file from now on; nothing happens if it is not there, or not for this Python."""
    try:
        # A named pipe is not waited for, and no file to read here.
        opened = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return
    try:
        table = _table(opened)
    except (OSError, EOFError, ValueError, TypeError):
        table = None  # it is damaged
    if table is None:
        os.close(opened)
    else:
        modules = _SavedModules(opened, os.fstat(opened).st_mtime_ns, table)
        sys.meta_path.insert(sys.meta_path.index(PathFinder), modules)


def ending(table: Mapping[str, SavedModule]) -> bytes:
    """Return what comes after the bytecode: the table, by names of modules, and what says that it is whole."""
    encoded = dumps((MAGIC_NUMBER, _package_folders(), dict(table)))
    return encoded + len(encoded).to_bytes(_LENGTH, "little") + _WHOLE


def _table(file: int) -> dict[str, SavedModule] | None:
    """Return the table in an open file; None if the file is not whole, or not for this Python."""
    end = os.fstat(file).st_size - _LENGTH - len(_WHOLE)
    length = os.pread(file, _LENGTH + len(_WHOLE), max(end, 0))
    size = int.from_bytes(length[:_LENGTH], "little")
    if not length.endswith(_WHOLE) or not 0 < size <= end:
        return None
    magic, folders, table = loads(os.pread(file, size, end - size))  # noqa: S302 - as trusted as Python's bytecode
    ours = magic == MAGIC_NUMBER and folders == _package_folders() and not sys.flags.optimize
    return table if ours else None


def _package_folders() -> list[str]:
    # The first of all is where the program itself is.
    return sys.path[1:]


class _SavedModules:
    """Finds modules in an open file."""

    def __init__(self, file: int, modified: int, table: Mapping[str, SavedModule]) -> None:
        """Find those of the table; `modified` is the file's own time."""
        self._file, self._modified, self._table = file, modified, table

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return how a module is loaded, as Python asks for it; None if it was not saved as it is."""
        del path, target
        row = self._table.get(name)
        if row is None or not self._is_as_saved(row):
            return None
        source, cached, is_package, _, _, start, length = row
        loader = _Loader(name, source, self._file, start, length)
        spec = ModuleSpec(name, loader, origin=source, is_package=is_package)
        spec.has_location, spec.cached = True, cached
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(source.rpartition("/")[0])
        return spec

    def _is_as_saved(self, row: SavedModule) -> bool:
        path, _, _, size, modified, _, _ = row
        try:
            source = os.stat(path)  # noqa: PTH116 - Path takes longer
        except OSError:
            return False
        # Who builds an image may give all files of a layer the same time.
        return source.st_size == size and source.st_mtime_ns in (modified, self._modified)


class _Loader(SourceFileLoader):
    """Loads one module: Python's own loader of source, but for where the bytecode is read."""

    def __init__(self, name: str, source: str, file: int, start: int, length: int) -> None:
        super().__init__(name, source)
        self._file, self._start, self._length = file, start, length

    def get_code(self, fullname: str) -> CodeType:
        """Return the bytecode."""
        del fullname
        code: CodeType = loads(os.pread(self._file, self._length, self._start))  # noqa: S302 - likewise
        return code
