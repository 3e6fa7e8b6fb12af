"""The publisher against an API server: what it writes, what it repairs, and what status it reports."""

import json
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dranode.api.resource import Device, DeviceTaint
from dranode.driver.claims.plugin import Inventory
from dranode.driver.kube.client import Client, Timing
from dranode.driver.kube.cluster import KubeCluster
from dranode.driver.kube.errors import ApiError, BrokenStreamError
from dranode.driver.kube.http1 import Outgoing
from dranode.driver.kube.server import Credentials
from dranode.driver.kube.slice_requests import SliceWatch, list_slices
from dranode.driver.slices.plan import PublisherStatus
from tests.fakes.apiserver import ApiServer, Fault, api_server
from tests.fakes.waiting import PATIENCE, eventually

DRIVER = "d.example.com"


def inventory(*names: str, **fields: Any) -> Inventory:
    return Inventory(devices=tuple(Device(name=name, **fields) for name in names))


@dataclass
class Publishing:
    """A cluster and its API server."""

    api: ApiServer
    cluster: KubeCluster

    @property
    def status(self) -> PublisherStatus:
        return self.cluster.status(DRIVER)

    def publish(self, wanted: Inventory) -> None:
        self.cluster.publish(DRIVER, wanted)

    def published(self, wanted: Inventory) -> None:
        """Publish and wait until it is published."""
        self.publish(wanted)
        self.eventually(lambda: self.status.published)

    def eventually(self, holds: Callable[[], Any]) -> Any:
        return eventually(holds, lambda: self.status)

    def slices(self) -> list[Any]:
        return self.api.objects.all("resourceslices")

    def devices(self) -> list[list[str]]:
        return [[device["name"] for device in one["spec"].get("devices", ())] for one in self.slices()]

    def alter(self, change: Callable[[Any], None]) -> None:
        """Change the first slice as another client would."""
        self.api.objects.edit("resourceslices", self.slices()[0]["metadata"]["name"], change)


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with api_server() as server:
        server.put("nodes", {"metadata": {"name": "node", "uid": "node-uid"}})
        yield server


@pytest.fixture
def it(api: ApiServer, tmp_path: Path) -> Iterator[Publishing]:
    made = Publishing(api, connect(api, tmp_path))
    yield made
    made.cluster.close()


def connect(api: ApiServer, folder: Path) -> KubeCluster:
    source = Credentials(api.kubeconfig(folder / "kubeconfig"))
    return KubeCluster(source, "node", claim_status=False, fatal=pytest.fail, timing=Timing(dice=lambda: 0.0))


def test_slices_are_split_named_in_order_and_owned_by_the_node(it: Publishing) -> None:
    it.published(inventory(*(f"d{number}" for number in range(200))))
    first, second = it.slices()
    assert first["metadata"]["name"].startswith("00000-d.example.com-node-")
    assert second["metadata"]["name"].startswith("00001-d.example.com-node-")
    assert [len(names) for names in it.devices()] == [128, 72]
    assert first["spec"]["pool"] == {"name": "node", "generation": 1, "resourceSliceCount": 2}
    assert first["metadata"]["ownerReferences"][0]["uid"] == "node-uid"
    assert it.status == PublisherStatus(published=True, created=2)


@pytest.mark.parametrize("served", [("v1beta2",), ("v1beta1",)])
def test_an_older_server_is_published_to_in_its_version(it: Publishing, served: tuple[str, ...]) -> None:
    it.api.versions = served
    it.published(inventory("a", "b", allow_multiple_allocations=True))
    assert it.devices() == [["a", "b"]]
    (write,) = it.api.writes()
    assert write.body["apiVersion"] == f"resource.k8s.io/{served[0]}"
    assert ("basic" in write.body["spec"]["devices"][0]) is (served == ("v1beta1",))


def test_an_unchanged_inventory_is_not_written_again(it: Publishing, tmp_path: Path) -> None:
    it.published(inventory("a", "b"))
    again = connect(it.api, tmp_path)
    again.publish(DRIVER, inventory("a", "b"))
    it.eventually(lambda: again.status(DRIVER).published)
    again.publish(DRIVER, inventory("a", "b"))
    again.close()
    assert again.status(DRIVER) == PublisherStatus(published=True)
    assert len(it.api.writes()) == 1


def test_a_change_of_hardware_is_written_at_once(it: Publishing) -> None:
    it.published(inventory("a", "b"))
    it.publish(inventory("a", "c"))
    it.eventually(lambda: it.devices() == [["a", "c"]])
    it.eventually(lambda: it.status.published)
    assert (it.status.created, it.status.updated, it.status.repairs) == (1, 1, 0)


