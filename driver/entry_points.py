"""Entry points of installed packages, as `importlib.metadata` finds them, in a tenth of its time.

A start waits for them: the standard library's way loads parsers of mails, CSV and archives, 15 ms. Packages that lie in
folders are read here (packaging.python.org, "Entry points specification" and "Recording installed projects"). Where
Python finds packages elsewhere too, in an archive or through a finder of somebody's own, the library is asked.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator
from functools import reduce
from importlib import import_module
from importlib.machinery import PathFinder
from typing import Any, Final, NamedTuple

_INFO: Final = (".dist-info", ".egg-info")
_EGG: Final = ".egg"
_SEPARATORS: Final = re.compile("[-_.]+")


class EntryPoint(NamedTuple):
    """An object that a package offers under a name.

    Attributes:
        group: what it is for.
        name: its name in the group.
        value: where it is: `package.module:object`.
    """

    group: str
    name: str
    value: str

    def load(self) -> Any:
        """Import the object; raises whatever its module raises."""
        module, _, path = self.value.partition("[")[0].strip().partition(":")
        return reduce(getattr, filter(None, path.strip().split(".")), import_module(module.strip()))


def entry_points(groups: Collection[str]) -> tuple[EntryPoint, ...]:
    """Return the entry points of these groups; of several versions of a package those of the first in Python's path."""
    folders = _folders(sys.path)
    if folders is None or any(hasattr(each, "find_distributions") for each in sys.meta_path if each is not PathFinder):
        from importlib.metadata import entry_points as search  # noqa: PLC0415 - takes longer than all else here

        return tuple(
            EntryPoint(group, point.name, point.value) for group in groups for point in search().select(group=group)
        )
    return tuple(
        point for file in _files(folders) for point in parse_entry_points(_text(file)) if point.group in groups
    )


def _folders(path: Iterable[str]) -> dict[str, list[str]] | None:
    """The names in every folder of a path; None if not all that is there are plain folders."""
    folders: dict[str, list[str]] = {}
    for each in path:
        try:
            folders[each] = os.listdir(each or ".")  # noqa: PTH208 - without an object for each
        except NotADirectoryError:
            return None
        except OSError:
            continue
        if each.rstrip("/").endswith(_EGG):
            return None
    return folders


def _files(folders: dict[str, list[str]]) -> Iterator[str]:
    seen: set[str] = set()
    for folder, names in folders.items():
        for name in names:
            stem, extension = os.path.splitext(name)  # noqa: PTH122 - as above
            if extension.lower() not in _INFO:
                continue
            package = _SEPARATORS.sub("-", stem.partition("-")[0]).lower()
            if package not in seen:
                seen.add(package)
                yield f"{folder or '.'}/{name}/entry_points.txt"


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - as above
            return file.read()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return ""


def parse_entry_points(text: str) -> Iterator[EntryPoint]:
    """Yield what a file `entry_points.txt` says: lines `name = value` under `[group]`."""
    group = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            group = line[1:-1]
        elif line and not line.startswith("#"):
            name, equals, value = line.partition("=")
            if equals:
                yield EntryPoint(group, name.strip(), value.strip())
