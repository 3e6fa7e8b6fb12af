"""ResourceSlices: what a driver publishes, and how it restores its slices whatever others do to them."""

import copy
import re
import time
from typing import Any, Final

from dranode.api.documents import API_VERSION
from dranode.api.errors import number_of
from dranode.sanity.bench import OTHER_DRIVER, Bench
from dranode.sanity.breach import Unable, expect, listed, shown
from dranode.sanity.check import must, should
from dranode.sanity.claims import current_pools
from dranode.sanity.kinds import KubeDocument
from dranode.sanity.slice_rules import pool_problems, slice_refusals

_TYPES: Final = "k8s.io/api/resource/v1/types.go"
_PCIE_ROOT: Final = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_BUS_ID: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
# A deleted slice may take 30 s to come back, and twice that after a server was away.
_RESYNC: Final = 65.0
# Bad Request, Unsupported Media Type, Unprocessable Entity.
_REFUSED: Final = (400, 415, 422)
_STANDARD: Final = {
    "resource.kubernetes.io/pcieRoot": ("string", _PCIE_ROOT),
    "resource.kubernetes.io/pciBusID": ("string", _BUS_ID),
}


def published_slices(bench: Bench) -> list[KubeDocument]:
    """The driver's slices, once a pool of them is complete.

    Raises:
        Unable: there is no API server, or nothing is published.
    """
    bench.offers()
    return bench.slices()


def _any(bench: Bench) -> list[KubeDocument]:
    """The driver's slices, as soon as there is one, whatever is wrong with it.

    Raises:
        Unable: there is no API server, or nothing is published.
    """
    slices = bench.eventually(bench.slices)
    if not slices:
        raise Unable(f"the driver published no slice within {bench.patience:g} s")
    return slices


def _devices(bench: Bench) -> list[KubeDocument]:
    return [device for document in published_slices(bench) for device in document["spec"].get("devices") or ()]


@must("slices-taken", f"{_TYPES}, ResourceSlice; validation of resource.k8s.io/v1")
def slices_are_taken(bench: Bench) -> None:
    """The API server accepts every slice: names, limits and values are valid.

    Return what the server refused so far, and what it has.
    """
    bench.eventually(lambda: bench.server().writes())
    # A driver repeats a write that was refused.
    refused = dict.fromkeys(seen.refusal for seen in bench.server().writes() if seen.status in _REFUSED)
    problems = list(refused) or [problem for document in _any(bench) for problem in slice_refusals(document)]
    expect(not problems, "; ".join(problems[:5]), "keep to the limits of the API; split pools over several slices")


@must("slices-driver", f"{_TYPES}, ResourceSliceSpec.driver; kubelet finds the plugin of an allocation by it")
def slices_name_the_driver(bench: Bench) -> None:
    """The slices name the driver by the name it registers with.

    Looks at every slice that was written since the driver started.
    """
    _any(bench)
    written = {seen.body["spec"]["driver"] for seen in bench.server().writes()
               if isinstance(seen.body, dict) and "spec" in seen.body}  # fmt: skip
    expect(written == {bench.driver}, f"slices name {listed(written)}", f"publish as {bench.driver}")


@must("slices-node", f"{_TYPES}, ResourceSliceSpec.nodeName: kubelet deletes a node's slices by it")
def slices_name_the_node(bench: Bench) -> None:
    """Slices for the devices of a node have the node's name in spec.nodeName, or select nodes.

    Compares it with the node's name that the driver was given.
    """
    for document in _any(bench):
        name = document["spec"].get("nodeName")
        node = bench.places.node
        expect(
            name in (None, node),
            f'spec.nodeName is "{name}", but the node is "{node}"',
            "use the node's name unchanged",
        )


@should("slices-owner", "KEP-4381; resourceslice controller: one owner reference, the Node, controller=true")
def slices_are_owned(bench: Bench) -> None:
    """Slices of a node are owned by its Node object, so that they are deleted with it.

    Expects one owner reference, with the UID of the node.
    """
    for document in _any(bench):
        if document["spec"].get("nodeName"):
            owners = document["metadata"].get("ownerReferences") or []
            nodes = [owner for owner in owners if (owner.get("kind"), owner.get("name")) == ("Node", bench.places.node)]
            uid = f"uid-of-{bench.places.node}"
            right = any(owner.get("uid") == uid for owner in nodes)
            expect(right, f"the owners are {shown(owners)}", "set the Node with its UID as owner")


