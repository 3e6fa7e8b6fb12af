"""ResourceSlices: what a driver publishes."""

from __future__ import annotations

import re
from typing import Any, Final

from dranode.sanity.bench import Bench
from dranode.sanity.breach import Unable, expect
from dranode.sanity.check import must, should
from dranode.sanity.claims import current_pools
from dranode.sanity.kinds import KubeDocument, stored
from dranode.sanity.slice_rules import pool_problems, slice_refusals

_TYPES: Final = "k8s.io/api/resource/v1/types.go"
_PCIE_ROOT: Final = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_BUS_ID: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
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
    refused = [
        problem
        for seen in bench.server().writes()
        if seen.status == 422 and isinstance(seen.body, dict)  # noqa: PLR2004 - Unprocessable Entity
        for problem in slice_refusals(stored(seen.body))
    ]
    problems = refused or [problem for document in _any(bench) for problem in slice_refusals(document)]
    expect(not problems, "; ".join(problems[:5]), "keep to the limits of the API; split pools over several slices")


@must("slices-driver", f"{_TYPES}, ResourceSliceSpec.driver; kubelet finds the plugin of an allocation by it")
def slices_name_the_driver(bench: Bench) -> None:
    """The slices name the driver by the name it registers with.

    Every slice that was written since the driver runs.
    """
    _any(bench)
    written = {seen.body["spec"]["driver"] for seen in bench.server().writes()
               if isinstance(seen.body, dict) and "spec" in seen.body}  # fmt: skip
    expect(written == {bench.driver}, f"slices name {sorted(written)}", f"publish as {bench.driver}")


@must("slices-node", f"{_TYPES}, ResourceSliceSpec.nodeName: kubelet deletes a node's slices by it")
def slices_name_the_node(bench: Bench) -> None:
    """Slices for the devices of a node have the node's name in spec.nodeName, or select nodes.

    The node's name as the driver was given it.
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

    One owner reference, with the UID that the node has.
    """
    for document in _any(bench):
        if document["spec"].get("nodeName"):
            owners = document["metadata"].get("ownerReferences") or []
            nodes = [owner for owner in owners if (owner.get("kind"), owner.get("name")) == ("Node", bench.places.node)]
            uid = f"uid-of-{bench.places.node}"
            right = any(owner.get("uid") == uid for owner in nodes)
            expect(right, f"the owners are {owners}", "set the Node with its UID as owner")


@must("slices-complete", f"{_TYPES}, ResourcePool.resourceSliceCount: a pool that is incomplete is not allocated from")
def pools_are_complete(bench: Bench) -> None:
    """A pool has all slices of its newest generation, and everything that they refer to.

    Each pool, as a scheduler gathers it.
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

    No slice of an older generation stays.
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
    expect(not seen, f"pools have the generations {seen}", "delete or update slices of older generations")


@should("slices-pool-node", f"{_TYPES}, ResourcePool.name: unique for the driver in the cluster; often the node's name")
def pool_names_differ_by_node(bench: Bench) -> None:
    """Pools of node-local devices have names that tell nodes apart.

    The node's name is a part of the pool's.
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

    Whatever of them the driver publishes.
    """
    for device in _devices(bench):
        for name, attribute in (device.get("attributes") or {}).items():
            problem = _standard_problem(name, attribute)
            expect(
                not problem, f"device {device['name']}: {name} is {attribute}, {problem}", "follow the standard's form"
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

    The same devices after a while.
    """
    before = _devices(bench)
    bench.wait(bench.quiet)
    changed = [device["name"] for device, again in zip(before, _devices(bench), strict=False) if device != again]
    expect(
        not changed, f"devices {changed[:5]} changed within {bench.quiet:g} s", "publish only what describes the device"
    )


@must("slices-taints", f"KEP-5055; {_TYPES}, DeviceTaint.timeAdded")
def taints_keep_their_time(bench: Bench) -> None:
    """Taints are published with a stable timeAdded: the server sets it, and it stays.

    The times of taints after a while.
    """
    if not any(device.get("taints") for device in _devices(bench)):
        raise Unable("the driver publishes no taint")

    def times() -> list[Any]:
        return [(device["name"], taint["key"], taint.get("timeAdded"))
                for device in _devices(bench) for taint in device.get("taints") or ()]  # fmt: skip

    before = times()
    bench.wait(bench.quiet)
    expect(times() == before, f"the taints are {times()}, but were {before}", "keep timeAdded of a taint that stays")
