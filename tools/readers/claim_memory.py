"""Reads which memory the containers of a claim get, for `dranode explain`."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from dranode.api.errors import DranodeError
from dranode.driver.claims.plugin import Plugin
from dranode.driver.claims.record import Record
from dranode.driver.machine.cgroups import Cgroups
from dranode.driver.machine.processes import pods_seen
from dranode.driver.machine.root import Root
from dranode.driver.pinning.containers import Effective, difference, words
from dranode.driver.pinning.snapshot import HeldClaim, Pins
from dranode.tools.diagnosis.claim import ContainerMemory
from dranode.tools.diagnosis.outside import (
    RecordedClaim,
    RecordedParts,
    claims_in,
    container_has_memory,
    expected_memory,
)
from dranode.tools.diagnosis.placement import pod_uids


def claim_memory(
    files: Root, plugin: Plugin, record: Record, records: Iterable[Record]
) -> tuple[ContainerMemory, ...] | None:
    """Return the memory of the claim's containers that run; None if the claim does not say which they get.

    Args:
        files: the node's.
        plugin: the claim's driver.
        record: the claim's.
        records: all that the driver has on record, since a container may have several claims.

    Raises:
        DranodeError: the record does not say it, or the cgroups or the processes cannot be looked into.
    """
    if not isinstance(plugin, Pins):
        return None
    if not expected_memory([plugin.pinned(record)]):
        return None
    claims = [RecordedClaim.of(plugin.driver, each, _held(plugin, each)) for each in records]
    cgroups = Cgroups(files)
    found = []
    for each in pods_seen(files, pod_uids([record])).containers:
        theirs = claims_in(claims, each.env)
        if any(claim.record.uid == record.uid for claim, _ in theirs):
            expected = expected_memory(held for _, held in theirs)
            actual = cgroups.memory(each.cgroup, expected)
            found.append(_judged(each.id[:12] or each.folder, theirs, expected, actual))
    return tuple(found)


def _judged(container: str, theirs: RecordedParts, expected: Effective, actual: Effective) -> ContainerMemory:
    # A claim of another driver may keep it to some of these nodes.
    if expected.nodes is not None and actual.nodes is not None and actual.nodes <= expected.nodes:
        expected = replace(expected, nodes=actual.nodes)
    right = container_has_memory(theirs, expected, actual)
    if right is not False:
        return ContainerMemory(container, right, words(actual))
    limits = dict(actual.hugepages)
    short = tuple((size, amount) for size, amount in expected.hugepages if limits.get(size, amount) < amount)
    return ContainerMemory(container, right, difference(*replace(expected, hugepages=short).beside(actual)))


def _held(pins: Pins, record: Record) -> HeldClaim | None:
    """Return what a claim's containers are held to; None where its record, which may be another's, does not say."""
    try:
        return pins.pinned(record)
    except DranodeError:
        return None
