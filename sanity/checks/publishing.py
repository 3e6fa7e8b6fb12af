"""ResourceSlices: how a driver brings the API server to what it has, whatever others do to slices."""

from __future__ import annotations

import copy
from typing import Any, Final

from dranode.api.documents import API_VERSION
from dranode.api.errors import number_of
from dranode.sanity.bench import OTHER_DRIVER, Bench
from dranode.sanity.breach import Unable, expect
from dranode.sanity.check import must, should
from dranode.sanity.checks.slices import published_slices
from dranode.sanity.kinds import KubeDocument

CONTROLLER: Final = "k8s.io/dynamic-resource-allocation/resourceslice"
"""What does the same for drivers in Go, and is the source of most rules."""
SLICES: Final = "resourceslices"
_GATES: Final = (
    "DRAConsumableCapacity",
    "DRADeviceTaints",
    "DRADeviceBindingConditions",
    "DRANodeAllocatableResources",
)


@must(
    "slices-deleted",
    f"kubelet, pkg/kubelet/cm/dra: wiping of slices; {CONTROLLER}: they are published again within its sync delay",
)
def deleted_slices_come_back(bench: Bench) -> None:
    """Deleted slices are published again: kubelet deletes all slices of its node when it starts.

    All of the driver's at once.
    """
    before = settled_content(bench)
    delete_slices(bench)
    expect_back(bench, before, "all slices were deleted")


@should("slices-edited", f"{CONTROLLER}: every event of a slice leads to a comparison")
def edited_slices_are_put_right(bench: Bench) -> None:
    """A slice that somebody else has changed is restored.

    The last device of a slice is taken out.
    """
    before = settled_content(bench)
    document = next((each for each in bench.slices() if each["spec"].get("devices")), None)
    if document is None:
        raise Unable("the driver publishes no device")
    take_a_device_out(bench, document)
    expect_back(bench, before, "a device was taken out of a slice")


@should("slices-stray", f"{CONTROLLER}: pools that are not desired, and slices beyond the count, are deleted")
def stray_slices_are_removed(bench: Bench) -> None:
    """A stray slice of the driver on its node is removed, or superseded by a newer generation.

    A second slice of the driver's own pool, as an older version of it may have left one.
    """
    before = settled_content(bench)
    document = bench.slices()[0]
    stray = copy.deepcopy(document)
    stray["metadata"] = {"ownerReferences": document["metadata"].get("ownerReferences", [])}
    stray["spec"] = {**stray["spec"], "devices": [{"name": "stray-of-sanity"}]}
    stray["spec"].pop("sharedCounters", None)
    bench.add_slice(stray)
    expect_back(bench, before, "a slice too many was created")


@must("slices-foreign", f"{CONTROLLER}: it looks at slices of its own driver and node alone")
def foreign_slices_are_left_alone(bench: Bench) -> None:
    """Slices of other drivers and of other nodes are left alone.

    One of each, for a while in which the driver has reason to write.
    """
    settled_content(bench)
    objects = bench.server().objects
    own = bench.slices()
    added = set()
    for driver, node in ((OTHER_DRIVER, bench.places.node), (bench.driver, "another-node")):
        pool = {"name": f"pool-on-{node}", "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": []}
        added.add(bench.add_slice({"apiVersion": API_VERSION, "spec": spec}))
    objects.remove(SLICES, own[0]["metadata"]["name"])
    bench.eventually(lambda: len(bench.slices()) > len(own))
    bench.wait(bench.quiet)
    gone = added - {each["metadata"]["name"] for each in objects.all(SLICES)}
    expect(not gone, f"{len(gone)} of {len(added)} slices are gone", "select slices by spec.driver and spec.nodeName")


@must("slices-quiet", f"{CONTROLLER}: a slice is written if it differs from what is desired")
def nothing_is_written_needlessly(bench: Bench) -> None:
    """Nothing is written while nothing changes.

    A while without events.
    """
    settled_content(bench)
    count = writes_within(bench, bench.quiet)
    expect(count == 0, f"{number_of(count, 'write')} of slices within {bench.quiet:g} s", "compare before writing")


@should(
    "slices-quiet-when-preparing",
    "KEP-4381, structured parameters: what is in use follows from claims, not from slices",
)
def preparing_writes_no_slices(bench: Bench) -> None:
    """Preparing and unpreparing claims does not change the slices: the scheduler keeps track of allocations.

    A claim comes and goes.
    """
    before = settled_content(bench)
    count = len(bench.server().writes(SLICES))
    claim = bench.claim(bench.devices())
    bench.prepared(claim)
    bench.unprepared(claim)
    bench.wait(min(bench.quiet, 1.0))
    written = len(bench.server().writes(SLICES)) - count
    expect(
        written == 0 and content_of(bench) == before,
        f"{written} writes of slices",
        "publish what exists, not what is free",
    )


