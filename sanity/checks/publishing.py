"""ResourceSlices: how a driver brings the API server to what it has, whatever others do."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Final

from dranode.driver.core.api.documents import API_VERSION
from dranode.sanity.apiserver import RequestFault
from dranode.sanity.bench import OTHER_DRIVER, Bench
from dranode.sanity.breach import Unable, expect
from dranode.sanity.check import must, should
from dranode.sanity.checks.slices import published_slices
from dranode.sanity.objects import KubeDocument, kind_of

_CONTROLLER: Final = "k8s.io/dynamic-resource-allocation/resourceslice"
_SLICES: Final = "resourceslices"
_GATES: Final = (
    "DRAConsumableCapacity",
    "DRADeviceTaints",
    "DRADeviceBindingConditions",
    "DRANodeAllocatableResources",
)


def _content(bench: Bench) -> list[Any]:
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


def _settled(bench: Bench) -> list[Any]:
    """The content once nothing has been written for a moment, or at last when patience ends."""
    published_slices(bench)

    def settled() -> bool:
        count = len(bench.server().writes(_SLICES))
        bench.eventually(lambda: False, min(bench.quiet, 1.0))
        return len(bench.server().writes(_SLICES)) == count

    bench.eventually(settled)
    return _content(bench)


def _goes_on_writing(bench: Bench) -> str:
    """Return how much is written at last; empty as soon as nothing is: a slow driver may be about to end."""
    written, seconds = 0, bench.quiet
    for seconds in (bench.quiet, 2 * bench.quiet, 4 * bench.quiet):
        before = len(bench.server().writes(_SLICES))
        bench.eventually(lambda: False, seconds)
        written = len(bench.server().writes(_SLICES)) - before
        if not written:
            return ""
    return f"{written} writes within {seconds:g} s"


def _returns(bench: Bench, before: list[Any], what: str) -> None:
    bench.eventually(lambda: _content(bench) == before)
    seen = len(bench.slices())
    expect(
        _content(bench) == before,
        f"{bench.patience:g} s after {what}, {seen} slices are there, and not as before",
        "watch slices, and compare what is there with what should be",
    )


@must(
    "slices-deleted",
    "Slices that somebody deletes come back: kubelet deletes all of a node's when it starts.",
    f"kubelet, pkg/kubelet/cm/dra: wiping of slices; {_CONTROLLER}: they are published again within its sync delay",
)
def deleted_slices_come_back(bench: Bench) -> None:
    """All of the driver's at once."""
    before = _settled(bench)
    for document in bench.slices():
        bench.server().objects.remove(_SLICES, document["metadata"]["name"])
    _returns(bench, before, "all slices were deleted")


@should(
    "slices-edited",
    "A slice that somebody changes is put right.",
    f"{_CONTROLLER}: every event of a slice leads to a comparison",
)
def edited_slices_are_put_right(bench: Bench) -> None:
    """The last device of a slice is taken out."""
    before = _settled(bench)
    document = next((each for each in bench.slices() if each["spec"].get("devices")), None)
    if document is None:
        raise Unable("the driver publishes no device")
    bench.server().objects.edit(_SLICES, document["metadata"]["name"], lambda edited: edited["spec"]["devices"].pop())
    _returns(bench, before, "a device was taken out of a slice")


@should(
    "slices-stray",
    "A slice of the driver on its node that it does not want is removed, or superseded by a newer generation.",
    f"{_CONTROLLER}: pools that are not desired, and slices beyond the count, are deleted",
)
def stray_slices_are_removed(bench: Bench) -> None:
    """A second slice of the driver's own pool, as an older version of it may have left one."""
    before = _settled(bench)
    document = bench.slices()[0]
    stray = copy.deepcopy(document)
    stray["metadata"] = {"ownerReferences": document["metadata"].get("ownerReferences", [])}
    stray["spec"] = {**stray["spec"], "devices": [{"name": "stray-of-sanity"}]}
    stray["spec"].pop("sharedCounters", None)
    bench.add_slice(stray)
    _returns(bench, before, "a slice too many was created")


@must(
    "slices-foreign",
    "Slices of other drivers and of other nodes are left alone.",
    f"{_CONTROLLER}: it looks at slices of its own driver and node alone",
)
def foreign_slices_are_left_alone(bench: Bench) -> None:
    """One of each, for a while in which the driver has reason to write."""
    _settled(bench)
    objects = bench.server().objects
    own = bench.slices()
    added = set()
    for driver, node in ((OTHER_DRIVER, bench.places.node), (bench.driver, "another-node")):
        pool = {"name": f"pool-on-{node}", "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": []}
        added.add(bench.add_slice({"apiVersion": API_VERSION, "spec": spec}))
    objects.remove(_SLICES, own[0]["metadata"]["name"])
    bench.eventually(lambda: len(bench.slices()) > len(own))
    bench.eventually(lambda: False, bench.quiet)
    gone = added - {each["metadata"]["name"] for each in objects.all(_SLICES)}
    expect(not gone, f"{len(gone)} of {len(added)} slices are gone", "select slices by spec.driver and spec.nodeName")


