"""A claim that is reserved for a PodGroup instead of its pods (KEP-5729), in every view of a cluster."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dranode.sim.cli.report import command as report
from dranode.tools.diagnosis.steps import StopCause
from dranode.tools.kubectl.plugin import plugin
from tests.fakes.pods import CPU, FAILED_PREPARE, GPU, PodCluster, cpus, request, result, waiting

MEMBER: dict[str, Any] = {"schedulingGroup": {"podGroupName": "crew"}}
OWNER = {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "name": "crew", "uid": "u", "controller": True}
CREATING = [waiting("ContainerCreating")]
TAKEN = [result("cpudevnuma000", CPU, "worker-1", consumedCapacity={f"{CPU}/cpu": "8"})]


@pytest.fixture
def run(cluster: PodCluster, tmp_path: Path) -> Callable[..., str]:
    """Runs a command of the kubectl plug-in, or `report`, and returns its output."""
    kubeconfig = cluster.api.kubeconfig(tmp_path / "kubeconfig")
    laptop = {"KUBERNETES_SERVICE_HOST": "", "KUBECONFIG": kubeconfig, "HOME": str(tmp_path)}

    def ask(*arguments: str) -> str:
        if arguments[0] == "report":
            page = tmp_path / "page.html"
            ran = CliRunner(env=laptop).invoke(report, ["--kubeconfig", kubeconfig, "--html", str(page)])
            assert ran.exit_code == 0, ran.output
            (text,) = re.findall(r'id="data">(.*?)</script>', page.read_text(), re.DOTALL)
            return str(text)
        ran = CliRunner(env=laptop).invoke(plugin, arguments)
        if ran.exception is not None and not isinstance(ran.exception, SystemExit):
            raise ran.exception
        return ran.output

    return ask


def grouped(cluster: PodCluster) -> None:
    """The claim `team` of the PodGroup `crew`: `a` is on the claim's node, `b` waits, `stranger` is in no group."""
    cluster.claim("team", cpus("8"), results=TAKEN, node="worker-1", groups=["crew"])
    cluster.pod("a", claims={"cpus": "team"}, node="worker-1", containers=CREATING, **MEMBER)
    cluster.pod("b", claims={"cpus": "team"}, **MEMBER)
    cluster.claim("other", cpus("8"))
    cluster.pod("stranger", claims={"cpus": "other"}, nodeSelector={"kubernetes.io/hostname": "worker-1"})


def causes(page: str) -> list[str]:
    return [each["cause"] for each in json.loads(page)["causes"]]


@pytest.mark.parametrize(
    "view",
    [
        ("explain", "pod/a"),
        ("explain", "pod/stranger"),
        ("explain", "claim/team"),
        ("explain", "claim/team", "-o", "json"),
        ("claims",),
        ("claims", "-o", "json"),
        ("devices", "-o", "wide"),
        ("devices", "-o", "json"),
        ("report",),
    ],
    ids=" ".join,
)
def test_no_view_mistakes_a_pod_group_for_a_pod(cluster: PodCluster, run: Any, view: tuple[str, ...]) -> None:
    grouped(cluster)
    # Of the page, only what it says about claims, where pods are named next to the group.
    said = re.findall(r"(\S* ?)\bcrew\b", run(*view))
    assert said
    assert all(before.endswith("podgroup ") for before in said), said


def test_a_claim_of_the_pods_group_is_reserved_for_the_pod(cluster: PodCluster, run: Any) -> None:
    grouped(cluster)
    assert causes(run("explain", "pod/a", "-o", "json")) == []


def test_a_claim_of_another_group_is_not_reserved_for_the_pod(cluster: PodCluster, run: Any) -> None:
    cluster.claim("team", cpus("8"), results=TAKEN, node="worker-1", groups=["others"])
    cluster.pod("a", claims={"cpus": "team"}, node="worker-1", containers=CREATING, **MEMBER)
    cluster.pod("b", claims={"cpus": "team"}, node="worker-1", containers=CREATING)
    for pod in ("a", "b"):
        assert causes(run("explain", f"pod/{pod}", "-o", "json")) == [StopCause.CLAIM_NOT_RESERVED]