@must("slices-complete", f"{_TYPES}, ResourcePool.resourceSliceCount: a pool that is incomplete is not allocated from")
def pools_are_complete(bench: Bench) -> None:
    """A pool has all slices of its newest generation, and everything that they refer to.

    Collects each pool as the scheduler does.
    """
    _any(bench)

    def problems() -> list[str]:
        pools = current_pools(bench.slices()).values()
        return [problem for documents in pools for problem in pool_problems(documents)]

    bench.eventually(lambda: not problems(), min(bench.patience, 10))
    seen = problems()
    expect(not seen, "; ".join(seen), "write the whole pool, with its slice count, in one generation")


@must("slices-generation", f"{_TYPES}, ResourcePool.generation: older ones are to be ignored and removed")
def generations_agree(bench: Bench) -> None:
    """Once they have been written, all slices of a pool have the same generation.

    No slice of an older generation may remain.
    """
    _any(bench)

    def generations() -> dict[str, set[int]]:
        pools: dict[str, set[int]] = {}
        for document in bench.slices():
            pool = document["spec"]["pool"]
            pools.setdefault(pool["name"], set()).add(pool.get("generation", 0))
        return {name: numbers for name, numbers in pools.items() if len(numbers) > 1}

    bench.eventually(lambda: not generations(), min(bench.patience, 10))
    seen = generations()
    expect(not seen, f"pools have the generations {shown(seen)}", "delete or update slices of older generations")


@should("slices-pool-node", f"{_TYPES}, ResourcePool.name: unique for the driver in the cluster; often the node's name")
def pool_names_differ_by_node(bench: Bench) -> None:
    """Pools of node-local devices have names that tell nodes apart.

    The node's name has to be a part of the pool's name.
    """
    for document in _any(bench):
        name, node = document["spec"]["pool"]["name"], bench.places.node
        if document["spec"].get("nodeName"):
            expect(node in name, f'the pool is called "{name}" on node "{node}"', "make the node's name a part of it")


@must(
    "slices-standard-attributes",
    "k8s.io/dynamic-resource-allocation/deviceattribute: pcieRoot, pciBusID; KEP-6072: numaNode",
)
def standard_attributes_are_right(bench: Bench) -> None:
    """Attributes of resource.kubernetes.io have the form that Kubernetes gives them.

    Looks at all of them that the driver publishes.
    """
    for device in _devices(bench):
        for name, attribute in (device.get("attributes") or {}).items():
            problem = _standard_problem(name, attribute)
            expect(
                not problem,
                f"device {device['name']}: {name} is {shown(attribute)}, {problem}",
                "follow the standard's form",
            )


def _standard_problem(name: str, attribute: dict[str, Any]) -> str:
    if name == "resource.kubernetes.io/numaNode":
        return "" if set(attribute) <= {"int", "ints"} else "not an int or ints"
    form, pattern = _STANDARD.get(name, ("", None))
    if pattern is None:
        return ""
    return "" if pattern.fullmatch(str(attribute.get(form, ""))) else f"not {pattern.pattern}"


@should(
    "slices-attributes-stable",
    "KEP-4381: slices are for the scheduler; each write costs every scheduler and the API server",
)
def devices_do_not_fluctuate(bench: Bench) -> None:
    """Published devices do not change by themselves: no times, no counters, no temperatures.

    Compares the devices after a while.
    """
    before = _devices(bench)
    bench.wait(bench.quiet)
    changed = [device["name"] for device, again in zip(before, _devices(bench), strict=False) if device != again]
    expect(
        not changed,
        f"devices {listed(changed[:5])} changed within {bench.quiet:g} s",
        "publish only what describes the device",
    )


@must("slices-taints", f"KEP-5055; {_TYPES}, DeviceTaint.timeAdded")
def taints_keep_their_time(bench: Bench) -> None:
    """Taints are published with a stable timeAdded: the server sets it, and it stays.

    Compares the times of taints after a while.
    """
    if not any(device.get("taints") for device in _devices(bench)):
        raise Unable("the driver publishes no taint")

    def times() -> list[Any]:
        return [(device["name"], taint["key"], taint.get("timeAdded"))
                for device in _devices(bench) for taint in device.get("taints") or ()]  # fmt: skip

    before = times()
    bench.wait(bench.quiet)
    expect(
        times() == before,
        f"the taints are {shown(times())}, but were {shown(before)}",
        "keep timeAdded of a taint that stays",
    )


