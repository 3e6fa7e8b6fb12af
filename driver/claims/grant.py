"""What a claim's allocation says for one driver, and what the driver gave the claim."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, Self, TypeVar

import msgspec
from msgspec.structs import force_setattr

from dranode.api.cpuset import NO_CPUS, CPUSet
from dranode.api.documents import decode
from dranode.api.errors import DocumentError
from dranode.api.resource import (
    AllocationResult,
    DeviceAllocationConfiguration,
    DeviceAttribute,
    DeviceClaim,
    DeviceClaimConfiguration,
    DeviceRequest,
    DeviceRequestAllocationResult,
    OpaqueDeviceConfiguration,
    PlainAttribute,
    attributes_of,
)
from dranode.cdi.spec import ContainerEdits
from dranode.driver.claims.held import ClaimRef

# Each result and each configuration belongs to one driver. Entries of other drivers are not validated: an entry stays
# as it came (a plain document, or the value that the allocator made) until its own driver asks for it.

T = TypeVar("T")

_PATH = "status.allocation.devices"


def drivers_of(allocation: AllocationResult | None) -> frozenset[str]:
    """Return the drivers whose devices an allocation holds."""
    return (
        frozenset(driver for driver in map(_driver, allocation.devices.results) if driver)
        if allocation
        else frozenset()
    )


def results_of(allocation: AllocationResult | None, driver: str) -> tuple[DeviceRequestAllocationResult, ...]:
    """The results of one driver, in order.

    Raises:
        DocumentError: one of them does not decode; says where in the claim.
    """
    results = allocation.devices.results if allocation is not None else ()
    return tuple(
        _read(DeviceRequestAllocationResult, entry, f"{_PATH}.results[{index}]")
        for index, entry in enumerate(results)
        if _driver(entry) == driver
    )


def check_results(allocation: AllocationResult | None) -> None:
    """Check the results of every driver, for callers to whom a device without a result is free.

    Raises:
        DocumentError: one of them does not decode; says where in the claim.
    """
    for index, entry in enumerate(allocation.devices.results if allocation is not None else ()):
        _read(DeviceRequestAllocationResult, entry, f"{_PATH}.results[{index}]")


def readable_results(allocation: AllocationResult | None) -> Iterator[DeviceRequestAllocationResult]:
    """The results of every driver, without those that do not decode; for callers that only show them."""
    for entry in allocation.devices.results if allocation is not None else ():
        try:
            yield _read(DeviceRequestAllocationResult, entry, "")
        except DocumentError:
            continue


def configs_of(
    entries: Sequence[Any], driver: str
) -> Iterator[tuple[int, DeviceAllocationConfiguration, OpaqueDeviceConfiguration]]:
    """The configurations of one driver among those of `status.allocation.devices.config`, each after its index.

    Raises:
        DocumentError: one of them does not decode; says where in the claim.
    """
    for index, entry in enumerate(entries):
        if _driver(_field(entry, "opaque")) == driver:
            config = _read(DeviceAllocationConfiguration, entry, config_path(index))
            if config.opaque is not None:
                yield index, config, config.opaque


def config_path(index: int) -> str:
    """Return the place of a configuration in the claim's allocation."""
    return f"{_PATH}.config[{index}]"


def class_index(entries: Sequence[Any], index: int) -> int:
    """Return which entry of its class a configuration is: one of as many before it as are for the same requests."""
    requests = _field(entries[index], "requests")
    return sum(
        _field(entry, "source") == "FromClass" and _field(entry, "requests") == requests for entry in entries[:index]
    )


def _driver(entry: Any) -> str:
    driver = _field(entry, "driver")
    return driver if isinstance(driver, str) else ""


def _field(entry: Any, name: str) -> Any:
    return entry.get(name) if isinstance(entry, Mapping) else getattr(entry, name, None)


def _read(kind: type[T], entry: Any, path: str) -> T:
    if isinstance(entry, kind):
        return entry
    try:
        return decode(kind, entry)
    except DocumentError as error:
        where = f"{path}.{error.path}" if error.path else path
        raise DocumentError(str(error).removeprefix(f"{error.path}: "), where) from error


# Finds the configurations that apply to an allocation result (KEP-4381, KEP-4816).  A configuration applies to a
# result if it names no request, the result's request (`<request>` or `<request>/<subrequest>`) or, for a result of a
# prioritized list, the part before the slash. Class entries come first, in whatever order the allocation lists them,
# then the claim's, each in list order; later ones override earlier ones. Those of other drivers are passed over
# unread.  Kubernetes 1.34 to 1.36 list a claim's configuration once for each request that it names. Equal entries
# count once: as later ones override earlier ones, the last of them is all that matters.

_NOT_KNOWN: Final = DeviceClaim()


class Config(msgspec.Struct, frozen=True):
    """One opaque configuration of this driver, with the place where it stands.

    Attributes:
        source: `FromClass` or `FromClaim`.
        parameters: a plain document as it came, or what `Plugin.parse_config` made of it.
        path: where its author wrote it, for messages: `spec.devices.config[0].opaque.parameters`, or of a class
            `DeviceClass fast: spec.config[0].opaque.parameters`; its place in the allocation where that is not known.
        repeated: whether an equal entry follows, so that this one does not count.
    """

    source: Literal["FromClass", "FromClaim"]
    parameters: Any
    path: str
    repeated: bool = False


def main_request(request: str) -> str:
    """The name that kubelet knows: `<request>` of `<request>/<subrequest>`."""
    return request.partition("/")[0]


def applies(requests: tuple[str, ...], request: str) -> bool:
    """Return whether a list of request names covers `request` (`<request>` or `<request>/<subrequest>`)."""
    return not requests or request in requests or main_request(request) in requests


