"""Statuses and Events that the driver sends to an API server."""

import contextlib
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dranode.api.errors import DranodeError
from dranode.api.resource import ResourceClaim
from dranode.driver.claims.answers import Answer, Prepared, Refused
from dranode.driver.claims.events import DriftRepaired, PrepareFailed, RecordQuarantined
from dranode.driver.claims.grant import Grant
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.plugin import Inventory
from dranode.driver.claims.record import Record
from dranode.driver.claims.users import PodSandbox
from dranode.driver.kube.client import Client, Timing
from dranode.driver.kube.cluster import KubeCluster
from dranode.driver.kube.connection import Connection
from dranode.driver.kube.errors import ApiError
from dranode.driver.kube.outbox import Outbox
from dranode.driver.kube.reports import ClaimStatus, KubeEvents
from dranode.driver.kube.server import Credentials
from dranode.driver.kubelet.listener import Listener
from dranode.driver.kubelet.sockets import socket_paths
from dranode.driver.node.node import NodeClaims
from dranode.driver.serve.service import DriverService
from tests.fakes.apiserver import ApiServer, Fault, api_server
from tests.fakes.drivers import Lamps, allocated_claim, lose_copy, plain, reference
from tests.fakes.waiting import PATIENCE, eventually

SHARE = "00000000-0000-0000-0000-000000000001"


class TalkingLamps(Lamps):
    """Lamps that report which one they are; the third one reports something that JSON cannot express."""

    def describe(self, grant: Grant, record: Record, inventory: Inventory) -> Mapping[str, Any]:
        del record, inventory
        return {"lamp": object() if grant.device == "lamp-3" else grant.device}


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with api_server() as server:
        yield server


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeClaims]:
    made = NodeClaims(TalkingLamps(), tmp_path / "data", tmp_path / "cdi")
    (tmp_path / "data").mkdir()
    made.open()
    yield made
    made.close()


@pytest.fixture
def cluster(api: ApiServer, tmp_path: Path) -> Iterator[KubeCluster]:
    source = Credentials(api.kubeconfig(tmp_path / "kubeconfig"))
    made = KubeCluster(source, "node", claim_status=True, fatal=pytest.fail, timing=Timing(idle=0.0))
    yield made
    made.close()


class Reported:
    """A node whose answers are reported as the DRA service does it."""

    def __init__(self, cluster: KubeCluster, node: NodeClaims) -> None:
        self.node, self.reporter = node, cluster.reporter(node)

    def prepare(self, claims: Mapping[ClaimRef, ResourceClaim | DranodeError]) -> Mapping[str, Answer]:
        answers = self.node.prepare(claims)
        self.reporter.prepared(claims, answers)
        return answers

    def unprepare(self, refs: tuple[ClaimRef, ...]) -> Mapping[str, Refused | None]:
        answers = self.node.unprepare(refs)
        self.reporter.unprepared({ref: answers[ref.uid] for ref in refs})
        return answers


@pytest.fixture
def reported(cluster: KubeCluster, node: NodeClaims) -> Reported:
    return Reported(cluster, node)


def put(api: ApiServer, name: str, device: str) -> ResourceClaim:
    claim = allocated_claim(name, Lamps.driver, [device], shareID=SHARE)
    api.put("resourceclaims", plain(claim))
    return claim


def devices(api: ApiServer, name: str) -> list[Any]:
    claim = next(one for one in api.objects.all("resourceclaims") if one["metadata"]["name"] == name)
    found: list[Any] = claim["status"].get("devices", [])
    return found


def test_a_prepared_claim_has_its_devices_in_its_status_until_it_is_unprepared(
    api: ApiServer, reported: Reported
) -> None:
    claim = put(api, "a", "lamp-0")
    ref = reference(claim)
    answers = reported.prepare({ref: claim})
    assert isinstance(answers[ref.uid], Prepared)
    (entry,) = eventually(lambda: devices(api, "a"))
    assert (entry["driver"], entry["device"], entry["shareID"]) == (Lamps.driver, "lamp-0", SHARE)
    assert entry["conditions"][0]["status"] == "True"
    assert entry["data"] == {"lamp": "lamp-0"}
    (patch,) = eventually(lambda: api.requests("PATCH"))
    assert patch.path.endswith("/namespaces/default/resourceclaims/a/status")
    assert patch.query == {"fieldManager": Lamps.driver, "force": "true"}
    assert patch.body["metadata"]["uid"] == ref.uid
    assert reported.unprepare((ref,)) == {ref.uid: None}
    eventually(lambda: not devices(api, "a"))


