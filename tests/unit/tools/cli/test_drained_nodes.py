"""The wait for drained nodes ends when every pod of the DaemonSet is Ready, and names the nodes that are not."""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from click.testing import CliRunner

from dranode.api.errors import DranodeError, UsageError
from dranode.driver.kube.client import Client
from dranode.driver.kube.http1 import Outgoing
from dranode.tools.cli.drain import DrainingPods, command
from dranode.tools.readers.checkpoint import has_rolled_out, have_failed, undrained

LEFT = "default/a is in use"


def daemonset(ready: int, nodes: int, *, generation: int = 1, observed: int = 1) -> dict[str, Any]:
    return {
        "metadata": {"generation": generation},
        "spec": {"selector": {"matchLabels": {"app.kubernetes.io/name": "drain"}}},
        "status": {"observedGeneration": observed, "numberReady": ready, "desiredNumberScheduled": nodes},
    }


def pod(node: str, *, ready: bool = False, **status: Any) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": str(ready)}]
    return {"spec": {"nodeName": node}, "status": {"conditions": conditions, "phase": "Pending", **status}}


def failed(message: str, where: str = "state") -> list[dict[str, Any]]:
    other = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}} if where == "lastState" else {}
    return [{**other, "restartCount": 0, where: {"terminated": {"exitCode": 1, "message": message}}}]


@dataclass
class Answer:
    data: bytes
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Server:
    """An API server with a DaemonSet, which changes each time it is read, and its pods."""

    daemonsets: list[dict[str, Any]]
    pods: list[dict[str, Any]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def send(self, outgoing: Outgoing) -> Answer:
        self.asked.append(outgoing.path)
        if "/daemonsets/" in outgoing.path:
            return Answer(
                json.dumps(self.daemonsets.pop(0) if len(self.daemonsets) > 1 else self.daemonsets[0]).encode()
            )
        return Answer(json.dumps({"items": self.pods}).encode())


@dataclass
class Clock:
    seconds: float = 0.0

    def __call__(self) -> float:
        return self.seconds

    def rest(self, seconds: float) -> None:
        self.seconds += seconds


def draining(server: Server) -> DrainingPods:
    clock = Clock()
    return DrainingPods(Client(server), "dranode", "dranode-drain", clock=clock, sleep=clock.rest)


def test_the_wait_ends_as_soon_as_all_pods_are_ready() -> None:
    server = Server([{**daemonset(0, 0), "status": {}}, daemonset(0, 2), daemonset(1, 2), daemonset(2, 2)])
    assert draining(server).wait(60) == 2
    assert [path.rpartition("/")[2].partition("?")[0] for path in server.asked] == [
        *("dranode-drain", "pods", "dranode-drain", "pods", "dranode-drain", "pods", "dranode-drain")
    ]


def test_nodes_not_drained_in_time_are_named_with_what_is_left() -> None:
    pods = [pod("worker-1", ready=True), pod("worker-2", initContainerStatuses=failed(LEFT))]
    server = Server([daemonset(1, 2)], pods)
    with pytest.raises(DranodeError, match=rf"^not drained: node worker-2: {LEFT}$"):
        draining(server).wait(60)
    assert server.asked[-1].endswith("/pods?labelSelector=app.kubernetes.io%2Fname%3Ddrain")


def test_the_wait_ends_once_every_node_has_failed_often_enough() -> None:
    done = pod("worker-1", ready=True)
    first, second = ([{**each, "restartCount": 3} for each in failed(LEFT)] for _ in range(2))
    second[0]["restartCount"] = 2
    waiting = [done, pod("worker-2", initContainerStatuses=first), pod("worker-3", initContainerStatuses=second)]
    assert not have_failed([done], 3)
    assert not have_failed(waiting, 3)
    assert not have_failed([pod("worker-4")], 3)
    server = Server([daemonset(1, 2)], waiting[:2])
    with pytest.raises(DranodeError, match="node worker-2"):
        draining(server).wait(float("inf"))


def test_a_daemonset_without_its_pods_is_not_drained() -> None:
    with pytest.raises(DranodeError, match="pods of the DaemonSet are missing"):
        draining(Server([daemonset(0, 2)])).wait(1)


@pytest.mark.parametrize(
    ("document", "done"),
    [
        (daemonset(2, 2), True),
        (daemonset(0, 0), True),
        (daemonset(1, 2), False),
        (daemonset(2, 2, generation=2), False),
        ({"metadata": {"generation": 1}}, False),
        ({"metadata": {"generation": 1}, "status": {"observedGeneration": 1}}, False),
    ],
)
def test_only_a_status_of_the_current_generation_counts(document: dict[str, Any], *, done: bool) -> None:
    assert has_rolled_out(document) is done


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ({"initContainerStatuses": failed(f"Error:\n  {LEFT}\n")}, f"Error: {LEFT}"),
        ({"initContainerStatuses": failed(LEFT, "lastState")}, LEFT),
        ({"initContainerStatuses": failed("")}, "no message"),
        (
            {"initContainerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no image"}}}]},
            "ImagePullBackOff no image",
        ),
        (
            {
                "initContainerStatuses": [{"state": {"terminated": {"exitCode": 0}}}],
                "containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}],
            },
            "ContainerCreating",
        ),
        (
            {
                "initContainerStatuses": [{"name": "drain", "state": {"running": {}}}],
                "containerStatuses": [{"name": "drained", "state": {"waiting": {"reason": "PodInitializing"}}}],
            },
            "container drain still runs",
        ),
        ({}, "its pod is Pending"),
    ],
)
def test_the_last_reason_is_shown_for_a_node_that_is_not_drained(status: dict[str, Any], reason: str) -> None:
    assert list(undrained([pod("worker", **status)])) == [f"node worker: {reason}"]


@pytest.mark.parametrize("name", ["dranode-drain", "/x", "n/"])
def test_a_daemonset_without_a_namespace_is_refused(name: str) -> None:
    ran = CliRunner().invoke(command, ["--await-daemonset", name])
    assert isinstance(ran.exception, UsageError)
    assert "NAMESPACE/NAME" in str(ran.exception)
