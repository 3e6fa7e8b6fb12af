"""The kubelet side over real sockets, in both versions of the API."""

import socket
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
import pytest

from dranode.api.errors import DranodeError, UsageError
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.plugin import DeviceHealth, Health, Stop
from dranode.driver.kubelet.listener import Listener
from dranode.driver.kubelet.sockets import Sockets, socket_paths
from dranode.driver.serve.service import DriverService
from dranode.proto import (
    dra_v1_pb2,
    dra_v1beta1_pb2,
    dra_v1beta1_pb2_grpc,
    drahealth_v1_pb2,
    drahealth_v1alpha1_pb2,
    drahealth_v1alpha1_pb2_grpc,
)
from dranode.proto import pluginregistration_v1_pb2 as registration
from dranode.proto.dra_v1_pb2_grpc import DRAPluginStub
from dranode.proto.drahealth_v1_pb2_grpc import DRAResourceHealthStub
from dranode.proto.pluginregistration_v1_pb2_grpc import RegistrationStub
from dranode.sim.local.kubelet import KubeletError, StandInKubelet
from tests.fakes.cluster import MemoryCluster
from tests.fakes.drivers import Lamps, allocated_claim
from tests.fakes.waiting import PATIENCE, eventually

LAMPS = Lamps.driver


@pytest.fixture
def cluster() -> MemoryCluster:
    return MemoryCluster(
        allocated_claim("a", LAMPS, {"big/first": "lamp-0", "s": "lamp-1"}, shareID="share-1"),
        allocated_claim("b", LAMPS, ["lamp-9"]),
    )


class WatchedLamps(Lamps):
    """Lamps that are watched all the time."""

    def watch(self, stop: Stop) -> Iterator[None]:
        while not stop.wait(0.01):
            yield


def make(
    root: Path, cluster: MemoryCluster, fatal: Any = None, pod_uid: str = "", lamps: Lamps | None = None
) -> DriverService:
    return DriverService(
        lamps or Lamps(),
        cluster,
        Listener(
            LAMPS,
            "node",
            socket_paths(root, LAMPS, pod_uid),
            root / "plugins" / LAMPS,
            fatal or pytest.fail,
            rolling=bool(pod_uid),
        ),
        cdi=root / "cdi",
    )


@pytest.fixture
def service(root: Path, cluster: MemoryCluster) -> Iterator[DriverService]:
    service = make(root, cluster)
    service.start()
    yield service
    service.stop()


@pytest.fixture
def channel(service: DriverService, root: Path) -> Iterator[grpc.Channel]:
    del service
    with grpc.insecure_channel(f"unix:{socket_paths(root, LAMPS).dra}") as channel:
        yield channel


@pytest.mark.parametrize(
    ("api", "stub"),
    [(dra_v1_pb2, DRAPluginStub), (dra_v1beta1_pb2, dra_v1beta1_pb2_grpc.DRAPluginStub)],
    ids=["v1", "v1beta1"],
)
def test_every_claim_of_a_call_is_answered_with_devices_or_an_error(
    channel: grpc.Channel, cluster: MemoryCluster, api: ModuleType, stub: Any
) -> None:
    asked = [api.Claim(namespace=ref.namespace, name=ref.name, uid=ref.uid) for ref in cluster.claims]
    asked.append(api.Claim(namespace="default", name="gone", uid="uid-gone"))
    answers = stub(channel).NodePrepareResources(api.NodePrepareResourcesRequest(claims=asked)).claims
    assert set(answers) == {claim.uid for claim in asked}
    good, missing = answers[asked[0].uid], answers["uid-gone"]
    assert [(list(device.request_names), device.pool_name, device.device_name) for device in good.devices] == [
        (["big"], "node", "lamp-0"),
        (["s"], "node", "lamp-1"),
    ]
    assert missing.error == "claim default/gone does not exist"
    assert '"lamp-9"' in answers[asked[1].uid].error
    if api is dra_v1_pb2:
        assert [device.share_id for device in good.devices] == ["share-1", "share-1"]
    gone = stub(channel).NodeUnprepareResources(api.NodeUnprepareResourcesRequest(claims=asked)).claims
    assert {uid: answer.error for uid, answer in gone.items()} == {claim.uid: "" for claim in asked}


def test_a_device_without_a_share_has_no_share_id(root: Path) -> None:
    cluster = MemoryCluster(allocated_claim("a", LAMPS, ["lamp-0"]))
    service = make(root, cluster)
    service.start()
    (ref,) = cluster.claims
    api = dra_v1_pb2
    with grpc.insecure_channel(f"unix:{socket_paths(root, LAMPS).dra}") as channel:
        prepare = DRAPluginStub(channel).NodePrepareResources
        claim = api.Claim(namespace=ref.namespace, name=ref.name, uid=ref.uid)
        (device,) = prepare(api.NodePrepareResourcesRequest(claims=[claim])).claims[ref.uid].devices
    service.stop()
    assert not device.HasField("share_id")


