"""Checks whether container runtimes would load a CDI spec, with the rules of the newest Go library, v1.1.1.

These rules are a subset of those in SPEC.md. Every broken rule is reported as a problem with its path; the library
itself stops at the first one.
"""

from collections.abc import Iterator
from typing import Final, TypeAlias

import msgspec

from dranode.cdi.errors import CDIError, shown
from dranode.cdi.names import device_problem, kind_problem, split_kind
from dranode.cdi.spec import (
    INT64,
    UINT32,
    CDIDevice,
    ContainerEdits,
    DeviceNode,
    Hook,
    IntelRdt,
    Mount,
    NetDevice,
    Spec,
)
from dranode.cdi.version import version_problem

HOOK_NAMES: Final = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
NODE_TYPES: Final = ("", "b", "c", "u", "p")
NO_PERMISSIONS: Final = "none"
CLOS_ID_LIMIT: Final = 4095  # bytes
ROOT_CLOS: Final = "/"

Problems: TypeAlias = Iterator[CDIError]


def spec_problems(spec: Spec) -> tuple[CDIError, ...]:
    """Return one error for each rule of the library that a spec breaks; runtimes load a spec without errors."""
    return tuple(_spec(spec))


def _spec(spec: Spec) -> Problems:
    if problem := version_problem(spec):
        yield CDIError(problem, "cdiVersion")
    if problem := kind_problem(spec.kind):
        yield CDIError(problem, "kind")
    yield from _edits(spec.container_edits, "containerEdits")
    if not spec.devices:
        yield CDIError("has no device", "devices")
    first: dict[str, int] = {}
    for index, device in enumerate(spec.devices):
        path = f"devices[{index}]"
        yield from _device(device, path)
        if (earlier := first.setdefault(device.name, index)) != index:
            yield CDIError(f"{shown(device.name)} is already the name of devices[{earlier}]", f"{path}.name")


def _device(device: CDIDevice, path: str) -> Problems:
    if problem := device_problem(device.name):
        yield CDIError(problem, f"{path}.name")
    if device.container_edits:
        yield from _edits(device.container_edits, f"{path}.containerEdits")
    else:
        yield CDIError("is empty, and a device must edit something", f"{path}.containerEdits")


def _edits(edits: ContainerEdits, path: str) -> Problems:
    yield from _env(edits.env, path)
    for index, node in enumerate(edits.device_nodes):
        yield from _device_node(node, f"{path}.deviceNodes[{index}]")
    for index, hook in enumerate(edits.hooks):
        yield from _hook(hook, f"{path}.hooks[{index}]")
    for index, mount in enumerate(edits.mounts):
        yield from _mount(mount, f"{path}.mounts[{index}]")
    if edits.intel_rdt is not None:
        yield from _intel_rdt(edits.intel_rdt, f"{path}.intelRdt")
    yield from _net_devices(edits.net_devices, f"{path}.netDevices")
    for index, gid in enumerate(edits.additional_gids):
        yield from _whole(gid, UINT32, f"{path}.additionalGids[{index}]")


def _whole(number: int | None, values: range, path: str) -> Problems:
    if number is not None and number not in values:
        yield CDIError(f"{number} is not from {values.start} to {values.stop - 1}", path)


def _env(env: tuple[str, ...], path: str) -> Problems:
    for index, variable in enumerate(env):
        if variable.find("=") < 1:
            yield CDIError(f"{shown(variable)} is not NAME=value", f"{path}.env[{index}]")


def _device_node(node: DeviceNode, path: str) -> Problems:
    if not node.path:
        yield CDIError("is empty", f"{path}.path")
    if node.type not in NODE_TYPES:
        yield CDIError(f"{shown(node.type)} is not one of b, c, u, p", f"{path}.type")
    if node.permissions != NO_PERMISSIONS and node.permissions.strip("rwm"):
        yield CDIError(f'{shown(node.permissions)} is neither made of r, w and m nor "none"', f"{path}.permissions")
    for field, number, values in (
        ("major", node.major, INT64),
        ("minor", node.minor, INT64),
        ("fileMode", node.file_mode, UINT32),
        ("uid", node.uid, UINT32),
        ("gid", node.gid, UINT32),
    ):
        yield from _whole(number, values, f"{path}.{field}")


