"""Reads the configuration of containerd or CRI-O, with the defaults of the running version.

NRI is off by default in containerd 1.7 and CRI-O before 1.30 and on afterwards; CDI is off by default in containerd
1.7, on from 2.0, and always on from 2.4 and in CRI-O (containerd docs/NRI.md, internal/cri/config; CRI-O
docs/crio.conf.5.md, pkg/config and internal/config/nri of 1.34 and 1.35).
"""

import fnmatch
import posixpath
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from dranode.driver.machine.presence import is_file, is_folder
from dranode.tools.diagnosis.facts import RuntimeFacts
from dranode.tools.readers.host import HostError, NodeHost, Program, UnparsedError, all_running, files_of, running

CONTAINERD: Final = "/etc/containerd/config.toml"
CRIO: Final = "/etc/crio"
_NAMES: Final = {"cri-o": "CRI-O"}
_SOCKET: Final = "/var/run/nri/nri.sock"
_PLUGINS: Final = "/opt/nri/plugins"
_CDI_DIRS: Final = ("/etc/cdi", "/var/run/cdi")
_TIMEOUT: Final = 2.0
_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


_Answer: TypeAlias = tuple[RuntimeFacts, list[str]]


def read_runtime(host: NodeHost, version: str, containerd: str = "", crio: str = CRIO) -> _Answer:
    """Return the runtime's facts, and what is unknown about it.

    Of several containerd processes, such as one for Docker or for the system's own containers, the first with CRI is
    kubelet's. A file that cannot be seen from here may still exist on the node. So defaults are only assumed if the
    runtime's own view of the files shows that there is none.

    Args:
        host: the node.
        version: `status.nodeInfo.containerRuntimeVersion` of the Node (`containerd://2.1.4`); empty if unknown.
        containerd: containerd's configuration file; empty to search for it.
        crio: CRI-O's configuration folder.

    Raises:
        UnparsedError: its configuration is not TOML.
        HostError: no runtime can be seen, and `version` does not name one.
    """
    processes = [] if version.startswith("cri-o:") else all_running(host, "containerd")
    answers: list[_Answer] = []
    errors: list[HostError] = []
    for process in processes or (None,):
        try:
            answers.append(_read(host, version, process, containerd, crio))
        except HostError as error:
            errors.append(error)
    with_cri = next((answer for answer in answers if not answer[0].cri_disabled), None)
    if with_cri is None and errors:
        raise errors[0]
    return with_cri or answers[0]


def _read(host: NodeHost, version: str, process: Program | None, containerd: str, crio: str) -> _Answer:
    name, _, text = version.partition("://")
    named = containerd or _flag(process, "config", "c")
    path = named or CONTAINERD
    runtime_files = files_of(host, process) if process is not None else None
    view, certain = runtime_files or host, runtime_files is not None
    try:
        name = name or _guess(view, path, crio, certain=certain and not named)
        if name == "cri-o":
            return _crio(host, runtime_version(text), crio)
        return _containerd(view, runtime_version(text), path, certain=certain)
    except UnparsedError:
        raise
    except HostError as error:
        unseen = str(error)
    except OSError as error:
        advice = "; try as root" if isinstance(error, PermissionError) else ""
        unseen = f"the runtime's configuration: {error.filename} cannot be accessed ({error.strerror}){advice}"
    except (AttributeError, TypeError, ValueError) as error:
        unseen = (
            f"the runtime's configuration: {crio if name == 'cri-o' else path} has a value of the wrong type: {error}"
        )
    if not name:
        raise HostError(unseen)
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


def runtime_version(text: str) -> tuple[int, ...] | None:
    """Return the numbers of a version (`2.1.4`, `v1.7.27-k3s1`, `1.35`); None if the text is not a version."""
    match = re.match(r"v?(\d+\.\d+(?:\.\d+)?)", text)
    return tuple(map(int, match[1].split("."))) if match else None


def _flag(process: Program | None, *names: str) -> str:
    flags = process.flags if process is not None else {}
    return next((flags[name] for name in names if flags.get(name)), "")


def _containerd(
    host: NodeHost, version: tuple[int, ...] | None, path: str, *, certain: bool
) -> tuple[RuntimeFacts, list[str]]:
    # Without its default file containerd runs with defaults, but a file named on its command line has to exist.
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
        f"whether {feature} is on: {path} does not say, and the version of containerd is unknown; it is off in 1.7"
        for feature, stated in (("NRI", "disable" in nri or loaded.nri_disabled), ("CDI", "enable_cdi" in cri))
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


