"""Rules about the container runtime: NRI, which pins containers, and CDI, which gives them devices."""

import posixpath
from collections.abc import Iterator, Mapping
from typing import Final

from dranode.tools.diagnosis.facts import Facts, Fault, NodeFacts, PathState, RuntimeFacts

# NRI plug-ins of other projects that set the CPUs of containers.
_SETTERS: Final = ("balloons", "topology-aware", "dra-driver-cpu", "template-cpuset")
_CONTAINERD: Final = "containerd"
# The first versions whose NRI has a validator, and the oldest that support DRA.
_VALIDATOR: Final = {_CONTAINERD: (2, 2), "CRI-O": (1, 35)}
_OLDEST: Final[Mapping[str, tuple[int, ...]]] = {_CONTAINERD: (1, 7), "CRI-O": (1, 28)}
# The first containerd that knows `additionalGids`.
_GROUPS: Final = (1, 7, 16)
_SHORT: Final = 1.0
# The annotation of the driver's own pod in deploy/daemonset.yaml.
TOLERANCE: Final = "tolerate-missing-plugins.noderesource.dev"
_REQUIRE: Final = {
    _CONTAINERD: (
        'set enable = true, required_plugins = [{drivers}] and tolerate_missing_plugins_annotation = "{tolerance}" '
        'under [plugins."io.containerd.nri.v1.nri".default_validator] in {config}'
    ),
    "CRI-O": (
        "set nri_enable_default_validator = true, nri_validator_required_plugins = [{drivers}] and "
        'nri_validator_tolerate_missing_plugins_annotation = "{tolerance}" under [crio.nri.default_validator] in '
        "{config}"
    ),
}


def _named(runtime: RuntimeFacts) -> str:
    return runtime.name if runtime.version is None else f"{runtime.name} {'.'.join(map(str, runtime.version))}"


def _configured(facts: Facts) -> RuntimeFacts | None:
    return facts.runtime if facts.runtime is not None and facts.runtime.config else None


def _pinning(facts: Facts) -> RuntimeFacts | None:
    return _configured(facts) if facts.options.pinning else None


def nri_answers(node: NodeFacts | None) -> bool:
    """Return whether a process answers on the NRI socket that the driver uses; a runtime without NRI has no socket."""
    places = node.places if node is not None else ()
    return any(place.use == "NRI" and place.state is PathState.THERE for place in places)


def config_unparsed(facts: Facts) -> Iterator[Fault]:
    """The runtime cannot parse its configuration, so it does not start again."""
    if facts.invalid_runtime:
        yield Fault(facts.invalid_runtime, "correct the file, because the runtime would not start again with it")


def nri_off(facts: Facts) -> Iterator[Fault]:
    """NRI is off, so no container is ever pinned."""
    runtime = _pinning(facts)
    if runtime is not None and runtime.nri is False and not nri_answers(facts.node):
        if runtime.nri_disabled:
            fix = (
                f'remove "{runtime.nri_disabled}" from disabled_plugins in {runtime.config} and restart {runtime.name}'
            )
        else:
            fix = f"set {_nri_on(runtime)} and restart {runtime.name}"
        yield Fault(
            f"NRI is off in {_named(runtime)}, so no container is pinned to its claim's CPUs, and no claim is prepared",
            fix,
        )


def cri_off(facts: Facts) -> Iterator[Fault]:
    """Containerd's CRI plug-in is disabled, as in the configuration from Docker's package, so kubelet cannot use it."""
    runtime = _configured(facts)
    if runtime is not None and runtime.cri_disabled:
        yield Fault(
            f"{_named(runtime)} has no CRI, because disabled_plugins in {runtime.config} lists {runtime.cri_disabled}, "
            "so kubelet cannot start containers with it",
            f'remove "{runtime.cri_disabled}" from disabled_plugins and restart {runtime.name}',
        )


