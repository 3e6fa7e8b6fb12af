"""What a claim's allocation says for one driver, and what the driver gave the claim."""

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

# Each result and each configuration belongs to one driver. Entries of other drivers are not validated, because a driver
# must not fail for what another one may read. An entry is a plain document, or a value that the allocator made.

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
    """Return the results of one driver, in order.

    Raises:
        DocumentError: a result cannot be decoded; the message has its path in the claim.
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
    """Yield the results of every driver, without those that cannot be decoded; for callers that only show them."""
    for entry in allocation.devices.results if allocation is not None else ():
        try:
            yield _read(DeviceRequestAllocationResult, entry, "")
        except DocumentError:
            continue


def configs_of(
    entries: Sequence[Any], driver: str
) -> Iterator[tuple[int, DeviceAllocationConfiguration, OpaqueDeviceConfiguration]]:
    """Yield the configurations of one driver in `status.allocation.devices.config`, each with its index.

    Raises:
        DocumentError: a configuration cannot be decoded; the message has its path in the claim.
    """
    for index, entry in enumerate(entries):
        if _driver(_field(entry, "opaque")) == driver:
            config = _read(DeviceAllocationConfiguration, entry, config_path(index))
            if config.opaque is not None:
                yield index, config, config.opaque


def config_path(index: int) -> str:
    """Return the path of a configuration in the claim's allocation."""
    return f"{_PATH}.config[{index}]"


def class_index(entries: Sequence[Any], index: int) -> int:
    """Return the index of a configuration in its DeviceClass."""
    # kube-scheduler copies the entries of a class in their order, all for the same requests.
    requests = _field(entries[index], "requests")
    return sum(
        _field(entry, "source") == "FromClass" and _field(entry, "requests") == requests for entry in entries[:index]
    )


def _driver(entry: Any) -> str:
    # An entry that was not decoded may have any value here.
    driver = _field(entry, "driver")
    return driver if isinstance(driver, str) else ""


def _field(entry: Any, name: str) -> Any:
    return entry.get(name) if isinstance(entry, Mapping) else getattr(entry, name, None)


def _read(kind: type[T], entry: Any, path: str) -> T:
    return entry if isinstance(entry, kind) else decode(kind, entry, path)


# The configurations that apply to an allocation result (KEP-4381, KEP-4816). A configuration applies to a result if it
# names no request, the result's request (`<request>` or `<request>/<subrequest>`) or, for a result of a prioritized
# list, the part before the slash. The entries of classes come first, then the claim's, each in the order of the
# allocation; later ones override earlier ones. Kubernetes 1.34 to 1.36 list a claim's configuration once for each
# request that it names. Of equal entries only the last counts, because it overrides the others.

_NOT_KNOWN: Final = DeviceClaim()


class Config(msgspec.Struct, frozen=True):
    """One opaque configuration of this driver, with its path.

    Attributes:
        source: `FromClass` or `FromClaim`.
        parameters: a plain document, or what `Plugin.parse_config` returned for it.
        path: where its author wrote it, for messages: `spec.devices.config[0].opaque.parameters`, or for a class
            `DeviceClass fast: spec.config[0].opaque.parameters`; its path in the allocation if that is not known.
        repeated: whether an equal entry follows, so that this one is ignored.
    """

    source: Literal["FromClass", "FromClaim"]
    parameters: Any
    path: str
    repeated: bool = False


def main_request(request: str) -> str:
    """Return the name that kubelet and containers use: `<request>` of `<request>/<subrequest>`."""
    return request.partition("/")[0]


def applies(requests: tuple[str, ...], request: str) -> bool:
    """Return whether a configuration for these requests applies to `request` (`<request>[/<subrequest>]`)."""
    return not requests or request in requests or main_request(request) in requests


