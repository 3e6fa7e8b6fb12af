"""What a driver would refuse whatever its node holds: `explain` says so from a laptop, by the driver's own code."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dranode.api.documents import decode
from dranode.api.errors import ClaimError
from dranode.api.resource import ResourceClaim
from dranode.driver.claims.held import ClaimRef, Held
from dranode.driver.claims.prepare import Circumstances, decide_claim
from dranode.driver.plugins import load_plugins
from dranode.sanity.kinds import kind_of
from dranode.sim.machines.forms import open_machine
from dranode.tools.diagnosis.steps import StopCause
from dranode.tools.kubectl.plugin import plugin as kubectl_dranode
from tests.fakes.apiserver import Fault
from tests.fakes.pods import CPU, GPU, PodCluster, cpus, on_laptop, request, result, running, waiting

NAME = "app-cpus-x7k2p"
MISSPELT = {"apiVersion": "dra.cpu/v1alpha1", "kind": "CPUConfig", "sprad": True}


@pytest.fixture
def explain(cluster: PodCluster, tmp_path: Path) -> Callable[..., Any]:
    def run(subject: str = "app") -> Any:
        return json.loads(on_laptop(kubectl_dranode, cluster, tmp_path, "explain", subject, "-o", "json").stdout)

    return run


def given(
    cluster: PodCluster, *, config: Any = None, device: str = "cpudevnuma000", driver: str = CPU, phase: str = "Pending"
) -> None:
    """A pod on worker-1 with an allocated claim about which neither a driver nor an Event says anything yet."""
    taken = [result(device, driver, "worker-1", **({"consumedCapacity": {f"{CPU}/cpu": "2"}} if driver == CPU else {}))]
    asked = cpus("2") if driver == CPU else request(device_class=driver)
    cluster.made_claim("app", "cpus", asked, results=taken, node="worker-1", pods=["app"])
    if config is not None:
        entry = {"source": "FromClaim", "requests": [], "opaque": {"driver": driver, "parameters": config}}
        cluster.api.objects.edit(
            "resourceclaims", NAME, lambda one: one["status"]["allocation"]["devices"].update(config=[entry]), "default"
        )
    container = waiting("ContainerCreating") if phase == "Pending" else running()
    cluster.pod(
        templates={"cpus": "t"}, made={"cpus": NAME}, node="worker-1", containers=[container], status={"phase": phase}
    )


def causes(page: Any) -> list[tuple[str, str]]:
    return [(cause["cause"], cause["what"]) for cause in page["causes"]]


def sentence_of_prepare(cluster: PodCluster) -> str:
    """What the driver answers on a real machine where nothing is held."""
    (driver,) = load_plugins(("cpu",), open_machine("sockets=1,numa=2,cores=4"), {})
    claim = decode(ResourceClaim, cluster.api.objects.get(kind_of("resourceclaims"), "default", NAME))
    ref = ClaimRef("default", NAME, claim.metadata.uid)
    with pytest.raises(ClaimError) as raised:
        decide_claim(ref, claim, None, Circumstances(driver, driver.discover(), Held(), "worker-1"))
    return str(raised.value)


def test_a_configuration_that_the_driver_refuses_is_named_in_its_words(cluster: PodCluster, explain: Any) -> None:
    given(cluster, config=MISSPELT)
    (cause,) = causes(explain())
    assert cause == (StopCause.PREPARE_REFUSED, sentence_of_prepare(cluster))
    assert "sprad" in cause[1]


def test_a_device_that_the_node_does_not_publish_is_named_in_the_drivers_words(
    cluster: PodCluster, explain: Any
) -> None:
    given(cluster, device="cpudevnuma007")
    assert causes(explain()) == [(StopCause.PREPARE_REFUSED, sentence_of_prepare(cluster))]


def test_a_claim_by_name_is_judged_the_same_way(cluster: PodCluster, explain: Any) -> None:
    given(cluster, config=MISSPELT)
    assert (StopCause.PREPARE_REFUSED, sentence_of_prepare(cluster)) in causes(explain(f"claim/{NAME}"))


def test_what_only_the_node_can_judge_is_not_refused_beforehand(cluster: PodCluster, explain: Any) -> None:
    given(cluster)
    page = explain()
    assert StopCause.PREPARE_REFUSED not in dict(causes(page))
    assert page["ways"][1]["stations"][-1]["passed"] == "unseen"


def test_a_running_pod_is_not_judged_again(cluster: PodCluster, explain: Any) -> None:
    given(cluster, device="cpudevnuma007", phase="Running")
    assert causes(explain()) == []


def test_devices_are_not_called_missing_if_slices_are_missing(cluster: PodCluster, explain: Any) -> None:
    given(cluster, device="cpudevnuma007")
    cluster.api.faults.append(Fault(path="/resourceslices", status=403, times=99, body='{"message":"no"}'))
    page = explain()
    assert StopCause.PREPARE_REFUSED not in dict(causes(page))
    assert any("the ResourceSlices" in sentence for sentence in page["unasked"])
    cluster.api.faults.clear()
    (name,) = [
        one["metadata"]["name"]
        for one in cluster.api.objects.all("resourceslices")
        if one["spec"]["driver"] == CPU and one["spec"]["nodeName"] == "worker-1"
    ]
    cluster.api.objects.edit("resourceslices", name, lambda one: one["spec"]["pool"].update(resourceSliceCount=2))
    assert StopCause.PREPARE_REFUSED not in dict(causes(explain()))


def test_a_driver_that_is_not_installed_here_is_not_judged(cluster: PodCluster, explain: Any) -> None:
    given(cluster, driver=GPU, device="gpu-77", config={"kind": "Whatever"})
    assert StopCause.PREPARE_REFUSED not in dict(causes(explain()))
