"""Reads the configuration of containerd or CRI-O, with the defaults of the running version.

NRI is off by default in containerd 1.7 and CRI-O before 1.30 and on afterwards; CDI is off by default in containerd
1.7, on from 2.0, and always on from 2.4 and in CRI-O (containerd docs/NRI.md, internal/cri/config; CRI-O
docs/crio.conf.5.md, pkg/config and internal/config/nri of 1.34 and 1.35).
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from dranode.driver.machine.presence import is_file, is_folder
from dranode.tools.diagnosis.facts import RuntimeFacts
from dranode.tools.readers.host import HostError, NodeHost, Program, UnparsedError, files_of, running

CONTAINERD: Final = "/etc/containerd/config.toml"
CRIO: Final = "/etc/crio"
_NAMES: Final = {"cri-o": "CRI-O"}
_SOCKET: Final = "/var/run/nri/nri.sock"
_PLUGINS: Final = "/opt/nri/plugins"
_CDI_DIRS: Final = ("/etc/cdi", "/var/run/cdi")
_TIMEOUT: Final = 2.0
_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def read_runtime(
    host: NodeHost, version: str, containerd: str = "", crio: str = CRIO
) -> tuple[RuntimeFacts, list[str]]:
    """Return the runtime's facts, and what is unknown about it.

    A file that cannot be seen may still exist. Defaults therefore count only if the runtime is seen to run without a
    file.

    Args:
        host: the node.
        version: `status.nodeInfo.containerRuntimeVersion` of the Node (`containerd://2.1.4`); empty if unknown.
        containerd: containerd's configuration file; empty to search for it.
        crio: CRI-O's configuration folder.

    Raises:
        UnparsedError: its configuration is no TOML.
        HostError: no runtime can be seen, and `version` names none.
    """
    name, _, text = version.partition("://")
    process = None if name == "cri-o" else running(host, "containerd")
    named = containerd or _flag(process, "config", "c")
    path = named or CONTAINERD
    theirs = files_of(host, process) if process is not None else None
    view, certain = theirs or host, theirs is not None
    if not name:
        name = _guess(view, path, crio, certain=certain and not named)
    try:
        if name == "cri-o":
            return _crio(host, runtime_version(text), crio)
        return _containerd(view, runtime_version(text), path, certain=certain)
    except UnparsedError:
        raise
    except HostError as error:
        unseen = str(error)
    except PermissionError as error:
        unseen = f"the runtime's configuration: {error.filename}: permission denied; try as root"
    except (AttributeError, TypeError, ValueError) as error:
        unseen = (
            f"the runtime's configuration: {crio if name == 'cri-o' else path} has a value of a wrong type: {error}"
        )
    return RuntimeFacts(_NAMES.get(name, name), "", runtime_version(text), nri=None, cdi=None), [unseen]


def _guess(host: NodeHost, containerd: str, crio: str, *, certain: bool) -> str:
    if certain or _is_file(host, containerd):
        return "containerd"
    if host.names(crio):
        return "cri-o"
    raise HostError(
        f"the runtime's configuration: neither {containerd} nor {crio} can be seen from here; pass "
        "--containerd-config or --crio-config, or check on the node what `containerd config dump` or `crio status "
        "config` prints"
    )


def _not_seen(path: str, command: str) -> HostError:
    return HostError(
        f"the runtime's configuration: {path} cannot be seen from here; check on the node what `{command}` prints"
    )


def _is_file(host: NodeHost, path: str) -> bool:
    return is_file(host.place(path))


def runtime_version(text: str) -> tuple[int, int] | None:
    """Return major and minor of a version (`2.1.4`, `v1.7.27-k3s1`); None if it is none."""
    found = re.match(r"v?(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def _flag(process: Program | None, *names: str) -> str:
    flags = process.flags if process is not None else {}
    return next((flags[name] for name in names if flags.get(name)), "")


def _containerd(
    host: NodeHost, version: tuple[int, int] | None, path: str, *, certain: bool
) -> tuple[RuntimeFacts, list[str]]:
    # A containerd that runs has its defaults without the file that it looks for by itself; a named one has to be there.
    if not _is_file(host, path) and not (certain and path == CONTAINERD):
        raise _not_seen(path, "containerd config dump")
    loaded = load(host, path, version, certain=certain) if _is_file(host, path) else Loaded(0, {}, {}, frozenset())
    if version is None and loaded.version >= 3:  # noqa: PLR2004 - containerd 2.0 brought version 3
        version = (2, 0)
    nri, cri = loaded.nri, dict(loaded.cri)
    validator = nri.get("default_validator", {})
    default = None if version is None else version >= (2, 0)
    if version is not None and version >= CDI_ALWAYS:
        cri["enable_cdi"] = True
    unseen = [
        f"whether {what} is on: {path} does not say, and it is unknown whether this is containerd 1.7, where it is off"
        for what, stated in (("NRI", "disable" in nri or loaded.nri_disabled), ("CDI", "enable_cdi" in cri))
        if not stated and version is None
    ]
    on = not nri["disable"] if "disable" in nri else default
    return RuntimeFacts(
        name="containerd",
        config=path,
        version=version,
        nri=False if loaded.nri_disabled else on,
        nri_disabled=loaded.nri_disabled,
        cri_disabled=loaded.cri_disabled,
        connections=not nri.get("disable_connections", False),
        nri_socket=str(nri.get("socket_path") or _SOCKET),
        request_timeout=_seconds(nri.get("plugin_request_timeout")) or _TIMEOUT,
        cdi=bool(cri["enable_cdi"]) if "enable_cdi" in cri else default,
        cdi_dirs=tuple(cri.get("cdi_spec_dirs", _CDI_DIRS)),
        validator=bool(validator.get("enable", False)),
        required=tuple(validator.get("required_plugins", ())),
        tolerance=str(validator.get("tolerate_missing_plugins_annotation", "")),
        launched=tuple(host.names(nri.get("plugin_path") or _PLUGINS)),
        hugetlb=not cri.get("disable_hugetlb_controller", True),
    ), [*loaded.unseen, *unseen]


def _crio(host: NodeHost, version: tuple[int, int] | None, folder: str) -> tuple[RuntimeFacts, list[str]]:
    process = running(host, "crio")
    theirs = files_of(host, process) if process is not None else None
    host = theirs or host
    main = _flag(process, "config", "c") or f"{folder}/crio.conf"
    parts = _flag(process, "config-dir", "d") or f"{folder}/crio.conf.d"
    if theirs is None and not is_folder(host.place(folder)):
        raise _not_seen(folder, "crio status config")
    document: dict[str, Any] = {}
    for path in [*([main] if _is_file(host, main) else []), *_walk(host, parts)]:
        document = merged(document, toml_file(host, path))
    crio = document.get("crio", {})
    nri, runtime = crio.get("nri", {}), crio.get("runtime", {})
    validator = nri.get("default_validator", {})
    known = version is not None or "enable_nri" in nri
    unseen = f"whether NRI is on: {folder} does not say, and before CRI-O 1.30 it was off; the version is unknown"
    default = None if version is None else version >= (1, 30)
    return RuntimeFacts(
        name="CRI-O",
        config=parts,
        version=version,
        nri=bool(nri["enable_nri"]) if "enable_nri" in nri else default,
        connections=not nri.get("nri_disable_connections", False),
        nri_socket=str(nri.get("nri_listen") or _SOCKET),
        request_timeout=_seconds(nri.get("nri_plugin_request_timeout")) or _TIMEOUT,
        cdi_dirs=tuple(runtime.get("cdi_spec_dirs", _CDI_DIRS)),
        validator=bool(validator.get("nri_enable_default_validator", False)),
        required=tuple(validator.get("nri_validator_required_plugins", ())),
        tolerance=str(validator.get("nri_validator_tolerate_missing_plugins_annotation", "")),
        launched=tuple(host.names(nri.get("nri_plugin_dir") or _PLUGINS)),
    ), [] if known else [unseen]


def _walk(host: NodeHost, folder: str) -> Iterator[str]:
    """Yield the files below a folder as CRI-O lays them over each other: by name, whatever their suffix."""
    for name in host.names(folder):
        path = f"{folder}/{name}"
        if is_folder(host.place(path)):
            yield from _walk(host, path)
        else:
            yield path


def _seconds(duration: Any) -> float:
    """Parse a Go duration (`2s`, `1m30s`, `500ms`; a number is nanoseconds) into seconds; 0 for none."""
    if isinstance(duration, int):
        return duration * _UNITS["ns"]
    parts: Iterable[tuple[str, str]] = re.findall(r"([\d.]+)(ns|us|µs|ms|s|m|h)", str(duration))
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


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
        unseen: a sentence for every import that may not be visible from here.
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
        raise _refused(parent, f'it imports "{pattern}", which is not a valid pattern')
    parts = posixpath.normpath(pattern).strip("/").split("/")
    first = next(index for index, part in enumerate(parts) if set(part) & set("*?[\\"))
    start = "/" + "/".join(parts[:first])
    if not certain and not is_folder(host.place(start)):
        unseen.append(
            f"the runtime's configuration: {parent} imports {pattern}, and {start} cannot be seen from here; check on "
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
            raise _refused(path, "it is imported, but does not exist") from error
        raise HostError(f"the runtime's configuration: {path} cannot be seen from here") from error
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