def configs_for(
    result: DeviceRequestAllocationResult, configs: Sequence[Any], written: DeviceClaim = _NOT_KNOWN
) -> tuple[Config, ...]:
    """Return the configurations of the result's driver that apply to it, in order; their parameters are not read.

    `configs` is `status.allocation.devices.config`, `written` is `spec.devices`.

    Raises:
        DocumentError: a configuration of the result's driver cannot be decoded.
    """
    applying = [
        (index, entry, opaque)
        for index, entry, opaque in configs_of(configs, result.driver)
        if applies(entry.requests, result.request)
    ]
    entries = [entry for _, entry, _ in applying]
    in_allocation = (
        Config(
            source=entry.source,
            parameters=opaque.parameters,
            path=f"{_written_at(index, entry, configs, written)}.opaque.parameters",
            repeated=entry in entries[number + 1 :],
        )
        for number, (index, entry, opaque) in enumerate(applying)
    )
    # The sort is stable, so entries of one source stay in the order of the allocation.
    return tuple(sorted(in_allocation, key=lambda config: config.source != "FromClass"))


def _written_at(index: int, entry: DeviceAllocationConfiguration, configs: Sequence[Any], written: DeviceClaim) -> str:
    """Return where an entry of the allocation was written.

    kube-scheduler copies the claim's entries as they are, and those of a class in their order, with the names of the
    requests for that class (dynamic-resource-allocation, structured allocator).
    """
    if entry.source == "FromClaim":
        # Compared by content, because the entries of classes come first and shift the indexes.
        copied = (number for number, config in enumerate(written.config) if _is_copied(config, entry))
        number = next(copied, None)
        return f"spec.devices.config[{number}]" if number is not None else config_path(index)
    classes = {_class_of(name, written.requests) for name in entry.requests} - {""}
    # Without the claim's spec no class is known, and several mean that another allocator wrote the entry. Then only its
    # path in the allocation is certain.
    if len(classes) != 1:
        return config_path(index)
    return f"DeviceClass {classes.pop()}: spec.config[{class_index(configs, index)}]"


def _is_copied(written: DeviceClaimConfiguration, entry: DeviceAllocationConfiguration) -> bool:
    return (written.requests, written.opaque) == (entry.requests, entry.opaque)


def _class_of(name: str, requests: tuple[DeviceRequest, ...]) -> str:
    """Return the class of `<request>` or `<request>/<subrequest>`; empty if there is no such request."""
    for request in requests:
        if name in request.options:
            return request.options[name].device_class_name
    return ""


class AllocatedResult(msgspec.Struct, frozen=True):
    """An allocation result of this driver with the configurations for it; later ones override earlier ones."""

    result: DeviceRequestAllocationResult
    configs: tuple[Config, ...] = ()


class AllocatedClaim(msgspec.Struct, frozen=True):
    """The part of a claim that is this driver's: its identity and its results, in the order of the allocation."""

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
        edits: what a container that names this request gets, in addition to the claim's own edits.
        attributes: device metadata for the workload (KEP-5304), in addition to the published attributes.
        state: what `configure` and `restore` need; plain JSON.
        cpus: the CPUs of containers that name only this request, perhaps none, if the `edits` of the claim's requests
            differ; None if every container with the claim runs on all of its CPUs.
        held: the CPUs of this request that no other claim gets, if `cpus` is not None. Both are cpu-lists in JSON.
        with_pool: whether containers with this grant also run on the shared pool, which changes over time.
        amount: how much the claim holds of a device that several claims share, in the driver's own unit; `Held.amount`
            adds it up by `Plugin.sources`. 0 if the driver does not count amounts.
    """

    request: str
    pool: str
    device: str
    share_id: str | None = None
    admin: bool = False
    edits: ContainerEdits | None = None
    # msgspec makes a new dict for each grant, so that the default is not shared.
    attributes: Mapping[str, DeviceAttribute] = {}
    state: Any = None
    cpus: CPUSet | None = None
    held: CPUSet = NO_CPUS
    with_pool: bool = False
    amount: int = 0

    def __post_init__(self) -> None:
        force_setattr(self, "attributes", attributes_of(self.attributes, self.device))
        # As in `Record`: msgspec omits a field only if it is the default object itself.
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
        """Return the grant of a result."""
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
        edits: what every container with the claim gets, independent of the request that it names.
        cpus: the CPUs on which the claim's containers run (CPU drivers only).
        held: the CPUs that no other claim gets; a superset of `cpus`.
    """

    grants: tuple[Grant, ...]
    edits: ContainerEdits | None = None
    cpus: CPUSet = msgspec.field(default_factory=CPUSet)
    held: CPUSet = msgspec.field(default_factory=CPUSet)
