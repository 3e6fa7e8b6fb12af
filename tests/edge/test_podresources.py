"""The driver's questions to kubelet, and commands' calls to a driver: peers that are away, and large answers."""

from pathlib import Path

import pytest

from dranode.api.resource import ResourceClaimConsumerReference as Consumer
from dranode.driver.claims.held import ClaimRef
from dranode.driver.kubelet.podresources import PodResources, PodResourcesError
from dranode.tools.readers.node import unprepare
from tests.fakes.lifecycle import KubeletPods


def pods(*names: str) -> tuple[Consumer, ...]:
    return tuple(Consumer(resource="pods", name=name, uid=f"uid-{name}") for name in names)


def test_an_unreachable_kubelet_is_reported_in_one_line(tmp_path: Path) -> None:
    asked = PodResources(tmp_path / "kubelet.sock")
    with pytest.raises(PodResourcesError, match=r"^kubelet's pod-resources at \S+ does not answer: [^\n<]+$"):
        asked.claims("dra.cpu")


def test_a_kubelet_that_comes_back_is_asked_again_at_once(tmp_path: Path) -> None:
    """During a restart or an upgrade of kubelet, gRPC alone might not try again for two minutes."""
    asked = PodResources(tmp_path / "kubelet.sock")
    for _ in range(3):
        assert asked.in_use("dra.cpu", ClaimRef("default", "a", "uid-a")) is None
    kubelet = KubeletPods(tmp_path / "kubelet.sock")
    kubelet.run("pod-a", "a", "uid-a")
    try:
        assert asked.in_use("dra.cpu", ClaimRef("default", "a", "uid-a"))
    finally:
        kubelet.close()


def test_the_use_of_a_claim_is_unknown_if_kubelet_does_not_list_its_pod(tmp_path: Path) -> None:
    """A restarted kubelet does not list all running pods yet, and a force-deleted pod may still run."""
    asked, mine = PodResources(tmp_path / "kubelet.sock"), ClaimRef("default", "a", "uid-a")
    kubelet = KubeletPods(tmp_path / "kubelet.sock")
    try:
        assert asked.in_use("dra.cpu", mine, pods("pod-a")) is None
        kubelet.run("pod-a", "b", "uid-b")
        assert asked.in_use("dra.cpu", mine, pods("pod-a")) is False
        assert asked.in_use("dra.cpu", mine, pods("pod-a", "pod-b")) is None
        assert asked.in_use("dra.cpu", mine) is None
        kubelet.run("pod-b", "a", "uid-a")
        assert asked.in_use("dra.cpu", mine, pods("pod-a")) is True
    finally:
        kubelet.close()


def test_the_use_of_a_pod_groups_claim_is_unknown_unless_a_pod_uses_it(tmp_path: Path) -> None:
    """The group's pods are not on record, and a running pod with the group's name is something else."""
    asked, mine = PodResources(tmp_path / "kubelet.sock"), ClaimRef("default", "a", "uid-a")
    group = Consumer(api_group="scheduling.k8s.io", resource="podgroups", name="crew", uid="uid-crew")
    kubelet = KubeletPods(tmp_path / "kubelet.sock")
    try:
        kubelet.run("crew", "b", "uid-b")
        kubelet.run("pod-a", "b", "uid-b")
        assert asked.in_use("dra.cpu", mine, (group,)) is None
        assert asked.in_use("dra.cpu", mine, (*pods("pod-a"), group)) is None
        kubelet.run("crew-0", "a", "uid-a")
        assert asked.in_use("dra.cpu", mine, (group,)) is True
    finally:
        kubelet.close()


def test_an_answer_of_many_megabytes_is_read(tmp_path: Path) -> None:
    """gRPC's default limit is 4 MiB; kubelet has none, and a single retrying pod has produced 17 MiB."""
    kubelet = KubeletPods(tmp_path / "kubelet.sock")
    kubelet.run("pod-a", "a", "uid-a")
    kubelet.run("pod-b", "b" * (20 << 20), "uid-b")
    asked = PodResources(kubelet.socket)
    try:
        assert [use.pod for use in asked.claims("dra.cpu")] == ["pod-a", "pod-b"]
    finally:
        kubelet.close()


def test_a_driver_that_does_not_answer_unprepare_is_reported_in_one_line(tmp_path: Path) -> None:
    endpoint = tmp_path / "dra.sock"
    (error,) = unprepare(endpoint, [ClaimRef("default", "a", "uid-a")]).values()
    beginning, end = f"the driver at {endpoint} does not answer: ", str(error)
    assert end.startswith(beginning)
    assert "\n" not in end
    assert "<" not in end