def _nri_on(runtime: RuntimeFacts) -> str:
    if runtime.name == _CONTAINERD:
        return f'disable = false under [plugins."io.containerd.nri.v1.nri"] in {runtime.config}'
    return f"enable_nri = true under [crio.nri] in {runtime.config}"


def hugetlb_controller_off(facts: Facts) -> Iterator[Fault]:
    """The runtime drops the limits of huge pages, which is containerd's default."""
    runtime, drivers = _configured(facts), facts.options.holding_pages
    if runtime is not None and drivers and not runtime.hugetlb:
        yield Fault(
            f"{_named(runtime)} ignores limits of huge pages (disable_hugetlb_controller is true, the default, in "
            f"{runtime.config}), so {' and '.join(drivers)} cannot limit containers to the huge pages of their claims",
            'set disable_hugetlb_controller = false under [plugins."io.containerd.cri.v1.runtime"] '
            '([plugins."io.containerd.grpc.v1.cri"] before containerd 2.0) and restart containerd',
        )


def nri_connections_off(facts: Facts) -> Iterator[Fault]:
    """NRI creates no socket for plug-ins."""
    runtime = _pinning(facts)
    if runtime is not None and runtime.nri is not False and not runtime.connections and not nri_answers(facts.node):
        key = "disable_connections" if runtime.name == _CONTAINERD else "nri_disable_connections"
        yield Fault(
            f"{_named(runtime)} accepts no NRI plug-ins on its socket ({key} = true in {runtime.config})",
            f"set {key} = false and restart {runtime.name}",
        )


def nri_socket_differs(facts: Facts) -> Iterator[Fault]:
    """The driver connects to another NRI socket than the runtime's."""
    runtime, socket = _pinning(facts), facts.options.nri_socket
    if (
        runtime is not None
        and runtime.nri is not False
        and socket
        and plain_path(runtime.nri_socket) != plain_path(socket)
    ):
        yield Fault(
            f"{runtime.name} serves NRI at {runtime.nri_socket}, but the driver connects to {socket}",
            f"pass --nri-socket {runtime.nri_socket} and mount its folder",
        )


def nri_unused(facts: Facts) -> Iterator[Fault]:
    """The driver is configured to run without NRI."""
    if facts.options.pinning and not facts.options.nri_socket:
        yield Fault(
            "claims are not enforced: --nri-socket none lets every container use all CPUs, whatever its claim says",
            f"leave the option out, or do not run {' and '.join(facts.options.pinning)}",
        )


def cdi_off(facts: Facts) -> Iterator[Fault]:
    """CDI is off, so containers get none of their devices."""
    runtime = _configured(facts)
    if runtime is not None and runtime.cdi is False:
        table = "io.containerd.grpc.v1.cri" if (runtime.version or (1, 7)) < (2, 0) else "io.containerd.cri.v1.runtime"
        yield Fault(
            f"CDI is off in {_named(runtime)}, so containers with claims do not start or start without devices",
            f'set enable_cdi = true under [plugins."{table}"] in {runtime.config} and restart {runtime.name}',
        )


def cdi_dir_not_read(facts: Facts) -> Iterator[Fault]:
    """The runtime does not read the directory to which the driver writes CDI specs."""
    runtime, cdi_dir = _configured(facts), facts.options.cdi_dir
    if (
        runtime is not None
        and runtime.cdi is not False
        and plain_path(cdi_dir) not in map(plain_path, runtime.cdi_dirs)
    ):
        yield Fault(
            f"the driver writes CDI specs to {cdi_dir}, but {runtime.name} reads "
            f"{', '.join(runtime.cdi_dirs) or 'none'}",
            f"pass --cdi-dir with one of these, or add {cdi_dir} to cdi_spec_dirs in {runtime.config}",
        )