@pytest.mark.parametrize(("group", "cause"), [("crew", []), ("others", [StopCause.CLAIM_OF_ANOTHER_POD])])
def test_a_claim_from_a_template_is_the_pods_if_its_group_owns_it(
    cluster: PodCluster, run: Any, group: str, cause: list[str]
) -> None:
    owner = {**OWNER, "name": group}
    cluster.claim("crew-c-x7k2p", results=TAKEN, node="worker-1", groups=["crew"], ownerReferences=[owner])
    made = {"cpus": "crew-c-x7k2p"}
    cluster.pod("a", templates={"cpus": "t"}, made=made, node="worker-1", containers=CREATING, **MEMBER)
    assert causes(run("explain", "pod/a", "-o", "json")) == cause


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("pod a (uid-a) is not allowed to use ResourceClaim team (uid-team)", StopCause.CLAIM_NOT_RESERVED),
        ("ResourceClaim default/team was not created for Pod default/a", StopCause.CLAIM_OF_ANOTHER_POD),
    ],
)
def test_a_kubelet_that_knows_no_claims_of_groups_is_named(
    cluster: PodCluster, run: Any, said: str, cause: StopCause
) -> None:
    grouped(cluster)
    cluster.event("FailedPrepareDynamicResources", f"{FAILED_PREPARE}{said}", pod="a")
    page = run("explain", "pod/a", "-o", "json")
    assert causes(page) == [cause]
    assert "is reserved for the pod's PodGroup crew, but kubelet on worker-1 does not let the pod use it" in page
    assert "enable DRAWorkloadResourceClaims in kubelet too" in page


def test_the_pods_of_a_groups_claim_are_followed(cluster: PodCluster, run: Any) -> None:
    grouped(cluster)
    traces = json.loads(run("explain", "claim/team", "-o", "json"))["ways"]
    assert {"pod default/a", "pod default/b"} <= {trace["about"] for trace in traces}


def test_the_pods_of_a_claim_that_was_made_for_a_group_are_followed(cluster: PodCluster, run: Any) -> None:
    cluster.claim("crew-c-x7k2p", results=TAKEN, node="worker-1", pods=["z"], groups=["crew"], ownerReferences=[OWNER])
    made = {"cpus": "crew-c-x7k2p"}
    cluster.pod("z", claims={"cpus": "crew-c-x7k2p"}, node="worker-1", containers=CREATING)
    cluster.pod("a", templates={"cpus": "t"}, made=made, node="worker-1", containers=CREATING, **MEMBER)
    traces = json.loads(run("explain", "claim/crew-c-x7k2p", "-o", "json"))["ways"]
    assert {"pod default/a", "pod default/z"} <= {trace["about"] for trace in traces}


def test_pods_of_a_group_wait_while_they_have_no_node(cluster: PodCluster, run: Any) -> None:
    grouped(cluster)
    (team,) = (claim for claim in json.loads(run("claims", "-o", "json"))["items"] if claim["name"] == "team")
    assert (team["pods"], team["waiting"]) == (["podgroup crew", "a"], ["b"])


def test_a_full_claim_is_not_full_for_the_pods_of_its_group(cluster: PodCluster, run: Any) -> None:
    pods = [f"p{number}" for number in range(255)]
    cluster.claim("team", cpus("8"), results=TAKEN, node="worker-1", pods=pods, groups=["crew"])
    cluster.pod("a", claims={"cpus": "team"}, **MEMBER)
    cluster.pod("late", claims={"cpus": "team"})
    assert StopCause.CLAIM_FULL not in causes(run("explain", "pod/a", "-o", "json"))
    said = run("explain", "pod/late", "-o", "json")
    assert causes(said) == [StopCause.CLAIM_FULL]
    assert "is reserved for 256 pods and PodGroups, but 256 may share one" in said


def test_the_holder_of_a_groups_device_is_the_group(cluster: PodCluster, run: Any) -> None:
    results = [result("gpu-0", GPU, "worker-1")]
    cluster.claim("g", request(device_class=GPU), results=results, node="worker-1", groups=["crew"])
    (device,) = (each for each in json.loads(run("devices", "-o", "json"))["items"] if each["claims"])
    assert device["claims"][0]["pods"] == ["podgroup crew"]