def test_get_info_has_name_endpoint_and_versions_newest_first(service: DriverService, root: Path) -> None:
    del service
    sockets = socket_paths(root, LAMPS)
    with grpc.insecure_channel(f"unix:{sockets.registration}") as channel:
        info = RegistrationStub(channel).GetInfo(registration.InfoRequest())
    assert (info.type, info.name, info.endpoint) == ("DRAPlugin", LAMPS, str(sockets.dra))
    assert list(info.supported_versions) == [
        "v1.DRAPlugin",
        "v1beta1.DRAPlugin",
        "v1.DRAResourceHealth",
        "v1alpha1.DRAResourceHealth",
    ]


@pytest.mark.parametrize("services", [("v1.DRAPlugin",), ("v1beta1.DRAPlugin",)])
def test_an_old_and_a_new_kubelet_prepare_and_unprepare(
    service: DriverService, root: Path, cluster: MemoryCluster, services: tuple[str, ...]
) -> None:
    kubelet = StandInKubelet(root / "plugins_registry", services)
    kubelet.register([LAMPS], PATIENCE)
    ref = next(iter(cluster.claims))
    pod = {ref: frozenset({LAMPS})}
    prepared = kubelet.prepare(pod)
    kubelet.restart()
    kubelet.register([LAMPS], PATIENCE)
    assert kubelet.prepare(pod) == prepared
    kubelet.unprepare(pod)
    kubelet.close()
    assert service.node.records() == ()


def test_a_rejected_registration_ends_the_process_with_kubelets_reason(root: Path, cluster: MemoryCluster) -> None:
    reasons: list[str] = []
    service = make(root, cluster, reasons.append)
    service.start()
    kubelet = StandInKubelet(root / "plugins_registry", ("v9.DRAPlugin",))
    with pytest.raises(KubeletError, match="is supported"):
        kubelet.register([LAMPS], PATIENCE)
    service.stop()
    assert len(reasons) == 1
    assert "kubelet rejected the driver lamps.example.com: none of the plugin's versions" in reasons[0]


@pytest.mark.usefixtures("service")
def test_the_socket_of_another_drivers_dead_process_is_skipped(root: Path) -> None:
    left = root / "plugins_registry" / "gone.example.com-reg.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(left))
    kubelet = StandInKubelet(root / "plugins_registry")
    kubelet.register([LAMPS], PATIENCE)
    with pytest.raises(KubeletError, match=r"^no registration socket of gone\.example\.com .*gone.* failed: "):
        kubelet.register(["gone.example.com"], seconds=0)
    kubelet.close()


def test_stale_sockets_are_replaced_and_removed_at_a_stop(root: Path, cluster: MemoryCluster) -> None:
    sockets = socket_paths(root, LAMPS)
    sockets.dra.parent.mkdir(parents=True)
    for path in (sockets.dra, sockets.registration):
        path.write_text("left by a crash")
    service = make(root, cluster)
    service.start()
    assert all(
        path.is_socket() and path.stat().st_mode & 0o777 == 0o600 for path in (sockets.dra, sockets.registration)
    )
    service.stop()
    assert not sockets.dra.exists()
    assert not sockets.registration.exists()


def test_a_second_driver_on_the_same_sockets_is_refused(
    service: DriverService, root: Path, cluster: MemoryCluster
) -> None:
    with pytest.raises(UsageError, match=r"another process serves lamps\.example\.com from"):
        make(root, cluster).start()
    kubelet = StandInKubelet(root / "plugins_registry")
    kubelet.register([LAMPS], PATIENCE)
    kubelet.close()
    assert service.listener.registration.registered


def test_a_missing_plugin_registry_is_reported_in_one_sentence(root: Path, cluster: MemoryCluster) -> None:
    (root / "plugins_registry").rmdir()
    with pytest.raises(DranodeError, match=r"plugins_registry.* cannot be"):
        make(root, cluster).start()


def test_a_socket_path_over_107_bytes_is_refused_with_the_arithmetic() -> None:
    root = Path("/" + "x" * 80)
    fitting = Path("/" + "x" * (107 - len("/plugins_registry/dra.cpu-reg.sock") - 1))
    assert socket_paths(fitting, "dra.cpu") == Sockets(
        fitting / "plugins/dra.cpu/dra.sock", fitting / "plugins_registry/dra.cpu-reg.sock"
    )
    with pytest.raises(UsageError, match="has 115 bytes, but a Unix socket's may have 107; choose a shorter"):
        socket_paths(root, "dra.cpu")


