"""YAML machines.

The flat form is dra-driver-cpu's sysfs overlay: a map of `/sys/...` path to the file's content. The long form has

    base: host                                  # laid over the host; without it the file stands alone
    files: {/sys/...: content, /proc/...: content}
    links: {/sys/...: target}
    devices: {/dev/...: "c 226:128"}            # type, major:minor

Both are strict: contents are strings, paths are clean and below `/sys/` (long form: also `/proc/` and `/dev/`), nothing
is both a file and a folder, and a CPU has at most one `node<N>` entry.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dranode.api.documents import kind_of
from dranode.api.errors import DocumentError
from dranode.driver.machine.root import Root
from dranode.driver.machine.yaml_files import read_yaml
from dranode.sim.machines.confined import CPU_FOLDER, NODE_NAME, ConfinedRoot, FolderFiles, OverlayFiles
from dranode.sim.machines.tree import DeviceFile, Link, TreeEntry, TreeFiles, plant

_LONG_KEYS: Final = ("base", "files", "links", "devices")
_MAX_PATH: Final = 4096  # Linux's PATH_MAX
_DEVICE: Final = re.compile(r"([cb]) ([0-9]{1,4}):([0-9]{1,7})", re.ASCII)
_TOPS: Final = {"files": ("sys", "proc"), "links": ("sys", "proc", "dev"), "devices": ("dev",)}


def read_machine_file(path: Path) -> Root:
    """Read the machine that a YAML file describes.

    Raises:
        DocumentError: the file cannot be read, is not strict YAML, or does not follow the rules above.
    """
    document = read_yaml(path)
    try:
        tree, on_host = parse_machine(document)
    except DocumentError as error:
        raise DocumentError(f"{path}: {error}") from error
    return ConfinedRoot(OverlayFiles(tree, FolderFiles("/")) if on_host else TreeFiles(tree))


def parse_machine(document: Any) -> tuple[dict[str, TreeEntry], bool]:
    """Return the file tree of a machine document, and whether it is laid over the host.

    Raises:
        DocumentError: the document breaks a rule of this module; the error names the path.
    """
    if not isinstance(document, Mapping) or not document:
        raise DocumentError(
            "a YAML machine is a map of /sys/ paths to contents, or has files:, links:, devices:, base:"
        )
    flat = any(str(key).startswith("/") for key in document)
    tree: dict[str, TreeEntry] = {}
    if flat:
        _plant_all(tree, document, "", ("sys",))
        return tree, False
    for key in document:
        if key not in _LONG_KEYS:
            raise DocumentError(f'unknown key "{key}"; use {", ".join(_LONG_KEYS)}, or only /sys/ paths')
    if document.get("base", "host") != "host":
        raise DocumentError(f'base can only be "host", not {document["base"]!r}')
    for key, tops in _TOPS.items():
        entries = document.get(key, {})
        if not isinstance(entries, Mapping):
            raise DocumentError(f"a map of paths is expected, not {kind_of(entries)}", key)
        _plant_all(tree, entries, key, tops)
    return tree, "base" in document


def _plant_all(tree: dict[str, TreeEntry], entries: Mapping[Any, Any], key: str, tops: tuple[str, ...]) -> None:
    for path, value in entries.items():
        clean = _clean(path, tops)
        if not isinstance(value, str):
            raise DocumentError(f'the value for "{path}" must be a string, not {value!r}; quote it', key)
        try:
            plant(tree, clean, _node(path, value, key))
        except FileExistsError as error:
            raise DocumentError(f'"/{error.filename}" is both a file and a folder, or is listed twice', key) from error
        _check_one_node(tree, clean, key)


def _clean(path: Any, tops: tuple[str, ...]) -> str:
    if not isinstance(path, str) or "\0" in path:
        raise DocumentError(f"{path!r} is not a path")
    parts = path.split("/")
    beneath = " or ".join(f"/{top}" for top in tops)
    if len(parts) < 3 or parts[0] or parts[1] not in tops:  # noqa: PLR2004 - "", "sys", a name
        raise DocumentError(f'"{path}" must be beneath {beneath}')
    if len(path) > _MAX_PATH:
        raise DocumentError(f'"{path[:40]}..." has {len(path)} characters, and Linux takes up to {_MAX_PATH}')
    if any(part in ("", ".", "..") for part in parts[1:]):
        raise DocumentError(f'"{path}" is not clean: it has an empty, "." or ".." part')
    return path[1:]


def _node(path: str, value: str, key: str) -> TreeEntry:
    if key == "links":
        if not value:
            raise DocumentError(f'the link "{path}" has no target', key)
        return Link(value)
    if key == "devices":
        match = _DEVICE.fullmatch(value)
        if match is None:
            raise DocumentError(f'"{value}" for "{path}" is not a type and numbers such as "c 226:128"', key)
        return DeviceFile(match[1], int(match[2]), int(match[3]))
    return value.encode()


def _check_one_node(tree: dict[str, TreeEntry], path: str, key: str) -> None:
    parts = path.split("/")
    folder = "/".join(parts[:5])
    if len(parts) > 5 and NODE_NAME.fullmatch(parts[5]) and CPU_FOLDER.fullmatch(folder):  # noqa: PLR2004 - cpuN's depth
        inside = TreeFiles(tree).names(folder)
        if sum(NODE_NAME.fullmatch(name) is not None for name in inside) > 1:
            raise DocumentError(f'"/{folder}" has several NUMA nodes, but a CPU is on only one', key)