@must(
    "slices-quiet",
    "Nothing is written while nothing changes.",
    f"{_CONTROLLER}: a slice is written if it differs from what is desired",
)
def nothing_is_written_needlessly(bench: Bench) -> None:
    """A while without events."""
    _settled(bench)
    before = len(bench.server().writes(_SLICES))
    bench.eventually(lambda: False, bench.quiet)
    count = len(bench.server().writes(_SLICES)) - before
    expect(count == 0, f"{count} writes of slices within {bench.quiet:g} s", "compare before writing")


@should(
    "slices-quiet-when-preparing",
    "Preparing and unpreparing claims leaves the slices as they are: allocation is the scheduler's book.",
    "KEP-4381, structured parameters: what is in use follows from claims, not from slices",
)
def preparing_writes_no_slices(bench: Bench) -> None:
    """A claim comes and goes."""
    before = _settled(bench)
    count = len(bench.server().writes(_SLICES))
    claim = bench.claim(bench.devices())
    bench.prepared(claim)
    bench.unprepared(claim)
    bench.eventually(lambda: False, min(bench.quiet, 1.0))
    written = len(bench.server().writes(_SLICES)) - count
    expect(
        written == 0 and _content(bench) == before,
        f"{written} writes of slices",
        "publish what is there, not what is free",
    )


@must(
    "slices-dropped-fields",
    "A server that drops fields of feature gates is not written to again and again.",
    f"{_CONTROLLER}: DroppedFieldsError; the stored slice is taken for what is desired",
)
def dropped_fields_are_accepted(bench: Bench) -> None:
    """All slices are deleted while several gates are off."""
    devices = [device for document in published_slices(bench) for device in document["spec"].get("devices") or ()]
    if not any(device.get(field) for device in devices for field in ("taints", "allowMultipleAllocations",
               "bindingConditions", "nodeAllocatableResources")):  # fmt: skip
        raise Unable("the driver publishes nothing that a feature gate drops")
    objects = bench.server().objects
    objects.gates_off.update(_GATES)
    count = len(bench.slices())
    for document in bench.slices():
        objects.remove(_SLICES, document["metadata"]["name"])
    bench.eventually(lambda: len(bench.slices()) >= count)
    bench.eventually(lambda: False, min(bench.quiet, 1.0))
    written = _goes_on_writing(bench)
    objects.gates_off.clear()
    try:
        expect(not written, written, "compare with what the server stored")
    finally:
        for document in bench.slices():
            objects.remove(_SLICES, document["metadata"]["name"])
        bench.eventually(lambda: len(bench.slices()) >= count)


@must(
    "slices-conflict",
    "A write that meets a conflict is made again.",
    "Kubernetes API conventions: 409 Conflict; get, compare, write",
)
def conflicts_are_overcome(bench: Bench) -> None:
    """The next two writes are answered 409."""
    _overcomes(bench, RequestFault("PUT", _SLICES, 1, status=409), RequestFault("POST", _SLICES, 1, status=409))


@must(
    "slices-server-error",
    "A write that the server fails is made again.",
    f"{_CONTROLLER}: a failed sync is repeated",
)
def server_errors_are_overcome(bench: Bench) -> None:
    """The next requests for slices are answered 503."""
    _overcomes(bench, *(RequestFault(method, _SLICES, 2, status=503) for method in ("PUT", "POST", "GET")))


def _overcomes(bench: Bench, *faults: RequestFault) -> None:
    before = _settled(bench)
    bench.server().faults.extend(faults)
    for document in bench.slices():
        bench.server().objects.remove(_SLICES, document["metadata"]["name"])
    _returns(bench, before, "writes failed")


@must(
    "slices-server-restart",
    "After the API server was away, slices are looked after as before.",
    "client-go reflectors: list and watch again after a connection is lost",
)
def a_restarted_server_is_served(bench: Bench) -> None:
    """Away, back, and then a slice is deleted."""

    def go_and_come() -> None:
        bench.server().stop()
        bench.eventually(lambda: False, 0.3)
        bench.server().start()

    _outlives(bench, go_and_come)


@must(
    "slices-expired",
    "After the history of a watch has expired (410), slices are looked after as before.",
    "Kubernetes API concepts: 410 Gone; list again",
)
def an_expired_watch_is_renewed(bench: Bench) -> None:
    """The server forgets its history, and then the watches end."""

    def expire() -> None:
        objects = bench.server().objects
        with objects.changed:
            objects.version += 1000
        objects.forget()

    _outlives(bench, expire)