# Publishing: the driver brings the slices in the API server to what it has, whatever others change.


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

    Deletes all slices of the driver at once.
    """
    before = settled_content(bench)
    delete_slices(bench)
    expect_back(bench, before, "all slices were deleted")


@should("slices-edited", f"{CONTROLLER}: every event of a slice leads to a comparison")
def edited_slices_are_put_right(bench: Bench) -> None:
    """A slice that somebody else has changed is restored.

    Removes the last device of a slice.
    """
    before = settled_content(bench)
    document = next((slice_ for slice_ in bench.slices() if slice_["spec"].get("devices")), None)
    if document is None:
        raise Unable("the driver publishes no device")
    take_a_device_out(bench, document)
    expect_back(bench, before, "a device was taken out of a slice")


@should("slices-stray", f"{CONTROLLER}: pools that are not desired, and slices beyond the count, are deleted")
def stray_slices_are_removed(bench: Bench) -> None:
    """A stray slice of the driver on its node is removed, or superseded by a newer generation.

    Adds a second slice to the driver's own pool, as an older version of the driver may have left it.
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

    Adds one of each, deletes a slice of the driver's own, so that the driver writes, and restarts the driver.
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
    bench.spoiled |= not bench.awaited("slices restored", lambda: len(bench.slices()) > len(own), _RESYNC)
    bench.wait(bench.quiet)
    if bench.process is not None:
        bench.restart()
        bench.wait(bench.quiet)
    gone = added - {each["metadata"]["name"] for each in objects.all(SLICES)}
    expect(not gone, f"{len(gone)} of {len(added)} slices are gone", "select slices by spec.driver and spec.nodeName")


@must("slices-quiet", f"{CONTROLLER}: a slice is written if it differs from what is desired")
def nothing_is_written_needlessly(bench: Bench) -> None:
    """Nothing is written while nothing changes.

    Counts writes during a time without events.
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

    Prepares and unprepares a claim.
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
        f"{number_of(written, 'write')} of slices",
        "publish what exists, not what is free",
    )


def _goes_on_writing(bench: Bench) -> str:
    """Return how much is written at last; empty as soon as nothing is: a slow driver may be about to end."""
    written, seconds = 0, bench.quiet
    for seconds in (bench.quiet, 2 * bench.quiet, 4 * bench.quiet):
        written = writes_within(bench, seconds)
        if not written:
            return ""
    return f"{number_of(written, 'write')} within {seconds:g} s"


@must("slices-dropped-fields", f"{CONTROLLER}: DroppedFieldsError; the stored slice is taken for what is desired")
def dropped_fields_are_accepted(bench: Bench) -> None:
    """Slices are not written over and over to a server that drops the fields of disabled feature gates.

    Deletes all slices while several gates are off.
    """
    devices = [device for document in published_slices(bench) for device in document["spec"].get("devices") or ()]
    if not any(device.get(field) for device in devices for field in ("taints", "allowMultipleAllocations",
               "bindingConditions", "nodeAllocatableResources")):  # fmt: skip
        raise Unable("the driver publishes nothing that a feature gate drops")
    objects = bench.server().objects
    objects.gates_off.update(_GATES)
    # A server's gates change only when it starts again; a driver may ask for them seldom.
    bench.spoiled = True
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
        int(slice_["spec"]["pool"].get("generation", 0)) for slice_ in slices if slice_["spec"]["pool"]["name"] == pool
    )


def _timeless(devices: list[KubeDocument]) -> list[KubeDocument]:
    copied = sorted(copy.deepcopy(devices), key=lambda device: str(device.get("name")))
    for device in copied:
        for taint in device.get("taints") or ():
            taint.pop("timeAdded", None)
    return copied


def settled_content(bench: Bench) -> list[Any]:
    """The content once nothing has been written for a moment, or at last when patience ends."""
    published_slices(bench)
    bench.awaited("quiet slices", lambda: not writes_within(bench, min(bench.quiet, 1.0)))
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
    began = time.monotonic()
    bench.awaited("slices restored", lambda: content_of(bench) == before, _RESYNC)
    now = content_of(bench)
    bench.spoiled |= now != before
    expect(
        now == before,
        f"{time.monotonic() - began:.0f} s after {what}, {number_of(len(bench.slices()), 'slice')} in all, "
        f"but not as before: {_difference(before, now)}",
        "watch slices, and compare what is published with what should be",
    )


def _difference(before: list[Any], now: list[Any]) -> str:
    """Name the devices that are missing, new and not what they were, the first of each."""
    old, new = _devices_by_name(before), _devices_by_name(now)
    changed = [
        f"{name} ({', '.join(fields)})"
        for name in sorted(old.keys() & new.keys())
        if (fields := _differing(old[name], new[name]))
    ]
    kinds = {"missing": sorted(old.keys() - new.keys()), "new": sorted(new.keys() - old.keys()), "changed": changed}
    said = [f"{len(names)} {kind}, the first is {names[0]}" for kind, names in kinds.items() if names]
    return "; ".join(said) or "the devices are the same, but counters or the division into slices are not"


def _devices_by_name(content: list[Any]) -> dict[str, KubeDocument]:
    return {f"{pool}/{device['name']}": device for devices, _, pool in content for device in devices}


def _differing(old: KubeDocument, new: KubeDocument) -> list[str]:
    return sorted(field for field in {*old, *new} if old.get(field) != new.get(field))
