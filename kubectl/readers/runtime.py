"""Reads the configuration of containerd or CRI-O, with the defaults of the running version.

NRI is off by default in containerd 1.7 and CRI-O before 1.30 and on afterwards; CDI is off by default in containerd
1.7, on from 2.0, and always on in CRI-O (containerd docs/NRI.md, CRI-O docs/crio.conf.5.md).
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dranode.driver.core.diagnosis.facts import RuntimeFacts
from dranode.driver.machine.presence import is_file, is_folder
from dranode.kubectl.readers.host import HostError, NodeHost, UnparsedError
from dranode.kubectl.readers.processes import files_of, running

CONTAINERD: Final = "/etc/containerd/config.toml"
CRIO: Final = "/etc/crio"
_NAMES: Final = {"cri-o": "CRI-O"}
_NRI: Final = "io.containerd.nri.v1.nri"
_CRI: Final = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")
_SOCKET: Final = "/var/run/nri/nri.sock"
_PLUGINS: Final = "/opt/nri/plugins"
_CDI_DIRS: Final = ("/etc/cdi", "/var/run/cdi")
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
    process = running(host, "crio" if name == "cri-o" else "containerd")
    named = containerd or (process.flags.get("config") or process.flags.get("c") if process is not None else "")
    path = named or CONTAINERD
    theirs = files_of(host, process) if process is not None else None
    view, certain = theirs or host, theirs is not None and not named
    if not name:
        name = _guess(view, path, crio, certain=certain)
    try:
        if name == "cri-o":
            return _crio(view, runtime_version(text), crio, certain=certain)
        return _containerd(view, runtime_version(text), path, certain=certain)
    except UnparsedError:
        raise
    except HostError as error:
        unseen = str(error)
    except PermissionError as error:
        unseen = f"the runtime's configuration: {error.filename} may not be looked into; try as root"
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
        f"the runtime's configuration: neither {containerd} nor {crio} is to be seen from here; name it with "
        "--containerd-config or --crio-config, or see on the node what `containerd config dump` or `crio status "
        "config` prints"
    )


def _not_seen(path: str, command: str) -> HostError:
    return HostError(
        f"the runtime's configuration: {path} is not to be seen from here; see on the node what `{command}` prints"
    )


def _is_file(host: NodeHost, path: str) -> bool:
    return is_file(host.place(path))


def runtime_version(text: str) -> tuple[int, int] | None:
    """Return major and minor of a version (`2.1.4`, `v1.7.27-k3s1`); None if it is none."""
    found = re.match(r"v?(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def _containerd(
    host: NodeHost, version: tuple[int, int] | None, path: str, *, certain: bool
) -> tuple[RuntimeFacts, list[str]]:
    if not certain and not _is_file(host, path):
        raise _not_seen(path, "containerd config dump")
    document = _with_imports(host, path) if _is_file(host, path) else {}
    if version is None and document.get("version", 0) >= 3:  # noqa: PLR2004 - containerd 2.0 brought version 3
        version = (2, 0)
    plugins = document.get("plugins", {})
    nri = plugins.get(_NRI, {})
    cri: dict[str, Any] = {}
    for section in reversed(_CRI):
        cri |= plugins.get(section, {})
    validator = nri.get("default_validator", {})
    default = None if version is None else version >= (2, 0)
    unseen = [
        f"whether {what} is on: {path} does not say, and nothing tells whether this is containerd 1.7, where it is off"
        for what, stated in (("NRI", "disable" in nri), ("CDI", "enable_cdi" in cri))
        if not stated and version is None
    ]
    return RuntimeFacts(
        name="containerd",
        config=path,
        version=version,
        nri=not nri["disable"] if "disable" in nri else default,
        connections=not nri.get("disable_connections", False),
        nri_socket=str(nri.get("socket_path", _SOCKET)),
        request_timeout=_seconds(nri.get("plugin_request_timeout", "2s")),
        cdi=bool(cri["enable_cdi"]) if "enable_cdi" in cri else default,
        cdi_dirs=tuple(cri.get("cdi_spec_dirs", _CDI_DIRS)),
        validator=bool(validator.get("enable", False)),
        required=tuple(validator.get("required_plugins", ())),
        tolerance=str(validator.get("tolerate_missing_plugins_annotation", "")),
        launched=tuple(host.names(nri.get("plugin_path", _PLUGINS))),
        hugetlb=not cri.get("disable_hugetlb_controller", True),
    ), unseen


def _crio(
    host: NodeHost, version: tuple[int, int] | None, folder: str, *, certain: bool
) -> tuple[RuntimeFacts, list[str]]:
    if not certain and not is_folder(host.place(folder)):
        raise _not_seen(folder, "crio status config")
    main = f"{folder}/crio.conf"
    parts = [f"{folder}/crio.conf.d/{name}" for name in host.names(f"{folder}/crio.conf.d")]
    document: dict[str, Any] = {}
    for path in [*([main] if _is_file(host, main) else []), *parts]:
        document = _merged(document, _toml(host, path))
    crio = document.get("crio", {})
    nri, runtime = crio.get("nri", {}), crio.get("runtime", {})
    validator = nri.get("default_validator", {})
    known = version is not None or "enable_nri" in nri
    unseen = f"whether NRI is on: {folder} does not say, and before CRI-O 1.30 it was off; nothing tells which this is"
    default = None if version is None else version >= (1, 30)
    return RuntimeFacts(
        name="CRI-O",
        config=f"{folder}/crio.conf.d",
        version=version,
        nri=bool(nri["enable_nri"]) if "enable_nri" in nri else default,
        connections=not nri.get("nri_disable_connections", False),
        nri_socket=str(nri.get("nri_listen", _SOCKET)),
        request_timeout=_seconds(nri.get("nri_plugin_request_timeout", "2s")),
        cdi_dirs=tuple(runtime.get("cdi_spec_dirs", _CDI_DIRS)),
        validator=bool(validator.get("nri_enable_default_validator", False)),
        required=tuple(validator.get("nri_validator_required_plugins", ())),
        tolerance=str(validator.get("nri_validator_tolerate_missing_plugins_annotation", "")),
        launched=tuple(host.names(nri.get("nri_plugin_dir", _PLUGINS))),
    ), [] if known else [unseen]


def _with_imports(host: NodeHost, path: str) -> dict[str, Any]:
    """Read a containerd file, and merge the files that it imports, also indirectly, in their order."""
    document: dict[str, Any] = {}
    pending, loaded = [posixpath.normpath(path)], set[str]()
    while pending:
        path = pending.pop(0)
        if path in loaded:
            continue
        loaded.add(path)
        above = _toml(host, path)
        document = _merged(document, above)
        for pattern in above.get("imports", ()):
            folder, name = posixpath.split(posixpath.normpath(posixpath.join(posixpath.dirname(path), pattern)))
            pending += (posixpath.join(folder, found) for found in fnmatch.filter(host.names(folder), name))
    return document


def _toml(host: NodeHost, path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(host.text(path))
    except OSError as error:
        raise HostError(f"the runtime's configuration: {path} cannot be read ({error.strerror})") from error
    except tomllib.TOMLDecodeError as error:
        raise UnparsedError(f"the runtime's configuration {path} is not TOML: {error}") from error


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(below)
    for key, value in above.items():
        old = both.get(key)
        both[key] = _merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return both


def _seconds(text: Any) -> float:
    """Parse a Go duration (`2s`, `1m30s`, `500ms`) into seconds."""
    parts: Iterable[tuple[str, str]] = re.findall(r"([\d.]+)(ns|us|µs|ms|s|m|h)", str(text))
    return sum(float(number) * _UNITS[unit] for number, unit in parts)