def test_slices_of_others_are_left_unchanged(it: Publishing) -> None:
    pool = {"name": "node", "generation": 1, "resourceSliceCount": 1}
    for driver, node in (("other.example.com", "node"), (DRIVER, "another")):
        spec = {"driver": driver, "nodeName": node, "pool": pool}
        it.api.put("resourceslices", {"metadata": {"name": f"00000-{driver}-{node}"}, "spec": spec})
    stale = {"driver": DRIVER, "nodeName": "node", "pool": {**pool, "name": "old-pool"}}
    found = it.api.put("resourceslices", {"metadata": {"name": "stale"}, "spec": stale})["metadata"]
    uid, version = found["uid"], found["resourceVersion"]
    it.published(inventory("a"))
    assert {one["metadata"]["name"].rsplit("-", 1)[0] for one in it.slices()} == {
        "00000-other.example.com",
        f"00000-{DRIVER}",
        f"00000-{DRIVER}-node",
    }
    assert it.status.deleted == 1
    (delete,) = it.api.requests("DELETE")
    assert delete.body["preconditions"] == {"uid": uid, "resourceVersion": version}


def test_edits_and_deletions_by_others_are_undone(it: Publishing, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    it.published(inventory("a", "b"))
    began = len(it.api.writes())
    it.alter(lambda one: one["spec"]["devices"].pop())
    it.eventually(lambda: it.devices() == [["a", "b"]])
    it.api.objects.remove("resourceslices", it.slices()[0]["metadata"]["name"])
    it.eventually(lambda: it.devices() == [["a", "b"]])
    it.eventually(lambda: it.status.repairs == 2)
    assert len(it.api.writes()) == began + 2
    assert it.status.problem is None
    # kubelet deletes all slices whenever it starts, which deserves no warning.
    said = [(one.levelname, one.message.partition(": ")[2]) for one in caplog.records if ": " in one.message]
    assert said == [
        ("WARNING", "undid changes that somebody else made"),
        ("INFO", "all were deleted, as kubelet does when it starts; published again"),
    ]


@pytest.mark.parametrize("as_event", [True, False])
def test_watching_continues_after_the_resource_version_has_expired(
    it: Publishing, caplog: pytest.LogCaptureFixture, *, as_event: bool
) -> None:
    it.api.gone_as_event = as_event
    it.api.watch_seconds, it.api.bookmark_seconds = 0.1, 0.01
    it.published(inventory("a"))
    # The next watch starts a second later at the earliest, after the change and the expiry below.
    it.eventually(lambda: it.api.watches_ended)
    it.api.watch_seconds = 3600
    it.alter(lambda one: one["spec"].pop("devices"))
    it.api.objects.forget()
    it.eventually(lambda: it.devices() == [["a"]])
    lists = [one for one in it.api.requests("GET", "resourceslices") if not one.query.get("watch")]
    assert len(lists) == 2
    assert not any("410" in line or "too old" in line for line in caplog.messages)


@pytest.mark.parametrize("seconds", [3600.0, 0.0])
def test_a_watch_whose_resource_version_expires_or_that_ends_at_once_lists_again(
    it: Publishing, seconds: float
) -> None:
    it.api.watch_seconds = seconds
    it.published(inventory("a"))
    lists = len(it.api.requests("GET", "resourceslices"))
    it.eventually(lambda: any(one.query.get("watch") for one in it.api.requests("GET", "resourceslices")))
    with it.api.objects.changed:
        # Events that were not sent on this watch are dropped with the history.
        it.alter(lambda one: one["spec"]["devices"].append({"name": "x"}))
        it.api.objects.forget()
    it.eventually(lambda: it.devices() == [["a"]])
    assert len(it.api.requests("GET", "resourceslices")) > lists


def test_a_node_that_the_cluster_does_not_know_is_named(it: Publishing) -> None:
    it.api.objects.remove("nodes", "node")
    it.publish(inventory("a"))
    problem = it.eventually(lambda: it.status.problem)
    assert problem == "the cluster has no node node; name this one with --node-name"
    assert not it.status.published
    it.api.put("nodes", {"metadata": {"name": "node", "uid": "late"}})
    it.eventually(lambda: it.status.published)
    assert it.status.problem is None


def test_a_node_without_a_uid_owns_no_slices(it: Publishing) -> None:
    it.api.faults.append(Fault("GET", "nodes/node", status=200, body="{}"))
    it.publish(inventory("a"))
    problem = it.eventually(lambda: it.status.problem)
    assert problem.startswith("node node in the API server's answer cannot be read: metadata.uid is missing")
    it.eventually(lambda: it.status.published)
    assert len(it.api.requests("POST")) == 1


def test_a_missing_permission_is_named_and_retried(it: Publishing) -> None:
    body = '{"message":"User u cannot create resource resourceslices"}'
    it.api.faults.append(Fault("POST", "resourceslices", times=2, status=403, body=body))
    it.publish(inventory("a"))
    assert "does not let this account create resourceslices: User u" in it.eventually(lambda: it.status.problem)
    it.eventually(lambda: it.status.published)


def test_a_refusal_is_reported_once_although_every_attempt_has_another_name(
    it: Publishing, caplog: pytest.LogCaptureFixture
) -> None:
    for made_up in ("2fltd", "bvfqd", "w2shq"):
        message = f'resourceslices.resource.k8s.io "00000-d.example.com-node-{made_up}" is forbidden: denied'
        it.api.faults.append(Fault("POST", "resourceslices", status=403, body=json.dumps({"message": message})))
    it.published(inventory("a"))
    (told,) = [one.getMessage() for one in caplog.records if "does not let" in one.getMessage()]
    assert told.endswith('resourceslices.resource.k8s.io "00000-d.example.com-node-" is forbidden: denied')


@pytest.mark.parametrize("status", [409, 429, 500, 503])
def test_a_failed_write_is_retried_from_a_fresh_list(it: Publishing, status: int) -> None:
    it.published(inventory("a"))
    it.api.faults.append(Fault("PUT", "resourceslices", status=status))
    it.publish(inventory("b"))
    it.eventually(lambda: it.devices() == [["b"]])
    it.eventually(lambda: it.status.published)


def test_a_creation_whose_answer_is_lost_is_not_repeated(it: Publishing) -> None:
    # The watch does not report the new slice in time either.
    it.api.mute = True
    it.api.after.append(Fault("POST", "resourceslices", drop=True))
    it.published(inventory("a"))
    it.api.mute = False
    assert it.devices() == [["a"]]
    assert len(it.api.requests("POST")) == 1


def test_a_network_partition_is_reported_and_recovered_from(it: Publishing) -> None:
    it.published(inventory("a"))
    it.api.stop()
    it.publish(inventory("b"))
    assert "does not answer" in it.eventually(lambda: it.status.problem)
    assert not it.status.published
    it.api.start()
    it.eventually(lambda: it.devices() == [["b"]])
    it.eventually(lambda: it.status.published and it.status.problem is None)


def test_dropped_fields_are_named_once_and_not_written_again(it: Publishing, caplog: pytest.LogCaptureFixture) -> None:
    it.api.objects.gates_off.add("DRADeviceTaints")
    it.published(inventory("a", taints=(DeviceTaint(key="k", effect="NoSchedule"),)))
    assert it.status.dropped == {"DRADeviceTaints"}
    assert len(it.api.writes()) == 1
    it.publish(inventory("a", "b", taints=(DeviceTaint(key="k", effect="NoSchedule"),)))
    it.eventually(lambda: it.devices() == [["a", "b"]] and it.status.published)
    assert sum("DRADeviceTaints" in line for line in caplog.messages) == 1
    assert it.status.problem is None


def test_shareable_devices_are_withdrawn_until_the_gate_is_on(it: Publishing) -> None:
    it.api.objects.gates_off.add("DRAConsumableCapacity")
    it.publish(inventory("a", "b", allow_multiple_allocations=True))
    problem = it.eventually(lambda: it.status.problem)
    assert "feature gate DRAConsumableCapacity" in problem
    it.eventually(lambda: it.devices() == [[]])
    assert not it.status.published
    writes = len(it.api.writes())
    # The operator enables the gate, which requires a restart of the API server.
    it.api.stop()
    it.api.objects.gates_off.clear()
    it.api.start()
    it.eventually(lambda: it.status.published)
    assert it.devices() == [["a", "b"]]
    assert it.status.problem is None
    assert [one.query.get("dryRun") for one in it.api.writes()[writes:]] == ["All", None]


def test_nothing_is_published_if_the_gate_is_still_off_after_a_restart(it: Publishing) -> None:
    it.api.objects.gates_off.add("DRAConsumableCapacity")
    it.publish(inventory("a", allow_multiple_allocations=True))
    it.eventually(lambda: it.devices() == [[]])
    it.api.stop()
    it.api.start()
    (dry,) = it.eventually(lambda: [one for one in it.api.writes() if one.query.get("dryRun")])
    assert dry.status == 200
    it.eventually(lambda: it.status.problem is not None and "DRAConsumableCapacity" in it.status.problem)
    assert it.devices() == [[]]
    assert not it.status.published


def test_a_paused_publisher_leaves_its_slices_and_repairs_nothing(it: Publishing) -> None:
    it.published(inventory("a"))
    it.cluster.pause(DRIVER)
    it.alter(lambda one: one["spec"].pop("devices"))
    assert it.status == PublisherStatus(problem="nothing was published yet")
    it.published(inventory("a"))
    assert it.devices() == [["a"]]


def test_slices_are_owned_by_a_recreated_node(it: Publishing) -> None:
    it.published(inventory("a"))
    it.api.objects.remove("nodes", "node")
    it.api.put("nodes", {"metadata": {"name": "node", "uid": "another-uid"}})
    # The garbage collector deletes objects of a deleted node.
    it.api.objects.remove("resourceslices", it.slices()[0]["metadata"]["name"])
    (made,) = it.eventually(it.slices)
    assert made["metadata"]["ownerReferences"][0]["uid"] == "another-uid"


def test_a_publisher_that_is_paused_during_a_write_makes_no_other(
    it: Publishing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dranode.driver.kube.slice_loop._JOIN_SECONDS", 0.1)
    released = threading.Event()
    hanging = Fault(method="POST", path="resourceslices", release=released)
    it.api.faults.append(hanging)
    it.publish(inventory(*(f"d{number}" for number in range(200))))
    it.eventually(lambda: not hanging.times)
    threads = [one for one in threading.enumerate() if one.name == f"{DRIVER}-slices"]
    it.cluster.pause(DRIVER)
    released.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(it.api.requests("POST", "resourceslices")) == 1


class Breaking:
    """A wire whose lists succeed and whose watches break after a minute; the watcher stops after ten breaks."""

    listing = b'{"apiVersion":"resource.k8s.io/v1","metadata":{"resourceVersion":"1"},"items":[]}'

    def __init__(self) -> None:
        self.now = 0.0
        self.breaks = 0
        self.watch = SliceWatch(Client(self, timing=Timing(clock=lambda: self.now, dice=lambda: 0.0)), "d", "n", self)

    def send(self, outgoing: Outgoing) -> Any:
        if "watch=true" in outgoing.path:
            self.now += 60.0
            raise BrokenStreamError("broken")
        data = b'{"versions":[{"version":"v1"}]}'
        if outgoing.path.partition("?")[0].endswith("resourceslices"):
            data = self.listing
        return SimpleNamespace(status=200, headers={}, data=data)

    def newest(self) -> int:
        return 0

    def listed(self, *_: Any) -> None:
        pass

    changed = gone = failed = listed

    def lost(self) -> None:
        self.breaks += 1
        if self.breaks == 10:
            self.watch.stop()


def test_a_watch_that_lived_before_it_broke_is_restarted_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Breaking()
    delays: list[float] = []
    stopped = wire.watch._stopped
    monkeypatch.setattr(stopped, "wait", delays.append)
    wire.watch.run()
    assert wire.breaks == 10
    assert max(delays) < 1


@pytest.mark.parametrize(
    ("listing", "read"),
    [
        (b'{"apiVersion":"resource.k8s.io/v1","metadata":{"resourceVersion":"1"},"items":null}', True),
        (b'{"apiVersion":"resource.k8s.io/v1","metadata":{"resourceVersion":"1"}}', False),
    ],
    ids=["null", "missing"],
)
def test_a_list_without_items_is_an_error_and_not_an_empty_list(listing: bytes, *, read: bool) -> None:
    wire = Breaking()
    wire.listing = listing
    client = Client(wire)
    if read:
        assert list_slices(client, "d", "n").slices == ()
    else:
        with pytest.raises(ApiError, match=r"list of resource\.k8s\.io resourceslices cannot be read"):
            list_slices(client, "d", "n")


def test_an_error_event_whose_code_is_not_a_number_is_refused() -> None:
    with pytest.raises(ApiError, match="an event of the API server's watch cannot be read"):
        Breaking().watch._passed_on({"type": "ERROR", "object": {"message": "m", "code": "many"}})
