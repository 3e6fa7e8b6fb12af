"""The container runtime's configuration: containerd's or CRI-O's, with the defaults of the version that runs.

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

from dranode.driver.core.diagnosis import Runtime
from dranode.driver.doctor.host import Host, UnreadError

CONTAINERD: Final = "/etc/containerd/config.toml"
CRIO: Final = "/etc/crio"
_NRI: Final = "io.containerd.nri.v1.nri"
_CRI: Final = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")
_SOCKET: Final = "/var/run/nri/nri.sock"
_PLUGINS: Final = "/opt/nri/plugins"
_CDI_DIRS: Final = ("/etc/cdi", "/var/run/cdi")
_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def read_runtime(host: Host, told: str, containerd: str = CONTAINERD, crio: str = CRIO) -> tuple[Runtime, list[str]]:
    """The runtime and what could not be told about it.

    Args:
        host: the node.
        told: `status.nodeInfo.containerRuntimeVersion` of the Node (`containerd://2.1.4`); empty if unknown.
        containerd: containerd's configuration file.
        crio: CRI-O's configuration folder.

    Raises:
        UnreadError: no runtime is to be seen, or its configuration cannot be read.
    """
    name, _, version = told.partition("://")
    if name == "cri-o" or (not name and not _is_file(host, containerd) and host.names(crio)):
        return _crio(host, _version(version), crio)
    if name == "containerd" or _is_file(host, containerd):
        return _containerd(host, _version(version), containerd)
    raise UnreadError(
        f"the runtime's configuration: there is neither {containerd} nor {crio}; name it with --containerd-config or "
        "--crio-config, or look from the node itself"
    )


def _is_file(host: Host, path: str) -> bool:
    return host.place(path).is_file()


def _version(text: str) -> tuple[int, int] | None:
    found = re.match(r"v?(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def _containerd(host: Host, version: tuple[int, int] | None, path: str) -> tuple[Runtime, list[str]]:
    document = _with_imports(host, path) if _is_file(host, path) else {}
    if version is None and document.get("version", 0) >= 3:  # noqa: PLR2004 - containerd 2.0 brought version 3
        version = (2, 0)
    plugins = document.get("plugins", {})
    nri = plugins.get(_NRI, {})
    cri: dict[str, Any] = {}
    for section in reversed(_CRI):
        cri |= plugins.get(section, {})
    validator = nri.get("default_validator", {})
    old = version is not None and version < (2, 0)
    unseen = [
        f"whether {what} is on: {path} does not say, and nothing tells whether this is containerd 1.7, where it is off"
        for what, told in (("NRI", "disable" in nri), ("CDI", "enable_cdi" in cri))
        if not told and version is None
    ]
    return Runtime(
        name="containerd",
        config=path,
        version=version,
        nri=not nri.get("disable", old),
        connections=not nri.get("disable_connections", False),
        nri_socket=str(nri.get("socket_path", _SOCKET)),
        request_timeout=_seconds(nri.get("plugin_request_timeout", "2s")),
        cdi=bool(cri.get("enable_cdi", not old)),
        cdi_dirs=tuple(cri.get("cdi_spec_dirs", _CDI_DIRS)),
        validator=bool(validator.get("enable", False)),
        required=tuple(validator.get("required_plugins", ())),
        tolerance=str(validator.get("tolerate_missing_plugins_annotation", "")),
        launched=tuple(host.names(nri.get("plugin_path", _PLUGINS))),
    ), unseen


def _crio(host: Host, version: tuple[int, int] | None, folder: str) -> tuple[Runtime, list[str]]:
    main = f"{folder}/crio.conf"
    parts = [f"{folder}/crio.conf.d/{name}" for name in host.names(f"{folder}/crio.conf.d")]
    document: dict[str, Any] = {}
    for path in [*([main] if _is_file(host, main) else []), *parts]:
        document = _merged(document, _toml(host, path))
    crio = document.get("crio", {})
    nri, runtime = crio.get("nri", {}), crio.get("runtime", {})
    validator = nri.get("default_validator", {})
    old = version is not None and version < (1, 30)
    return Runtime(
        name="CRI-O",
        config=f"{folder}/crio.conf.d",
        version=version,
        nri=bool(nri.get("enable_nri", not old)),
        connections=not nri.get("nri_disable_connections", False),
        nri_socket=str(nri.get("nri_listen", _SOCKET)),
        request_timeout=_seconds(nri.get("nri_plugin_request_timeout", "2s")),
        cdi_dirs=tuple(runtime.get("cdi_spec_dirs", _CDI_DIRS)),
        validator=bool(validator.get("nri_enable_default_validator", False)),
        required=tuple(validator.get("nri_validator_required_plugins", ())),
        tolerance=str(validator.get("nri_validator_tolerate_missing_plugins_annotation", "")),
        launched=tuple(host.names(nri.get("nri_plugin_dir", _PLUGINS))),
    ), []


def _with_imports(host: Host, path: str) -> dict[str, Any]:
    """A containerd file with those that it imports, and those that they do, laid over it in the order of their turn."""
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


def _toml(host: Host, path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(host.text(path))
    except OSError as error:
        raise UnreadError(f"the runtime's configuration: {path} cannot be read ({error.strerror})") from error
    except tomllib.TOMLDecodeError as error:
        raise UnreadError(f"the runtime's configuration: {path} is not TOML: {error}") from error


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(below)
    for key, value in above.items():
        old = both.get(key)
        both[key] = _merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return both


def _seconds(text: Any) -> float:
    """A duration as Go writes it (`2s`, `1m30s`, `500ms`)."""
    parts: Iterable[tuple[str, str]] = re.findall(r"([\d.]+)(ns|us|µs|ms|s|m|h)", str(text))
    return sum(float(number) * _UNITS[unit] for number, unit in parts)
