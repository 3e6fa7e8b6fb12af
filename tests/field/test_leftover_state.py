"""Bug reports about what a process, a pod or a node left behind."""

import json
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dranode.driver.kubelet.listener import Listener
from dranode.driver.kubelet.sockets import socket_paths
from dranode.tools.cli.explain import command
from tests.fakes.apiserver import ApiServer
from tests.fakes.pods import GPU, PodCluster, request, result

DRIVER = "lamps.example.com"
KILLED, OTHER, NEW = (f"{number}0000000-0000-0000-0000-000000000000" for number in range(3))


@pytest.fixture
def root() -> Iterator[Path]:
    # pytest's own folders can be too long for a socket path.
    with tempfile.TemporaryDirectory(prefix="dranode-") as name:
        (Path(name) / "plugins" / DRIVER).mkdir(parents=True)
        (Path(name) / "plugins_registry").mkdir()
        yield Path(name)


def bound(path: Path) -> socket.socket:
    """A socket of another process, which accepts callers only once it listens."""
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(path))
    return made


def test_a_start_removes_the_sockets_of_instances_that_were_killed_and_no_others(root: Path) -> None:
    """Each pod of a rolling update has sockets of its own, and kubelet dials those of a dead pod forever."""
    dead = socket_paths(root, DRIVER, KILLED)
    for path in dead:
        bound(path).close()
    # Only sockets named after pods of this driver are its own, dead or not.
    foreign = socket_paths(root, f"{DRIVER}-too", KILLED).registration
    bound(foreign).close()
    living = [bound(path) for path in socket_paths(root, DRIVER, OTHER)]
    for each in living:
        each.listen()
    listener = Listener(
        DRIVER, "node", socket_paths(root, DRIVER, NEW), root / "plugins" / DRIVER, pytest.fail, rolling=True
    )
    listener.start()
    try:
        assert [path.exists() for path in dead] == [False, False]
        staying = (foreign, *socket_paths(root, DRIVER, OTHER), *listener.sockets)
        assert [path.exists() for path in staying] == [True] * 5
    finally:
        listener.close()
        for each in living:
            each.close()


def causes(api: ApiServer, folder: Path, subject: str) -> list[Any]:
    laptop = {"KUBERNETES_SERVICE_HOST": "", "KUBECONFIG": api.kubeconfig(folder / "kubeconfig"), "HOME": str(folder)}
    asked = [subject, "-o", "json", "--node-name", "laptop", "--kubelet-root", str(folder)]
    page: dict[str, Any] = json.loads(CliRunner(env=laptop).invoke(command, asked).stdout)
    return [one["cause"] for one in page["causes"]]


@pytest.mark.parametrize(
    ("pods", "left"),
    [
        ({}, True),
        ({"app": {"phase": "Succeeded"}}, True),
        ({"app": {"phase": "Running"}}, False),
        ({"app": {"phase": "Failed"}, "late": {"phase": "Pending"}}, False),
    ],
    ids=["gone", "ended", "running", "one waits"],
)
def test_a_claim_that_holds_devices_for_deleted_pods_says_who_should_release_it(
    tmp_path: Path, pods: dict[str, dict[str, str]], *, left: bool
) -> None:
    with ApiServer() as api:
        cluster = PodCluster(api)
        users = ["app", *(name for name in pods if name != "app")]
        gpu = [result("gpu-0", GPU, "worker-1")]
        cluster.claim("mine", request(device_class=GPU), results=gpu, node="worker-1", pods=users)
        for name, status in pods.items():
            cluster.pod(name, claims={"gpu": "mine"}, node="worker-1", status=status)
        assert ("claim-not-released" in causes(api, tmp_path, "claim/mine")) == left


def test_a_recreated_pod_does_not_use_the_claim_of_the_earlier_pod(tmp_path: Path) -> None:
    with ApiServer() as api:
        cluster = PodCluster(api)
        gpu = [result("gpu-0", GPU, "worker-1")]
        cluster.claim("mine", request(device_class=GPU), results=gpu, node="worker-1", pods=["app"])
        earlier = {"resource": "pods", "name": "app", "uid": "earlier"}
        api.objects.edit("resourceclaims", "mine", lambda one: one["status"].update(reservedFor=[earlier]), "default")
        cluster.pod("app", node="worker-1", status={"phase": "Running"})
        assert causes(api, tmp_path, "claim/mine") == ["claim-not-released"]