def _hook(hook: Hook, path: str) -> Problems:
    if hook.hook_name not in HOOK_NAMES:
        yield CDIError(f"{shown(hook.hook_name)} is not one of {', '.join(HOOK_NAMES)}", f"{path}.hookName")
    if not hook.path:
        yield CDIError("is empty", f"{path}.path")
    yield from _env(hook.env, path)
    yield from _whole(hook.timeout, INT64, f"{path}.timeout")


def _mount(mount: Mount, path: str) -> Problems:
    if not mount.host_path:
        yield CDIError("is empty", f"{path}.hostPath")
    if not mount.container_path:
        yield CDIError("is empty", f"{path}.containerPath")


def _intel_rdt(rdt: IntelRdt, path: str) -> Problems:
    # "/" is the root class of resctrl. It is the only valid id with a slash.
    clos_id = rdt.clos_id
    if clos_id == ROOT_CLOS:
        return
    if (size := len(clos_id.encode(errors="replace"))) > CLOS_ID_LIMIT:
        yield CDIError(f"has {size} bytes and may have {CLOS_ID_LIMIT}", f"{path}.closID")
    elif clos_id in (".", "..") or set(clos_id) & {"/", "\n"}:
        yield CDIError(f"{shown(clos_id)} is not a file name", f"{path}.closID")


def _net_devices(devices: tuple[NetDevice, ...], path: str) -> Problems:
    for field, values in (
        ("hostInterfaceName", [device.host_interface_name for device in devices]),
        ("name", [device.name for device in devices]),
    ):
        first: dict[str, int] = {}
        for index, value in enumerate(values):
            if not value:
                yield CDIError("is empty", f"{path}[{index}].{field}")
            elif (earlier := first.setdefault(value, index)) != index:
                yield CDIError(f"{shown(value)} is already that of [{earlier}]", f"{path}[{index}].{field}")


class SpecVerdict(msgspec.Struct, frozen=True):
    """The verdict on one document.

    Attributes:
        problems: the reasons why a runtime does not load it, each with its path; empty if it does.
        spec: the content, None if there are problems.
        warnings: older runtimes that do not load it, one sentence each.
    """

    problems: tuple[CDIError, ...] = ()
    spec: Spec | None = None
    warnings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Return whether a runtime loads it."""
        return not self.problems


def validate(data: bytes) -> SpecVerdict:
    """Check the content of a file, YAML or JSON; never raises."""
    from dranode.cdi.document import load_spec  # noqa: PLC0415 - YAML, which a program that only writes specs does not need

    try:
        spec = load_spec(data)
    except CDIError as error:
        return SpecVerdict(problems=(error,))
    if problems := spec_problems(spec):
        return SpecVerdict(problems=problems)
    return SpecVerdict(spec=spec, warnings=tuple(_older_runtimes(spec)))


def _older_runtimes(spec: Spec) -> Iterator[str]:
    """Yield what older runtimes that are still in use refuse in a spec that the newest library loads."""
    edits = [spec.container_edits, *(device.container_edits for device in spec.devices)]
    version = spec.cdi_version.removeprefix("v")
    if version in ("1.0.0", "1.1.0"):
        yield f"containerd 1.7 (CDI library v0.8.1) refuses version {spec.cdi_version}; it knows 0.8.0 and older"
    elif version in ("0.7.0", "0.8.0"):
        yield f"podman 4.9, containerd 1.7.15 and older refuse version {spec.cdi_version}; they know 0.6.0 and older"
    if any(part.intel_rdt is not None and part.intel_rdt.clos_id == ROOT_CLOS for part in edits):
        yield 'containerd 1.7 (CDI library v0.8.1) refuses closID "/"'
    if any(node.permissions == NO_PERMISSIONS for part in edits for node in part.device_nodes):
        yield 'containerd 2.2 and older (CDI library v1.1.0) refuse the permissions "none"'
    if any(len(name) == 1 for name in split_kind(spec.kind)):
        yield f"containerd 2.2 and older (CDI library v1.1.0) crash over a vendor or class of one letter: {spec.kind}"