def configs_for(
    result: DeviceRequestAllocationResult, configs: Sequence[Any], written: DeviceClaim = _NOT_KNOWN
) -> tuple[Config, ...]:
    """The configurations of the result's driver that apply to it, in order, parameters unread.

    `configs` is `status.allocation.devices.config`, `written` is `spec.devices`.

    Raises:
        DocumentError: a configuration of the result's driver does not decode.
    """
    applying = [each for each in configs_of(configs, result.driver) if applies(each[1].requests, result.request)]
    entries = [entry for _, entry, _ in applying]
    found = (
        Config(
            source=entry.source,
            parameters=opaque.parameters,
            path=f"{_path(index, entry, configs, written)}.opaque.parameters",
            repeated=entry in entries[number + 1 :],
        )
        for number, (index, entry, opaque) in enumerate(applying)
    )
    return tuple(sorted(found, key=lambda config: config.source != "FromClass"))


def _path(index: int, entry: DeviceAllocationConfiguration, configs: Sequence[Any], written: DeviceClaim) -> str:
    """Return where an entry of the allocation was written.

    kube-scheduler copies the claim's entries as they are, and those of a class in their order, with the names of the
    requests for that class (dynamic-resource-allocation, structured allocator).
    """
    if entry.source == "FromClaim":
        same = (number for number, each in enumerate(written.config) if _is_copied(each, entry))
        number = next(same, None)
        return f"spec.devices.config[{number}]" if number is not None else config_path(index)
    classes = {_class_of(name, written.requests) for name in entry.requests} - {""}
    if len(classes) != 1:
        return config_path(index)
    return f"DeviceClass {classes.pop()}: spec.config[{class_index(configs, index)}]"


def _is_copied(written: DeviceClaimConfiguration, entry: DeviceAllocationConfiguration) -> bool:
    return (written.requests, written.opaque) == (entry.requests, entry.opaque)


def _class_of(name: str, requests: tuple[DeviceRequest, ...]) -> str:
    """Return the class of `<request>` or `<request>/<subrequest>`; empty if there is no such request."""
    for request in requests:
        if request.exactly is not None and name == request.name:
            return request.exactly.device_class_name
        for alternative in request.first_available:
            if name == f"{request.name}/{alternative.name}":
                return alternative.device_class_name
    return ""


class AllocatedResult(msgspec.Struct, frozen=True):
    """One allocation result of this driver with the configurations that apply to it; later override earlier ones."""

    result: DeviceRequestAllocationResult
    configs: tuple[Config, ...] = ()


class AllocatedClaim(msgspec.Struct, frozen=True):
    """A claim as far as it concerns this driver: who it is and what was allocated, in the order of the allocation."""

    ref: ClaimRef
    results: tuple[AllocatedResult, ...]


class Grant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The devices, CPUs and edits that one allocation result was given.

    Attributes:
        request: `<request>` or `<request>/<subrequest>`, as in the result.
        pool: the result's pool.
        device: the result's device.
        share_id: the result's share, for a device that is allocated several times.
        admin: admin access: the device may be held by others, and this grant holds nothing.
        edits: what a container that names this request gets, beyond the claim's own edits.
        attributes: device metadata for the workload (KEP-5304), beside the attributes that are published.
        state: plug-in state that `configure` and `restore` need; plain JSON.
        cpus: the CPUs on which containers run that name this request alone, perhaps none, where the claim's
            requests are distinguished by `edits`; None where every container with the claim runs on all of it.
        held: the CPUs of this request that no other claim gets, where `cpus` is not None. Both are cpu-lists in JSON.
        with_pool: whether containers with this grant run on the shared pool besides, whatever that is at the moment.
        amount: how much the claim holds of a device that several claims share, in the driver's own unit; `Held.amount`
            adds it up by `Plugin.sources`. 0 where the driver counts nothing.
    """

    request: str
    pool: str
    device: str
    share_id: str | None = None
    admin: bool = False
    edits: ContainerEdits | None = None
    attributes: Mapping[str, DeviceAttribute] = {}
    state: Any = None
    cpus: CPUSet | None = None
    held: CPUSet = NO_CPUS
    with_pool: bool = False
    amount: int = 0

    def __post_init__(self) -> None:
        force_setattr(self, "attributes", attributes_of(self.attributes, self.device))
        # As in a record: what is left out is a default by its identity.
        if not self.held:
            force_setattr(self, "held", NO_CPUS)

    @classmethod
    def of(
        cls,
        result: DeviceRequestAllocationResult,
        *,
        edits: ContainerEdits | None = None,
        attributes: Mapping[str, PlainAttribute] | None = None,
        state: Any = None,
        amount: int = 0,
    ) -> Self:
        """The grant of a result, with what is particular to it."""
        return cls(
            request=result.request,
            pool=result.pool,
            device=result.device,
            share_id=result.share_id,
            admin=bool(result.admin_access),
            edits=edits,
            attributes=attributes_of(attributes or {}, result.device),
            state=state,
            amount=amount,
        )


class ClaimGrant(msgspec.Struct, frozen=True):
    """The grants of a claim.

    Attributes:
        grants: one for each result, in the order of the results.
        edits: what every container with the claim gets, whichever request it names.
        cpus: the CPUs on which the claim's containers run (CPU drivers only).
        held: the CPUs that no other claim gets; a superset of `cpus`.
    """

    grants: tuple[Grant, ...]
    edits: ContainerEdits | None = None
    cpus: CPUSet = msgspec.field(default_factory=CPUSet)
    held: CPUSet = msgspec.field(default_factory=CPUSet)