def test_other_drivers_entries_are_left_unchanged(api: ApiServer, reported: Reported) -> None:
    claim = put(api, "a", "lamp-0")
    other = {"driver": "other.example.com", "pool": "node", "device": "d"}
    api.objects.edit("resourceclaims", "a", lambda one: one["status"].update(devices=[other]), "default")
    reported.prepare({reference(claim): claim})
    eventually(lambda: len(devices(api, "a")) == 2)
    reported.unprepare((reference(claim),))
    eventually(lambda: devices(api, "a") == [other])


def test_a_repeated_prepare_writes_no_status_again(api: ApiServer, reported: Reported, cluster: KubeCluster) -> None:
    claim = put(api, "a", "lamp-0")
    ref = reference(claim)
    reported.prepare({ref: claim})
    eventually(lambda: devices(api, "a"))
    # While a write is under way another one follows, since their order is unknown.
    eventually(lambda: not reported.reporter.status._outbox.sends(ref.uid))  # type: ignore[union-attr]
    again = cluster.get((ref,))
    reported.prepare(again)
    cluster.close(20)
    assert len(api.requests("PATCH")) == 1


def test_an_older_server_has_the_status_in_its_version(api: ApiServer, reported: Reported) -> None:
    api.versions = ("v1beta1",)
    claim = put(api, "a", "lamp-0")
    reported.prepare({reference(claim): claim})
    eventually(lambda: devices(api, "a"))
    (patch,) = eventually(lambda: api.requests("PATCH"))
    assert patch.body["apiVersion"] == "resource.k8s.io/v1beta1"


def test_failures_are_reported_as_events_if_claim_status_is_off(
    api: ApiServer, node: NodeClaims, tmp_path: Path
) -> None:
    source = Credentials(api.kubeconfig(tmp_path / "kubeconfig"))
    cluster = KubeCluster(source, "node", claim_status=False, fatal=pytest.fail)
    good, bad = put(api, "a", "lamp-0"), put(api, "b", "lamp-9")
    Reported(cluster, node).prepare({reference(good): good, reference(bad): bad})
    cluster.close(20)
    assert len(api.objects.all("events")) == 2
    assert not api.requests("PATCH")


def test_the_first_claim_uses_the_version_discovered_at_connect(api: ApiServer, tmp_path: Path) -> None:
    claim = put(api, "a", "lamp-0")
    cluster = KubeCluster(
        Credentials(api.kubeconfig(tmp_path / "kubeconfig")), "node", claim_status=False, fatal=pytest.fail
    )
    cluster.connect()
    (discovered,) = eventually(lambda: api.requests("GET"))
    assert isinstance(cluster.get((reference(claim),))[reference(claim)], ResourceClaim)
    assert [each.path for each in api.requests("GET")] == [
        discovered.path, "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/a"
    ]  # fmt: skip
    cluster.close()