def _crio(host: NodeHost, version: tuple[int, ...] | None, folder: str) -> tuple[RuntimeFacts, list[str]]:
    process = running(host, "crio")
    runtime_files = files_of(host, process) if process is not None else None
    host = runtime_files or host
    main = _flag(process, "config", "c") or f"{folder}/crio.conf"
    parts = _flag(process, "config-dir", "d") or f"{folder}/crio.conf.d"
    if runtime_files is None and not is_folder(host.place(folder)):
        raise _not_seen(folder, "crio status config")
    document: dict[str, Any] = {}
    for path in [*([main] if _is_file(host, main) else []), *_walk(host, parts)]:
        document = merged(document, toml_file(host, path))
    crio = document.get("crio", {})
    nri, runtime = crio.get("nri", {}), crio.get("runtime", {})
    validator = nri.get("default_validator", {})
    known = version is not None or "enable_nri" in nri
    unseen = f"whether NRI is on: {folder} does not say, and the version of CRI-O is unknown; it is off before 1.30"
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
    """Yield the files below a folder in the order in which CRI-O applies them: by name, with any suffix."""
    for name in host.names(folder):
        path = f"{folder}/{name}"
        if is_folder(host.place(path)):
            yield from _walk(host, path)
        else:
            yield path


def _seconds(duration: Any) -> float:
    """Parse a Go duration (`2s`, `1m30s`, `500ms`; a number means nanoseconds) into seconds; 0 if it is not one."""
    if isinstance(duration, int):
        return duration * _UNITS["ns"]
    parts: Iterable[tuple[str, str]] = re.findall(r"([\d.]+)(ns|us|µs|ms|s|m|h)", str(duration))
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


Version: TypeAlias = tuple[int, ...] | None

NRI: Final = "io.containerd.nri.v1.nri"
_GRPC: Final = "io.containerd.grpc.v1.cri"
_RUNTIME: Final = "io.containerd.cri.v1.runtime"
_SECOND: Final = (2, 0)
# Since this version each file is migrated separately, and its version may be 4.
_EACH_FILE: Final = (2, 3)
# Since this version CDI is always on, and `enable_cdi` is ignored.
CDI_ALWAYS: Final = (2, 4)
_FULL_NAME: Final = re.compile(r"io\.containerd\.[^.]+\..+")