def test_socket_names_of_a_rolling_update_follow_the_go_helper() -> None:
    pod = "12345678-1234-1234-1234-123456789abc"
    sockets = socket_paths(Path("/var/lib/kubelet"), "dra.cpu", pod)
    assert sockets.dra.name == f"dra-{pod}.sock"
    assert sockets.registration.name == f"dra.cpu-{pod}-reg.sock"
    longer = socket_paths(Path("/var/lib/kubelet"), "a" * 36, pod).registration.name
    assert longer.startswith("a" * 36 + "-")
    assert longer.endswith("-reg.sock")
    assert len(longer) == 36 + 1 + 11 + len("-reg.sock")


@pytest.mark.parametrize(
    ("api", "stub"),
    [
        (drahealth_v1_pb2, DRAResourceHealthStub),
        (drahealth_v1alpha1_pb2, drahealth_v1alpha1_pb2_grpc.DRAResourceHealthStub),
    ],
    ids=["v1", "v1alpha1"],
)
def test_a_health_stream_begins_with_all_devices_and_sends_changes_at_once(
    service: DriverService, channel: grpc.Channel, api: ModuleType, stub: Any
) -> None:
    stream = stub(channel).NodeWatchResources(api.NodeWatchResourcesRequest())
    first = next(stream)
    assert [(one.device.device_name, one.health) for one in first.devices] == [(f"lamp-{n}", 1) for n in range(4)]
    service.listener.health.report([DeviceHealth("lamp-2", Health.UNHEALTHY, "the bulb has burnt out")])
    second = next(stream)
    assert [(one.device.device_name, one.health, one.message) for one in second.devices] == [
        ("lamp-2", 2, "the bulb has burnt out")
    ]
    stream.cancel()


def test_a_stopped_health_service_ends_its_streams(service: DriverService, channel: grpc.Channel) -> None:
    watch = DRAResourceHealthStub(channel).NodeWatchResources
    stream = watch(drahealth_v1_pb2.NodeWatchResourcesRequest())
    next(stream)
    service.listener.health.stop()
    assert next(stream, None) is None


def test_a_second_instance_with_the_same_pod_uid_is_refused(root: Path, cluster: MemoryCluster) -> None:
    first, second = make(root, cluster, pod_uid="uid-1"), make(root, cluster, pod_uid="uid-1")
    first.start()
    try:
        with pytest.raises(UsageError, match=r"another process listens on .*/dra-uid-1\.sock; stop it first"):
            second.start()
        kubelet = StandInKubelet(root / "plugins_registry")
        kubelet.register([LAMPS], PATIENCE)
        kubelet.close()
    finally:
        first.stop()


def test_a_standby_instance_knows_hardware_that_appeared_later(root: Path, cluster: MemoryCluster) -> None:
    lamps = [WatchedLamps(), WatchedLamps()]
    older, newer = (make(root, cluster, pod_uid=f"uid-{number}", lamps=each) for number, each in enumerate(lamps))
    kubelet = StandInKubelet(root / "plugins_registry")

    def knows(service: DriverService, lamp: str) -> bool:
        return service.node.inventory.device(lamp) is not None

    try:
        older.start()
        newer.start()
        lamps[1].count = 10
        eventually(lambda: knows(newer, "lamp-9"))
        assert not newer.active, "kubelet has not registered it"
        (answer,) = ask(root, "uid-1", "NodePrepareResources", list(cluster.claims)[1:])
        assert answer.error == ""
        kubelet.register([LAMPS], PATIENCE)
        eventually(lambda: newer.active)
        lamps[0].count = 11
        eventually(lambda: knows(older, "lamp-10"))
        assert not older.active, "it has handed over"
        lamps[1].count = 11
        eventually(lambda: knows(newer, "lamp-10"))
    finally:
        kubelet.close()
        newer.stop()
        older.stop()


def ask(root: Path, pod_uid: str, method: str, refs: list[ClaimRef]) -> list[Any]:
    """The answers of an instance for the claims."""
    claims = [dra_v1_pb2.Claim(namespace=ref.namespace, name=ref.name, uid=ref.uid) for ref in refs]
    request = getattr(dra_v1_pb2, f"{method}Request")(claims=claims)
    with grpc.insecure_channel(f"unix:{socket_paths(root, LAMPS, pod_uid).dra}") as channel:
        answer = getattr(DRAPluginStub(channel), method)(request, wait_for_ready=True)
    return list(answer.claims.values())