def test_a_failed_connect_is_repeated_by_the_first_claim(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = tmp_path / "kubeconfig"
    config.write_text("{}")
    cluster = KubeCluster(Credentials(str(config)), "node", claim_status=False, fatal=pytest.fail)
    caplog.set_level("DEBUG")
    cluster.connect()
    eventually(lambda: "the API server is not reached yet" in caplog.text)
    with api_server() as api:
        claim = put(api, "a", "lamp-0")
        api.kubeconfig(config)
        assert isinstance(cluster.get((reference(claim),))[reference(claim)], ResourceClaim)
    cluster.close()


def test_a_status_that_cannot_be_serialized_does_not_fail_the_claim(api: ApiServer, reported: Reported) -> None:
    claim = put(api, "a", "lamp-3")
    assert isinstance(reported.prepare({reference(claim): claim})[reference(claim).uid], Prepared)
    other = put(api, "b", "lamp-1")
    reported.prepare({reference(other): other})
    eventually(lambda: devices(api, "b"))
    assert not devices(api, "a")


def test_a_failed_prepare_is_reported_on_claim_and_pod_and_in_status(api: ApiServer, reported: Reported) -> None:
    claim = put(api, "a", "lamp-9")
    ref = reference(claim)
    for _ in range(3):
        answers = reported.prepare({ref: claim})
    assert isinstance(answers[ref.uid], Refused)
    eventually(lambda: len(api.objects.all("events")) == 2)
    events = {one["regarding"]["kind"]: one for one in api.objects.all("events")}
    assert events["Pod"]["regarding"]["name"] == "pod-a"
    assert events["ResourceClaim"]["regarding"]["uid"] == ref.uid
    told = events["ResourceClaim"]
    assert '"lamp-9"' in told["note"]
    assert (told["type"], told["reason"], told["action"]) == ("Warning", "PrepareFailed", "Prepare")
    assert (told["reportingController"], told["reportingInstance"]) == (Lamps.driver, f"{Lamps.driver}-node")
    assert told["metadata"]["namespace"] == "default"
    (entry,) = eventually(lambda: devices(api, "a"))
    assert entry["conditions"][0]["status"] == "False"
    assert '"lamp-9"' in entry["conditions"][0]["message"]


def test_a_claim_that_cannot_be_fetched_is_reported_only_on_the_claim(api: ApiServer, reported: Reported) -> None:
    ref = ClaimRef("default", "gone", "uid-gone")
    reported.prepare({ref: DranodeError("claim default/gone cannot be fetched")})
    (event,) = eventually(lambda: api.objects.all("events"))
    assert event["regarding"]["name"] == "gone"
    assert not api.requests("PATCH")


def test_kubelet_does_not_wait_for_a_slow_server(api: ApiServer, reported: Reported) -> None:
    claim = put(api, "a", "lamp-0")
    asked = threading.Event()

    class Held(Fault):
        """An answer that comes only after kubelet has got its own."""

        def takes(self, method: str, path: str) -> bool:
            del path
            if method == "PATCH":
                asked.wait(PATIENCE)
            return False

    api.faults.append(Held())
    assert isinstance(reported.prepare({reference(claim): claim})[reference(claim).uid], Prepared)
    assert not devices(api, "a")
    asked.set()
    eventually(lambda: devices(api, "a"))


def test_status_and_events_are_retried_after_temporary_errors(api: ApiServer, reported: Reported) -> None:
    claim = put(api, "a", "lamp-9")
    api.faults += [Fault("PATCH", status=503), Fault("POST", "events", drop=True)]
    reported.prepare({reference(claim): claim})
    eventually(lambda: devices(api, "a") and len(api.objects.all("events")) == 2)


def test_a_missing_permission_is_logged_once_and_fails_no_claim(
    api: ApiServer, reported: Reported, caplog: pytest.LogCaptureFixture
) -> None:
    api.faults.append(Fault("PATCH", status=403, times=99, body='{"message":"cannot patch resource"}'))
    for number in range(3):
        claim = put(api, f"c{number}", f"lamp-{number}")
        assert isinstance(reported.prepare({reference(claim): claim})[reference(claim).uid], Prepared)
    eventually(lambda: len(api.requests("PATCH")) == 3)
    eventually(lambda: any("cannot patch resource" in line for line in caplog.messages))
    assert sum("resourceclaims/driver" in line for line in caplog.messages) == 1


def test_the_status_of_a_deleted_claim_is_not_retried(
    api: ApiServer, reported: Reported, caplog: pytest.LogCaptureFixture
) -> None:
    claim = put(api, "a", "lamp-0")
    api.objects.remove("resourceclaims", "a", "default")
    reported.prepare({reference(claim): claim})
    eventually(lambda: api.requests("PATCH"))
    api.put("resourceclaims", {**plain(claim), "metadata": {"namespace": "default", "name": "a", "uid": "another"}})
    reported.prepare({reference(claim): claim})
    eventually(lambda: [one.status for one in api.requests("PATCH")][-1:] == [409])
    assert not caplog.messages


def test_notifications_are_reported_on_pod_claim_and_node(api: ApiServer, cluster: KubeCluster) -> None:
    claim = ClaimRef("default", "a", "uid-a")
    cluster.notify(
        Lamps.driver, DriftRepaired(PodSandbox("sandbox", "uid-p", "default", "p"), (claim,), "it ran elsewhere")
    )
    cluster.notify(Lamps.driver, RecordQuarantined("uid-b", "the checksum differs"))
    eventually(lambda: len(api.objects.all("events")) == 3)
    told = {(one["regarding"]["kind"], one["reason"]) for one in api.objects.all("events")}
    assert told == {("Pod", "CPUSetDrift"), ("ResourceClaim", "CPUSetDrift"), ("Node", "RecordQuarantined")}


def test_a_driver_that_starts_with_a_damaged_record_reports_it_on_the_node(
    api: ApiServer, cluster: KubeCluster, node: NodeClaims, tmp_path: Path
) -> None:
    claim = put(api, "a", "lamp-0")
    node.prepare({reference(claim): claim})
    node.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "data" / "ledger.db", isolation_level=None)) as ledger:
        ledger.execute("UPDATE claims SET checksum = checksum + 1")
    lose_copy(tmp_path)
    with tempfile.TemporaryDirectory(prefix="dranode-") as name:
        for folder in ("plugins_registry", f"plugins/{Lamps.driver}"):
            (Path(name) / folder).mkdir(parents=True)
        service = DriverService(
            TalkingLamps(),
            cluster,
            Listener(Lamps.driver, "node", socket_paths(Path(name), Lamps.driver), tmp_path / "data", pytest.fail),
            cdi=tmp_path / "cdi",
        )
        service.start()
        (event,) = eventually(lambda: api.objects.all("events"))
        service.stop()
    assert (event["reason"], event["regarding"]["kind"]) == ("RecordQuarantined", "Node")
    assert f"UID {reference(claim).uid}" in event["note"]


