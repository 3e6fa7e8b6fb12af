"""What kubelet is asked and what it asks of a driver, asked by us: who is not there, and an answer that is large."""

from __future__ import annotations

from pathlib import Path

import pytest

from dranode.api.resource import ResourceClaimConsumerReference as Consumer
from dranode.driver.claims.held import ClaimRef
from dranode.driver.kubelet.podresources import PodResources, PodResourcesError
from dranode.tools.readers.node import unprepare
from tests.fakes.lifecycle import KubeletPods


def pods(*names: str) -> tuple[Consumer, ...]:
    return tuple(Consumer(resource="pods", name=name, uid=f"uid-{name}") for name in names)


def test_a_kubelet_that_is_away_is_reported_in_one_line(tmp_path: Path) -> None:
    asked = PodResources(tmp_path / "kubelet.sock")
    with pytest.raises(PodResourcesError, match=r"^kubelet's pod-resources at \S+ does not answer: [^\n<]+$"):
        asked.claims("dra.cpu")


def test_a_kubelet_that_comes_back_answers_the_next_question(tmp_path: Path) -> None:
    """Kubelet's own restart, or its upgrade: gRPC alone would not try again for up to two minutes."""
    asked = PodResources(tmp_path / "kubelet.sock")
    for _ in range(3):
        assert asked.in_use("dra.cpu", ClaimRef("default", "a", "uid-a")) is None
    kubelet = KubeletPods(tmp_path / "kubelet.sock")
    kubelet.run("pod-a", "a", "uid-a")
    try:
        assert asked.in_use("dra.cpu", ClaimRef("default", "a", "uid-a"))
    finally:
        kubelet.close()


def test_a_kubelet_that_does_not_list_a_pod_of_a_claim_has_said_nothing_about_it(tmp_path: Path) -> None:
    """One that has just started does not list all that runs, and a pod that was deleted by force may still run."""
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


def test_of_a_claim_of_a_pod_group_kubelet_can_only_say_that_it_is_in_use(tmp_path: Path) -> None:
    """Which pods the group has is not on record; one of its name that runs is another thing."""
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
    """gRPC's own limit is 4 MiB; kubelet sets none for what it sends, and 17 MiB of one pod that retries were seen."""
    kubelet = KubeletPods(tmp_path / "kubelet.sock")
    kubelet.run("pod-a", "a", "uid-a")
    kubelet.run("pod-b", "b" * (20 << 20), "uid-b")
    asked = PodResources(kubelet.socket)
    try:
        assert [use.pod for use in asked.claims("dra.cpu")] == ["pod-a", "pod-b"]
    finally:
        kubelet.close()


def test_a_driver_that_does_not_answer_an_unprepare_is_reported_in_one_line(tmp_path: Path) -> None:
    endpoint = tmp_path / "dra.sock"
    (error,) = unprepare(endpoint, [ClaimRef("default", "a", "uid-a")]).values()
    beginning, end = f"the driver at {endpoint} does not answer: ", str(error)
    assert end.startswith(beginning)
    assert "\n" not in end
    assert "<" not in end
