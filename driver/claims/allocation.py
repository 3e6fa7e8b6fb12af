"""The entries of an allocation, each read for its driver alone.

Every result and every configuration belongs to one driver, and what another driver's says is not ours to judge: entries
stay as they came (a plain document, or the value that the allocator made) until their own driver asks for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from dranode.api.documents import decode
from dranode.api.errors import DocumentError
from dranode.api.resource import (
    AllocationResult,
    DeviceAllocationConfiguration,
    DeviceRequestAllocationResult,
    OpaqueDeviceConfiguration,
)

T = TypeVar("T")

_PATH = "status.allocation.devices"


def drivers_of(allocation: AllocationResult | None) -> frozenset[str]:
    """The drivers of which an allocation holds devices."""
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