@dataclass(frozen=True, slots=True)
class Loaded:
    """containerd's configuration.

    Attributes:
        version: the highest version of its files; 0 if none has a version.
        nri: the section of the NRI plug-in.
        cri: the section of the CRI plug-in with the settings of CDI and huge pages.
        disabled: the disabled plug-ins, by the names that containerd uses.
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
        """Return the name under which the CRI plug-in, which kubelet needs, is disabled; empty if it is not."""
        return next((name for name in (_GRPC, _RUNTIME, "cri") if name in self.disabled), "")


def load(host: NodeHost, path: str, version: Version, *, certain: bool) -> Loaded:
    """Load containerd's configuration.

    Args:
        host: the node.
        path: the main file.
        version: containerd's major and minor version; if None, the rules of a current version apply.
        certain: whether the files are seen as containerd sees them.

    Raises:
        UnparsedError: containerd would not start with it.
        HostError: a file cannot be seen.
    """
    unseen: list[str] = []
    files = list(_files(host, path, unseen, certain=certain))
    named = max((int(document.get("version", 0)) for _, document in files), default=0)
    loaded = _first(files, path) if version is not None and version < _SECOND else _second(files, path, version)
    return Loaded(named, *loaded, tuple(unseen))


_Sections: TypeAlias = tuple[Mapping[str, Any], Mapping[str, Any], frozenset[str]]


def _first(files: Iterable[tuple[str, Mapping[str, Any]]], path: str) -> _Sections:
    """Return the sections as containerd 1.7 reads them: an import replaces whole sections."""
    plugins: dict[str, Any] = {}
    disabled: list[str] = []
    version = 1
    for _, document in files:
        version = document.get("version") or version
        plugins |= document.get("plugins", {})
        disabled += document.get("disabled_plugins", ())
    if version > 2:  # noqa: PLR2004 - the newest version that 1.7 knows
        raise _refused(path, f"it has version {version}, and containerd 1.7 supports 2 at most")
    if version == 1:
        # In version 1, plug-ins have short names, and sections with full names are ignored.
        return plugins.get("nri", {}), plugins.get("cri", {}), frozenset(disabled) & {"nri", "cri"}
    for name in (*disabled, *plugins):
        if not _FULL_NAME.fullmatch(name):
            raise _refused(path, f'it names the plug-in "{name}", but version 2 requires names such as {_GRPC}')
    return plugins.get(NRI, {}), plugins.get(_GRPC, {}), frozenset(disabled)


def _second(files: Iterable[tuple[str, Mapping[str, Any]]], path: str, known: Version) -> _Sections:
    """Return the sections as containerd 2 reads them: an import sets single keys, and older names are migrated."""
    each_file = known is None or known >= _EACH_FILE
    newest = 4 if each_file else 3
    always = known is not None and known >= CDI_ALWAYS
    plugins: dict[str, Any] = {}
    disabled: list[str] = []
    version = newest
    for _, document in files:
        own, sections, names = (
            document.get("version", 0),
            document.get("plugins", {}),
            document.get("disabled_plugins", ()),
        )
        if own < 2:  # noqa: PLR2004 - version 2 brought full names
            sections = {_full(name): section for name, section in sections.items()}
            names = map(_full, names)
        else:
            version = own
        plugins = merged(plugins, _migrated(sections, always=always) if each_file and own < newest else sections)
        disabled += names
    if version > newest and known is not None:
        raise _refused(
            path, f"it has version {version}, and containerd {known[0]}.{known[1]} supports {newest} at most"
        )
    for name in disabled:
        if "." not in name:
            raise _refused(path, f'disabled_plugins has "{name}", but since version 2 names look like {_GRPC}')
    if version < newest and not each_file:
        plugins = _migrated(plugins, always=always)
    return plugins.get(NRI, {}), plugins.get(_RUNTIME, {}), frozenset(disabled)


def _full(name: str) -> str:
    # Some short names belong to other types than grpc, but not those of NRI and CRI that are read here.
    return name if "." in name else f"io.containerd.grpc.v1.{name}"


def _migrated(plugins: Mapping[str, Any], *, always: bool) -> dict[str, Any]:
    """Return the sections with CRI's older section merged into the current one, which wins."""
    older = {key: value for key, value in plugins.get(_GRPC, {}).items() if not (always and key == "enable_cdi")}
    return {**plugins, _RUNTIME: {**older, **plugins.get(_RUNTIME, {})}}


def _refused(path: str, why: str) -> UnparsedError:
    return UnparsedError(f"the runtime's configuration {path}: {why}")


def _files(host: NodeHost, path: str, unseen: list[str], *, certain: bool) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the main file and its direct and indirect imports, in the order in which containerd loads them."""
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
    """Return the files that match a pattern of Go's filepath.Glob; folders in it may have wildcards too."""
    if pattern.count("[") > pattern.count("]"):
        raise _refused(parent, f'it imports "{pattern}", which is not a valid pattern')
    parts = posixpath.normpath(pattern).strip("/").split("/")
    first = next(index for index, part in enumerate(parts) if set(part) & set("*?[\\"))
    start = "/" + "/".join(parts[:first])
    if not certain and not is_folder(host.place(start)):
        unseen.append(
            f"the runtime's configuration: {parent} imports {pattern}, but {start} cannot be seen from here; check on "
            "the node what `containerd config dump` prints"
        )
    folders = [start.rstrip("/")]
    for part in parts[first:]:
        # A negated class is [^...] in Go and [!...] in fnmatch. Go also escapes characters with a backslash.
        wanted = re.sub(r"\\(.)", r"[\1]", part.replace("[^", "[!"))
        folders = [f"{folder}/{name}" for folder in folders for name in fnmatch.filter(host.names(folder), wanted)]
    return folders


def toml_file(host: NodeHost, path: str, *, imported: bool = False, certain: bool = False) -> dict[str, Any]:
    """Read a file of a runtime's configuration.

    Raises:
        UnparsedError: it is not TOML, or it is imported but is a folder or does not exist.
        HostError: it cannot be seen or read.
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
    """Merge two documents key by key, also within tables; `above` wins."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result