def test_pending_events_are_sent_before_the_connection_closes(api: ApiServer, cluster: KubeCluster) -> None:
    cluster.notify(Lamps.driver, RecordQuarantined("uid-b", "the checksum differs"))
    cluster.close(20)
    assert len(api.objects.all("events")) == 1


def test_a_newer_item_replaces_one_that_waits() -> None:
    sent: list[int] = []
    first, go_on = threading.Event(), threading.Event()

    def send(item: int) -> None:
        sent.append(item)
        first.set()
        go_on.wait(PATIENCE)

    outbox: Outbox[int] = Outbox("test", send, Timing(), pytest.fail)
    outbox.put("a", 1)
    first.wait(PATIENCE)
    for item in (2, 3):
        outbox.put("a", item)
    outbox.put("b", 4)
    go_on.set()
    outbox.close(PATIENCE)
    outbox.put("c", 5)
    assert sent == [1, 3, 4]


def test_an_item_is_retried_until_a_newer_one_replaces_it() -> None:
    tried: list[int] = []

    def send(item: int) -> None:
        tried.append(item)
        if item == 1:
            raise ApiError("503", 503)

    outbox: Outbox[int] = Outbox("test", send, Timing(dice=lambda: 0.0), pytest.fail)
    outbox.put("a", 1)
    eventually(lambda: tried)
    outbox.put("a", 2)
    eventually(lambda: 2 in tried)
    outbox.close(PATIENCE)
    assert tried[-1] == 2


def test_a_newer_item_still_waits_for_the_servers_retry_after() -> None:
    tried: list[int] = []

    def send(item: int) -> None:
        tried.append(item)
        raise ApiError("429", 429, retry_after=60)

    outbox: Outbox[int] = Outbox("test", send, Timing(dice=lambda: 0.0), pytest.fail)
    outbox.put("a", 1)
    eventually(lambda: tried)
    for item in range(2, 12):
        outbox.put("a", item)
        time.sleep(0.01)
    assert tried == [1]
    outbox.close(PATIENCE)
    assert tried == [1, 11], "one last try when the driver stops"


def test_either_instance_removes_the_status_when_it_unprepares(
    api: ApiServer, reported: Reported, cluster: KubeCluster, tmp_path: Path
) -> None:
    other = NodeClaims(TalkingLamps(), tmp_path / "data", tmp_path / "cdi")
    other.open()
    claim = put(api, "a", "lamp-0")
    ref = reference(claim)
    reported.prepare({ref: claim})
    eventually(lambda: devices(api, "a"))
    # This instance has not read the ledger since the other one wrote to it.
    assert Reported(cluster, other).unprepare((ref,)) == {ref.uid: None}
    eventually(lambda: not devices(api, "a"))
    other.close()


def test_concurrent_threads_share_one_outbox(api: ApiServer, tmp_path: Path) -> None:
    cluster = KubeCluster(
        Credentials(api.kubeconfig(tmp_path / "kubeconfig")), "node", claim_status=True, fatal=pytest.fail
    )
    both = threading.Barrier(2, timeout=1)

    class Meeting(dict[str, Any]):
        """Makes two threads check before either adds its entry, if that is possible."""

        def __contains__(self, key: object) -> bool:
            found = super().__contains__(key)
            if not found:
                with contextlib.suppress(threading.BrokenBarrierError):
                    both.wait()
            return found

    cluster._statuses = Meeting()
    made: list[Any] = []
    threads = [threading.Thread(target=lambda: made.append(cluster._status_of("d"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made[0] is made[1]
    cluster.close()


def test_a_dropped_status_is_named_by_its_claim(
    api: ApiServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = Credentials(api.kubeconfig(tmp_path / "kubeconfig"))
    status = ClaimStatus(Client(Connection(source, retries=True), retries=True), "dra.lamps", pytest.fail)
    api.stop()
    for number in range(1001):
        status.withdraw(ClaimRef("default", f"claim-{number}", f"uid-{number}"))
    assert "wait for the API server; the status of claim default/claim-0 is dropped" in caplog.text
    status.close(0.0)


def test_a_dropped_event_is_named_by_its_reason_and_object(
    api: ApiServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = Credentials(api.kubeconfig(tmp_path / "kubeconfig"))
    # The clock runs fast, so that the hourly limit of Events lets all of them pass.
    hours = iter(range(0, 3600 * 5000, 3600))
    timing = Timing(clock=lambda: float(next(hours)))
    events = KubeEvents(
        Client(Connection(source, retries=True), retries=True, timing=timing), "dra.lamps", "node", pytest.fail
    )
    api.stop()
    for number in range(1001):
        events.notify(PrepareFailed(ClaimRef("default", f"claim-{number}", f"uid-{number}"), (), "no lamp"))
    assert "the Event PrepareFailed about ResourceClaim default/claim-0 is dropped" in caplog.text
    events.close(0.0)
