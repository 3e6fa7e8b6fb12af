"""Reads containerd's configuration as containerd of each version loads it: imports, sections, disabled plug-ins.

`services/server/config` of containerd 1.7 and `cmd/containerd/server/config` of 2.0 to 2.4. A configuration with which
containerd would not start is an UnparsedError; tests/vectors/containerd.json has what containerd itself loads.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from dranode.driver.machine.presence import is_folder
from dranode.tools.readers.host import HostError, NodeHost, UnparsedError

Version: TypeAlias = tuple[int, int] | None

NRI: Final = "io.containerd.nri.v1.nri"
_GRPC: Final = "io.containerd.grpc.v1.cri"
_RUNTIME: Final = "io.containerd.cri.v1.runtime"
_SECOND: Final = (2, 0)
# From here on each file is migrated by itself, and its version may be 4.
_EACH_FILE: Final = (2, 3)
# CDI is always on: `enable_cdi` is not read any more.
CDI_ALWAYS: Final = (2, 4)
_FULL_NAME: Final = re.compile(r"io\.containerd\.[^.]+\..+")


@dataclass(frozen=True, slots=True)
class Loaded:
    """What containerd loads.

    Attributes:
        version: the highest version of its files; 0 if none says it.
        nri: the section of the NRI plug-in.
        cri: the section of the CRI plug-in that has CDI and huge pages.
        disabled: plug-ins that are disabled, as containerd understands their names.
        unseen: a sentence for every import that may not be to be seen from here.
    """

    version: int
    nri: Mapping[str, Any]
    cri: Mapping[str, Any]
    disabled: frozenset[str]
    unseen: tuple[str, ...] = ()

    @property
    def nri_disabled(self) -> str:
        """Return the name under which the NRI plug-in is disabled; empty if it is not."""
        return next((name for name in (NRI, "nri") if name in self.disabled), "")

    @property
    def cri_disabled(self) -> str:
        """Return the name under which the CRI plug-in, which kubelet talks to, is disabled; empty if it is not."""
        return next((name for name in (_GRPC, _RUNTIME, "cri") if name in self.disabled), "")


def load(host: NodeHost, path: str, version: Version, *, certain: bool) -> Loaded:
    """Load containerd's configuration.

    Args:
        host: the node.
        path: the main file.
        version: containerd's, major and minor; None if unknown, and then a current one's rules count.
        certain: whether the files are seen as containerd sees them.

    Raises:
        UnparsedError: containerd does not start with it.
        HostError: a file cannot be seen.
    """
    unseen: list[str] = []
    files = list(_files(host, path, unseen, certain=certain))
    named = max((int(document.get("version", 0)) for _, document in files), default=0)
    loaded = _first(files, path) if version is not None and version < _SECOND else _second(files, path, version)
    return Loaded(named, *loaded, tuple(unseen))


_Sections: TypeAlias = tuple[Mapping[str, Any], Mapping[str, Any], frozenset[str]]


def _first(files: Iterable[tuple[str, Mapping[str, Any]]], path: str) -> _Sections:
    """Return what containerd 1.7 makes of its files: an import replaces whole sections."""
    plugins: dict[str, Any] = {}
    disabled: list[str] = []
    version = 1
    for _, document in files:
        version = document.get("version") or version
        plugins |= document.get("plugins", {})
        disabled += document.get("disabled_plugins", ())
    if version > 2:  # noqa: PLR2004 - the newest version that 1.7 knows
        raise _refused(path, f"it has version {version}, and containerd 1.7 knows 2 at most")
    if version == 1:
        # Plug-ins have short names here, and what stands under a full one is passed over.
        return plugins.get("nri", {}), plugins.get("cri", {}), frozenset(disabled) & {"nri", "cri"}
    for name in (*disabled, *plugins):
        if not _FULL_NAME.fullmatch(name):
            raise _refused(path, f'it names the plug-in "{name}" in version 2, which takes names like {_GRPC} only')
    return plugins.get(NRI, {}), plugins.get(_GRPC, {}), frozenset(disabled)


def _second(files: Iterable[tuple[str, Mapping[str, Any]]], path: str, known: Version) -> _Sections:
    """Return what containerd 2 makes of its files: an import sets single keys, and older names are migrated."""
    each_file = known is None or known >= _EACH_FILE
    newest = 4 if each_file else 3
    always = known is not None and known >= CDI_ALWAYS
    plugins: dict[str, Any] = {}
    disabled: list[str] = []
    version = newest
    for _, document in files:
        own, theirs, names = (
            document.get("version", 0),
            document.get("plugins", {}),
            document.get("disabled_plugins", ()),
        )
        if own < 2:  # noqa: PLR2004 - version 2 brought full names
            theirs = {_full(name): section for name, section in theirs.items()}
            names = map(_full, names)
        else:
            version = own
        plugins = merged(plugins, _migrated(theirs, always=always) if each_file and own < newest else theirs)
        disabled += names
    if version > newest and known is not None:
        raise _refused(path, f"it has version {version}, and containerd {known[0]}.{known[1]} knows {newest} at most")
    for name in disabled:
        if "." not in name:
            raise _refused(path, f'disabled_plugins has "{name}", and from version 2 on names are like {_GRPC}')
    if version < newest and not each_file:
        plugins = _migrated(plugins, always=always)
    return plugins.get(NRI, {}), plugins.get(_RUNTIME, {}), frozenset(disabled)


def _full(name: str) -> str:
    # Of the plug-ins with a name of their own among older ones, none is NRI's or CRI's second half.
    return name if "." in name else f"io.containerd.grpc.v1.{name}"


def _migrated(plugins: Mapping[str, Any], *, always: bool) -> dict[str, Any]:
    """Return the sections with the one of CRI in older versions laid under the one of today."""
    older = {key: value for key, value in plugins.get(_GRPC, {}).items() if not (always and key == "enable_cdi")}
    return {**plugins, _RUNTIME: {**older, **plugins.get(_RUNTIME, {})}}


def _refused(path: str, why: str) -> UnparsedError:
    return UnparsedError(f"the runtime's configuration {path}: {why}")


# --- files ---


def _files(host: NodeHost, path: str, unseen: list[str], *, certain: bool) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the main file and those that it imports, also indirectly, in the order in which containerd loads them."""
    pending, loaded = [posixpath.normpath(path)], set[str]()
    while pending:
        path = pending.pop(0)
        if path in loaded:
            continue
        loaded.add(path)
        document = toml_file(host, path, imported=len(loaded) > 1, certain=certain)
        yield path, document
        for pattern in document.get("imports", ()):
            place = posixpath.join(posixpath.dirname(path), posixpath.normpath(pattern))
            pending += (
                _glob(host, place, path, unseen, certain=certain) if "*" in place else [posixpath.normpath(place)]
            )