def runtime_too_old(facts: Facts) -> Iterator[Fault]:
    """The runtime does not support CDI devices over CRI, or not the groups of GPUs' device nodes."""
    runtime = facts.runtime
    if runtime is None or runtime.version is None:
        return
    oldest, lack = _OLDEST[runtime.name], "accepts no CDI devices from kubelet"
    if runtime.name == _CONTAINERD and "dra.gpu" in facts.options.drivers and len(runtime.version) > len(oldest):
        oldest, lack = (
            _GROUPS,
            "does not load CDI specs of version 0.7.0, which GPUs with the groups video or render have",
        )
    if runtime.version < oldest:
        fix = f"upgrade to {runtime.name} {'.'.join(map(str, oldest))} or newer"
        yield Fault(f"{_named(runtime)} {lack}", fix)


def plugin_not_required(facts: Facts) -> Iterator[Fault]:
    """Containers that start while the driver is down are not pinned."""
    runtime = _pinning(facts)
    if runtime is None or runtime.nri is False or _requires(facts, runtime):
        return
    first = _VALIDATOR[runtime.name]
    if runtime.version is not None and runtime.version < first:
        fix = f"upgrade to {runtime.name} {first[0]}.{first[1]} or newer, whose NRI can require a plug-in"
    else:
        drivers = ", ".join(f'"{driver}"' for driver in facts.options.pinning)
        fix = _REQUIRE[runtime.name].format(config=runtime.config, tolerance=TOLERANCE, drivers=drivers)
    yield Fault("no NRI plug-in is required, so containers that start while the driver is down are not pinned", fix)


def required_without_tolerance(facts: Facts) -> Iterator[Fault]:
    """The driver's own pod cannot start without the driver, so it never starts again."""
    runtime = _pinning(facts)
    if (
        runtime is not None
        and runtime.nri is not False
        and _requires(facts, runtime)
        and runtime.tolerance != TOLERANCE
    ):
        key = ("" if runtime.name == _CONTAINERD else "nri_validator_") + "tolerate_missing_plugins_annotation"
        yield Fault(
            f"{_named(runtime)} does not start any container without the driver, not even the driver's own",
            f'set {key} = "{TOLERANCE}" in {runtime.config}; the driver\'s pod has that annotation',
        )


def _requires(facts: Facts, runtime: RuntimeFacts) -> bool:
    # A plug-in's name may include its index: 00-dra.example.com.
    names = {name.partition("-")[2] if name[:2].isdigit() else name for name in runtime.required}
    return runtime.validator and any(driver in names for driver in facts.options.drivers)


def nri_timeout_short(facts: Facts) -> Iterator[Fault]:
    """The runtime disconnects the driver if it does not answer within a very short time."""
    runtime = _pinning(facts)
    if runtime is not None and runtime.nri is not False and runtime.request_timeout < _SHORT:
        key = "plugin_request_timeout" if runtime.name == _CONTAINERD else "nri_plugin_request_timeout"
        yield Fault(
            f"{runtime.name} waits only {runtime.request_timeout:g} s for an NRI plug-in and then continues without it",
            f'set {key} = "2s" in {runtime.config}',
        )


def other_nri_plugin(facts: Facts) -> Iterator[Fault]:
    """Two NRI plug-ins set CPUs, which makes every container creation fail."""
    runtime = _pinning(facts)
    if runtime is None:
        return
    for name in runtime.launched:
        if any(setter in name for setter in _SETTERS):
            yield Fault(
                f"{runtime.name} starts the NRI plug-in {name}, which sets the CPUs of containers as this driver does",
                "remove one of the two: the runtime refuses containers whose CPUs two plug-ins set",
            )


def plain_path(path: str) -> str:
    """Return the plain form of a path: without `.`, double slashes and scheme, and with /run instead of /var/run."""
    path = posixpath.normpath("/" + path.removeprefix("unix://").lstrip("/"))
    # /var/run is a link to /run on all current distributions.
    return "/run" + path.removeprefix("/var/run") if path.startswith("/var/run/") else path