def _goes_on_writing(bench: Bench) -> str:
    """Return how much is written at last; empty as soon as nothing is: a slow driver may be about to end."""
    written, seconds = 0, bench.quiet
    for seconds in (bench.quiet, 2 * bench.quiet, 4 * bench.quiet):
        written = writes_within(bench, seconds)
        if not written:
            return ""
    return f"{written} writes within {seconds:g} s"


@must("slices-dropped-fields", f"{CONTROLLER}: DroppedFieldsError; the stored slice is taken for what is desired")
def dropped_fields_are_accepted(bench: Bench) -> None:
    """Slices are not written over and over to a server that drops the fields of disabled feature gates.

    All slices are deleted while several gates are off.
    """
    devices = [device for document in published_slices(bench) for device in document["spec"].get("devices") or ()]
    if not any(device.get(field) for device in devices for field in ("taints", "allowMultipleAllocations",
               "bindingConditions", "nodeAllocatableResources")):  # fmt: skip
        raise Unable("the driver publishes nothing that a feature gate drops")
    objects = bench.server().objects
    objects.gates_off.update(_GATES)
    count = len(bench.slices())
    delete_slices(bench)
    bench.eventually(lambda: len(bench.slices()) >= count)
    bench.wait(min(bench.quiet, 1.0))
    written = _goes_on_writing(bench)
    objects.gates_off.clear()
    try:
        expect(not written, written, "compare with what the server stored")
    finally:
        delete_slices(bench)
        bench.eventually(lambda: len(bench.slices()) >= count)


def content_of(bench: Bench) -> list[Any]:
    """Return what a scheduler reads of the driver's slices, without what every write changes."""
    slices = bench.slices()
    return sorted(
        (
            [_timeless(document["spec"].get("devices") or []), document["spec"].get("sharedCounters"),
             document["spec"]["pool"]["name"]]
            for document in slices
            if document["spec"]["pool"].get("generation", 0) == _newest(slices, document)
        ),
        key=repr,
    )  # fmt: skip


def _newest(slices: list[KubeDocument], document: KubeDocument) -> int:
    pool = document["spec"]["pool"]["name"]
    return max(
        int(each["spec"]["pool"].get("generation", 0)) for each in slices if each["spec"]["pool"]["name"] == pool
    )


def _timeless(devices: list[KubeDocument]) -> list[KubeDocument]:
    copied = copy.deepcopy(devices)
    for device in copied:
        for taint in device.get("taints") or ():
            taint.pop("timeAdded", None)
    return copied


def settled_content(bench: Bench) -> list[Any]:
    """The content once nothing has been written for a moment, or at last when patience ends."""
    published_slices(bench)

    bench.eventually(lambda: not writes_within(bench, min(bench.quiet, 1.0)))
    return content_of(bench)


def delete_slices(bench: Bench) -> None:
    """Delete all of the driver's slices."""
    for document in bench.slices():
        bench.server().objects.remove(SLICES, document["metadata"]["name"])


def take_a_device_out(bench: Bench, document: KubeDocument) -> None:
    """Take the last device out of a slice that the server has."""
    bench.server().objects.edit(SLICES, document["metadata"]["name"], lambda edited: edited["spec"]["devices"].pop())


def writes_within(bench: Bench, seconds: float) -> int:
    """Return how many writes of slices come within a while."""
    before = len(bench.server().writes(SLICES))
    bench.wait(seconds)
    return len(bench.server().writes(SLICES)) - before


def expect_back(bench: Bench, before: list[Any], what: str) -> None:
    """See that the content is as it was before something happened.

    Args:
        bench: the bench.
        before: the content, by `settled_content`.
        what: what happened, for the sentence.

    Raises:
        Breach: it is not, though patience has ended.
    """
    bench.eventually(lambda: content_of(bench) == before)
    now = content_of(bench)
    expect(
        now == before,
        f"{bench.patience:g} s after {what}, {len(bench.slices())} slices are published, but not as before: "
        f"{_difference(before, now)}",
        "watch slices, and compare what is published with what should be",
    )


def _difference(before: list[Any], now: list[Any]) -> str:
    """Name the devices that are missing, new and not what they were, the first of each."""
    old, new = _devices(before), _devices(now)
    changed = [
        f"{name} ({', '.join(fields)})"
        for name in sorted(old.keys() & new.keys())
        if (fields := _differing(old[name], new[name]))
    ]
    kinds = {"missing": sorted(old.keys() - new.keys()), "new": sorted(new.keys() - old.keys()), "changed": changed}
    said = [f"{len(names)} {kind}, the first is {names[0]}" for kind, names in kinds.items() if names]
    return "; ".join(said) or "the devices are the same, but counters or the division into slices are not"


def _devices(content: list[Any]) -> dict[str, KubeDocument]:
    return {f"{pool}/{device['name']}": device for devices, _, pool in content for device in devices}


def _differing(old: KubeDocument, new: KubeDocument) -> list[str]:
    return sorted(field for field in {*old, *new} if old.get(field) != new.get(field))