def _glob(host: NodeHost, pattern: str, parent: str, unseen: list[str], *, certain: bool) -> list[str]:
    """Return the files that match a pattern of Go's filepath.Glob, which may have wildcards in folders too."""
    if pattern.count("[") > pattern.count("]"):
        raise _refused(parent, f'it imports "{pattern}", which is no pattern')
    parts = posixpath.normpath(pattern).strip("/").split("/")
    first = next(index for index, part in enumerate(parts) if set(part) & set("*?[\\"))
    start = "/" + "/".join(parts[:first])
    if not certain and not is_folder(host.place(start)):
        unseen.append(
            f"the runtime's configuration: {parent} imports {pattern}, and {start} is not to be seen from here; see on "
            "the node what `containerd config dump` prints"
        )
    folders = [start.rstrip("/")]
    for part in parts[first:]:
        # A class that leaves out is [^...] in Go and [!...] here; a backslash takes the next character as it is.
        wanted = re.sub(r"\\(.)", r"[\1]", part.replace("[^", "[!"))
        folders = [f"{folder}/{name}" for folder in folders for name in fnmatch.filter(host.names(folder), wanted)]
    return folders


def toml_file(host: NodeHost, path: str, *, imported: bool = False, certain: bool = False) -> dict[str, Any]:
    """Read a file of a runtime's configuration.

    Raises:
        UnparsedError: it is no TOML, or an import that cannot be one.
        HostError: it cannot be seen.
    """
    try:
        return tomllib.loads(host.text(path))
    except IsADirectoryError as error:
        raise _refused(path, "it is a folder; name its files with a pattern like /*.toml") from error
    except FileNotFoundError as error:
        if imported and certain:
            raise _refused(path, "it is imported and is not there") from error
        raise HostError(f"the runtime's configuration: {path} is not to be seen from here") from error
    except OSError as error:
        raise HostError(f"the runtime's configuration: {path} cannot be read ({error.strerror})") from error
    except tomllib.TOMLDecodeError as error:
        raise UnparsedError(f"the runtime's configuration {path} is not TOML: {error}") from error


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return both, where `above` wins, key by key of every table."""
    both = dict(below)
    for key, value in above.items():
        old = both.get(key)
        both[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return both
