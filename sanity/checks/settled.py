"""The content of a driver's slices once it has come to rest, and whether it comes back after a disturbance."""

from __future__ import annotations

import copy
from typing import Any, Final

from dranode.sanity.bench import Bench
from dranode.sanity.breach import expect
from dranode.sanity.checks.slices import published_slices
from dranode.sanity.kinds import KubeDocument

CONTROLLER: Final = "k8s.io/dynamic-resource-allocation/resourceslice"
"""What does the same for drivers in Go, and is the source of most rules."""
SLICES: Final = "resourceslices"


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
    bench.eventually(lambda: False, seconds)
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
        f"{bench.patience:g} s after {what}, {len(bench.slices())} slices are there, and not as before: "
        f"{_difference(before, now)}",
        "watch slices, and compare what is there with what should be",
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
    return "; ".join(said) or "the devices are those of before, counters or the division into slices are not"


def _devices(content: list[Any]) -> dict[str, KubeDocument]:
    return {f"{pool}/{device['name']}": device for devices, _, pool in content for device in devices}


def _differing(old: KubeDocument, new: KubeDocument) -> list[str]:
    return sorted(field for field in {*old, *new} if old.get(field) != new.get(field))