def _outlives(bench: Bench, happens: Callable[[], object]) -> None:
    before = _settled(bench)
    happens()
    bench.eventually(lambda: False, min(bench.quiet, 0.5))
    for document in bench.slices():
        bench.server().objects.remove(_SLICES, document["metadata"]["name"])
    _returns(bench, before, "the server came back")


@should(
    "slices-selected",
    "Lists and watches of slices select those of the driver or the node.",
    f"{_CONTROLLER}: field selector spec.driver and spec.nodeName; a cluster has slices for each node",
)
def slices_are_selected(bench: Bench) -> None:
    """The lists since the driver runs."""
    published_slices(bench)
    kind = kind_of(_SLICES)
    lists = [seen for seen in bench.server().requests("GET", kind.resource) if seen.path.endswith(kind.resource)]
    if not lists:
        raise Unable("the driver lists no slices")
    plain = [seen for seen in lists if "spec." not in seen.query.get("fieldSelector", "")]
    expect(not plain, f"{len(plain)} of {len(lists)} lists select nothing", "set the field selectors")


@should(
    "slices-watched",
    "Slices are watched, not listed over and over.",
    "Kubernetes API concepts: efficient detection of changes",
)
def slices_are_watched(bench: Bench) -> None:
    """Lists within a while without events."""
    _settled(bench)

    def lists() -> int:
        seen = bench.server().requests("GET", _SLICES)
        return sum(each.path.endswith(_SLICES) and each.query.get("watch") not in ("true", "1") for each in seen)

    before = lists()
    bench.eventually(lambda: False, bench.quiet)
    count = lists() - before
    expect(count <= 1, f"{count} lists of slices within {bench.quiet:g} s", "watch from the version of the list")


@should(
    "slices-locked",
    "Updates name the version that they are based on.",
    "Kubernetes API concepts: optimistic concurrency by metadata.resourceVersion",
)
def updates_are_based_on_a_version(bench: Bench) -> None:
    """A slice is changed by somebody else, so that it must be updated."""
    before = _settled(bench)
    document = next((each for each in bench.slices() if each["spec"].get("devices")), bench.slices()[0])
    bench.server().objects.edit(_SLICES, document["metadata"]["name"], lambda edited: edited["spec"]["devices"].pop())
    _returns(bench, before, "a device was taken out of a slice")
    updates = [seen for seen in bench.server().requests("PUT", _SLICES) if isinstance(seen.body, dict)]
    if not updates:
        raise Unable("the driver creates slices anew instead of updating them")
    blind = [seen for seen in updates if not seen.body["metadata"].get("resourceVersion")]
    expect(not blind, f"{len(blind)} of {len(updates)} updates name no version", "send metadata.resourceVersion")


@should(
    "slices-v1beta2",
    "Where the server has no v1 of resource.k8s.io, v1beta2 is used.",
    "kubeletplugin helper: v1, then v1beta2, then v1beta1",
)
def v1beta2_is_used(bench: Bench) -> None:
    """A server of Kubernetes 1.33."""
    _older_server(bench, ("v1beta2", "v1beta1"))


@should(
    "slices-v1beta1",
    "Where the server has v1beta1 of resource.k8s.io alone, that is used.",
    "kubeletplugin helper: v1, then v1beta2, then v1beta1",
)
def v1beta1_is_used(bench: Bench) -> None:
    """A server of Kubernetes 1.32."""
    _older_server(bench, ("v1beta1",))


def _older_server(bench: Bench, versions: tuple[str, ...]) -> None:
    process, server = bench.started(), bench.server()
    before = _settled(bench)
    newest, server.versions = server.versions, versions
    try:
        process.kill()
        bench.disconnect()
        for document in bench.slices():
            server.objects.remove(_SLICES, document["metadata"]["name"])
        process.start()
        bench.connect()
        _returns(bench, before, f"a start before a server with {versions[0]}")
        bench.prepared(bench.claim(bench.devices()))
    finally:
        bench.clean()
        server.versions = newest
        process.kill()
        bench.disconnect()


@must(
    "slices-after-restart",
    "A driver that starts again finds its slices and leaves them as they are.",
    f"{_CONTROLLER}: slices are matched by name and content; needless generations make schedulers start over",
)
def restarts_leave_slices(bench: Bench) -> None:
    """Names, generations and contents before and after."""
    before = _settled(bench)
    names = sorted(each["metadata"]["name"] for each in bench.slices())
    generations = sorted(each["spec"]["pool"]["generation"] for each in bench.slices())
    bench.restart()
    bench.eventually(lambda: False, bench.quiet)
    expect(_settled(bench) == before, "the slices have other contents", "publish in a stable order")
    expect(
        sorted(each["metadata"]["name"] for each in bench.slices()) == names
        and sorted(each["spec"]["pool"]["generation"] for each in bench.slices()) == generations,
        f"the slices are {[each['metadata']['name'] for each in bench.slices()]}, and were {names}",
        "match the slices that are there before writing",
    )
