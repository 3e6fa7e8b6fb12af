"""The options of `serve`, and those of them that `slices` and `local` share.

Order: default < `--config FILE` < `DRANODE_*` environment < flag; click's own, with the file as its default map. The
file is strict YAML with camel-case keys, dra-driver-cpu's names where it has one.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import click

from dranode.driver.core.api.errors import DocumentError, UsageError

F = TypeVar("F", bound=Callable[..., Any])

# Key in the file -> parameter. Where dra-driver-cpu has a key, it is that one.
_KEYS: Final = {
    "drivers": "drivers",
    "hostnameOverride": "node_name",
    "kubeconfig": "kubeconfig",
    "kubeletRootDir": "kubelet_root",
    "cdiDir": "cdi_dir",
    "nriSocket": "nri_socket",
    "bindAddress": "http_address",
    "podResourcesSocket": "pod_resources_socket",
    "claimStatus": "claim_status",
    "podUID": "pod_uid",
    "gpuSharing": "gpu_sharing",
    "cpuDeviceMode": "cpu_device_mode",
    "groupBy": "group_by",
    "reservedCPUs": "reserved_cpus",
    "threads": "threads",
    "order": "order",
    "exposePCIeRoots": "expose_pcie_roots",
    "compatAttributes": "compat_attributes",
    "publishNodeAllocatableResourceMapping": "node_allocatable_mapping",
    "deviceTaints": "device_taints",
    "logFormat": "log_format",
    "verbosity": "verbosity",
}
_FILE_VERSION: Final = "v1alpha1"


def _read_config(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    del parameter
    if value is not None:
        known = {option.name: option for option in ctx.command.params if option.name is not None}
        ctx.default_map = {**(ctx.default_map or {}), **config_file(value, known)}
    return value


def config_file(path: str, parameters: Mapping[str, click.Parameter]) -> dict[str, Any]:
    """The parameters that a configuration file sets.

    Raises:
        UsageError: the file cannot be read, a key is unknown, misspelt or twice there, or a value has the wrong type.
    """
    from dranode.driver.machine.yaml_files import read_yaml

    try:
        document = read_yaml(path)
    except DocumentError as error:
        raise UsageError(str(error)) from error
    if document is None:
        return {}
    if not isinstance(document, Mapping):
        raise UsageError(f"{path}: a configuration is a map of options, not a {type(document).__name__}")
    folded = {key.lower(): key for key in _KEYS}
    values: dict[str, Any] = {}
    for key, value in document.items():
        if key == "apiVersion":
            if value != _FILE_VERSION:
                raise UsageError(f'{path}: unsupported apiVersion "{value}", want "{_FILE_VERSION}"')
            continue
        if key not in _KEYS:
            near = folded.get(str(key).lower()) or ("apiVersion" if str(key).lower() == "apiversion" else None)
            hint = f'is spelled "{near}" here' if near else f"is unknown; there are {', '.join(sorted(_KEYS))}"
            raise UsageError(f'{path}: the key "{key}" {hint}')
        name = _KEYS[key]
        # A command that shares only some options passes over the others: one file serves every command.
        if name in parameters:
            values[name] = _checked(path, key, value, parameters[name])
    return values


def _checked(path: str, key: str, value: Any, parameter: click.Parameter) -> Any:
    wanted: type = str
    if parameter.multiple:
        wanted = list
    elif isinstance(parameter.type, click.types.BoolParamType):
        wanted = bool
    elif isinstance(parameter.type, (click.types.IntParamType, click.IntRange)):
        wanted = int
    if not isinstance(value, wanted):
        raise UsageError(f"{path}: {key} must be a {wanted.__name__}, not {value!r}")
    if isinstance(parameter.type, click.Choice) and value not in parameter.type.choices:
        raise UsageError(f'{path}: {key} must be one of {", ".join(parameter.type.choices)}, not "{value}"')
    return value


def _option(*names: str, **attributes: Any) -> Callable[[F], F]:
    flag = next(name for name in names if name.startswith("--"))
    return click.option(*names, envvar="DRANODE_" + flag[2:].upper().replace("-", "_"), show_envvar=False, **attributes)


def _apply(options: tuple[Callable[[F], F], ...], function: F) -> F:
    for option in reversed(options):
        function = option(function)
    return function


def variables() -> frozenset[str]:
    """The environment variables of all options."""
    function = serve_options(driver_options(lambda: None))
    given = (parameter.envvar or () for parameter in function.__click_params__)  # type: ignore[attr-defined]
    return frozenset(name for names in given for name in ([names] if isinstance(names, str) else names))


def default_node_name() -> str:
    """`NODE_NAME` from the downward API, else the lower-cased host name."""
    return os.environ.get("NODE_NAME") or socket.gethostname().strip().lower()


def driver_options(function: F) -> F:
    """Which drivers, for which node, publishing what: `serve`, `slices` and `local` take these."""
    return _apply(
        (
            click.option(
                "--config",
                metavar="FILE",
                is_eager=True,
                expose_value=False,
                callback=_read_config,
                envvar="DRANODE_CONFIG",
                help="Read options from a YAML file; environment (DRANODE_*) and flags win over it.",
            ),
            _option(
                "--driver",
                "drivers",
                multiple=True,
                default=("cpu",),
                metavar="NAME",
                help="A driver to run: cpu, gpu or an installed one; may be repeated (default cpu).",
            ),
            _option(
                "--node-name",
                default=default_node_name,
                metavar="NAME",
                help="The node (default NODE_NAME, else the lower-cased host name).",
            ),
            _option(
                "--cpu-device-mode",
                type=click.Choice(["grouped", "individual"]),
                default="grouped",
                help="One device a group of CPUs, or one a CPU.",
            ),
            _option(
                "--group-by",
                type=click.Choice(["numanode", "socket", "machine"]),
                default="numanode",
                help="What a group is.",
            ),
            _option(
                "--reserved-cpus", default="", metavar="LIST", help="CPUs for the system, never handed out (0-1,8)."
            ),
            _option(
                "--threads",
                type=click.Choice(["any", "full-core"]),
                default="any",
                help="full-core publishes whole physical cores as the step of every request.",
            ),
            _option(
                "--order",
                type=click.Choice(["untouched-first", "reference"]),
                default="untouched-first",
                help="Which cores single threads come from; reference fills up those that other claims have part of.",
            ),
            _option(
                "--gpu-sharing",
                type=click.Choice(["exclusive", "shared"]),
                default="exclusive",
                help="Whether several claims may have one GPU.",
            ),
            _option(
                "--expose-pcie-roots/--no-expose-pcie-roots",
                default=False,
                help="Publish the PCIe roots near a group (needs DRAListTypeAttributes).",
            ),
            _option(
                "--compat-attributes/--no-compat-attributes",
                default=False,
                help="Publish dra-driver-cpu's deprecated attributes too.",
            ),
            _option(
                "--node-allocatable-mapping/--no-node-allocatable-mapping",
                default=False,
                help="Publish nodeAllocatableResources (needs DRANodeAllocatableResources).",
            ),
            _option("--device-taints/--no-device-taints", default=False, help="Taint unhealthy devices."),
        ),
        function,
    )


def serve_options(function: F) -> F:
    """Where `serve` meets kubelet, the runtime and the cluster."""
    return _apply(
        (
            _option("--kubeconfig", default="", metavar="FILE", help="Default: in-cluster."),
            _option("--kubelet-root", default="/var/lib/kubelet", metavar="DIR", help="kubelet's --root-dir."),
            _option("--cdi-dir", default="/var/run/cdi", metavar="DIR", help="Where CDI specs are written."),
            _option("--nri-socket", default="/var/run/nri/nri.sock", metavar="PATH|none", help="The runtime's NRI."),
            _option(
                "--http-address",
                default="127.0.0.1:8080",
                metavar="HOST:PORT|none",
                help="/healthz, /readyz and /metrics.",
            ),
            _option(
                "--pod-resources-socket",
                default="",
                metavar="PATH",
                help="Default: pod-resources/kubelet.sock under kubelet's root.",
            ),
            _option(
                "--claim-status",
                type=click.Choice(["on", "off"]),
                default="on",
                help="Write status.devices of prepared claims.",
            ),
            click.option(
                "--pod-uid",
                envvar=["DRANODE_POD_UID", "POD_UID"],
                default="",
                metavar="UID",
                help="This pod's UID; turns on the sockets of a rolling update.",
            ),
            _option("--log-format", type=click.Choice(["text", "json"]), default="text", help="How to log."),
            click.option("-v", "verbosity", count=True, help="Log more; twice for every call's details."),
        ),
        function,
    )
