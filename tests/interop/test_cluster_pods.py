"""What pods may ask for, and interruptions of kubelet, runtime, driver and node, under real kubelets."""

import json
from pathlib import Path

import pytest
import yaml

from tests.interop.api import Document
from tests.interop.cluster import STATIC_PODS, Cluster
from tests.interop.cluster_node import MAIN, LocalNode
from tests.interop.cluster_pods import claim, claim_spec, document, exactly, looker, pod, sleeper, template
from tests.interop.cluster_rows import why_no_cluster
from tests.interop.cri import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.skipif(bool(why_no_cluster()), reason=why_no_cluster() or "-")]

# Releases in which extended resources and device health are off by default.
_OLDER = ("1.34", "1.35")
# Releases whose API server mistakes the claims of a container that is resized for a change.
_CLAIMS_ARE_CHANGES = ("1.34", "1.35", "1.36")
_DAEMONSET = "daemonset/dranode"
# Conditions of pods in the order in which they become true; "" stands for none.
_MOMENTS = ("", "PodScheduled", "PodReadyToStartContainers", "Ready")
_TEAM: Document = {"cpus": {"resourceClaimName": "team"}}


def test_the_containers_of_a_claim_run_on_its_cpus_and_see_which_they_are(cluster: Cluster) -> None:
    cluster.install()
    online = cluster.node.online()
    beside = sleeper("beside", sidecar=True, claims=["cpus"])
    cluster.apply(
        claim("team", config={"sharing": "pod"}),
        pod(
            "left",
            [sleeper(claims=["cpus"]), sleeper("plain")],
            claims=_TEAM,
            first=[looker("look", claims=["cpus"]), beside],
        ),
    )
    cluster.runs("left")
    held = cluster.cpus("left")
    assert len(held) == 1
    assert cluster.cpus("left", "beside") == held
    cluster.wait(lambda: cluster.cpus("left", "plain") == online - held, "the container without a claim is apart")
    # The claim is prepared and reserved for the other pod only, so this pod waits for it.
    cluster.apply(pod("right", claims=_TEAM))
    cluster.wait(
        lambda: any("in use by" in said for said in cluster.events("right")), "the other pod is told why it waits"
    )

    statuses = cluster.pods()["left"]["status"]
    seen = dict(
        line.split(": ", 1)
        for line in statuses["initContainerStatuses"][0]["state"]["terminated"]["message"].splitlines()
    )
    assert seen["allowed"] == seen["told"] == str(held)
    described, _ = json.JSONDecoder().raw_decode(seen["described"])
    (device,) = described["requests"][0]["devices"]
    assert device["attributes"]["dra.cpu/cpuset"] == {"string": str(held)}

    def ready() -> bool:
        devices = cluster.claims()["team"]["status"].get("devices", [])
        return any(
            each["type"] == "Ready" and each["status"] == "True" for one in devices for each in one["conditions"]
        )

    cluster.wait(ready, "the claim's status has its devices")
    if cluster.release not in _OLDER:
        cluster.wait(lambda: health(cluster, "left") == {"Healthy"}, "kubelet says how the devices are")

    cluster.delete("left")
    cluster.runs("right")
    assert cluster.cpus("right") == held
    cluster.delete("right")
    assert cluster.dranode("claims", "-o", "json").strip() == "[]"


def health(cluster: Cluster, name: str) -> set[str]:
    """Return the health of a pod's devices in its status."""
    return {
        resource["health"]
        for container in cluster.pods()[name]["status"]["containerStatuses"]
        for status in container.get("allocatedResourcesStatus", [])
        for resource in status["resources"]
    }


def test_claims_are_had_in_every_way_in_which_a_pod_may_ask_for_them(cluster: Cluster) -> None:
    cluster.install()
    online = cluster.node.online()
    cluster.node.output(f"mkdir -p {cluster.node.place}/{STATIC_PODS}")
    text = yaml.safe_dump(pod("static"))
    cluster.node.output(f"cat > {cluster.node.place}/{STATIC_PODS}/pod.yaml <<'end'\n{text}end\n")
    cluster.runs("static-interop")

    def have_one(name: str) -> None:
        cluster.runs(name)
        held = cluster.cpus(name)
        assert len(held) == 1
        cluster.wait(lambda: cluster.cpus("static-interop") == online - held, "the static pod leaves the claim's CPU")
        cluster.delete(name)

    alternatives = {"firstAvailable": [{"name": "many", **exactly(4096)}, {"name": "one", **exactly(1)}]}
    cluster.apply(
        document("ResourceClaim", "either", claim_spec(alternatives)),
        pod("either", claims={"cpus": {"resourceClaimName": "either"}}),
    )
    have_one("either")

    cluster.apply(template("made"), pod("made", claims={"cpus": {"resourceClaimTemplateName": "made"}}))
    have_one("made")
    cluster.wait(lambda: not any(name.startswith("made-") for name in cluster.claims()), "the claim goes with its pod")

    if cluster.release not in _OLDER:
        described = yaml.safe_load(cluster.kubectl("get", "deviceclass", "dra.cpu", "-o", "yaml"))
        spec = described["spec"] | {"extendedResourceName": "interop.example/cpu"}
        cluster.apply(
            {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "extended"}, "spec": spec}
        )
        amount = {"interop.example/cpu": "1"}
        cluster.apply(pod("extended", [sleeper(requests=amount, limits=amount)]))
        have_one("extended")

    # A claim with admin access holds nothing: its pod leaves the CPUs of other claims like any pod.
    namespace = {"name": "admins", "labels": {"resource.kubernetes.io/admin-access": "true"}}
    cluster.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": namespace},
        document("ResourceClaim", "watch", claim_spec({"exactly": exactly(1, adminAccess=True)}), "admins"),
        pod("watch", claims={"cpus": {"resourceClaimName": "watch"}}, namespace="admins"),
    )
    cluster.wait(lambda: cluster.phase("watch", "admins") == "Running", "the administrator's pod runs")
    cluster.run("holder", cpus=1)
    held = cluster.cpus("holder")
    assert cluster.cpus("static-interop").isdisjoint(held)
    assert cluster.cpus("watch", namespace="admins") == online - held
    cluster.kubectl("delete", "namespace", "admins")
    assert cluster.cpus("holder") == held
    cluster.delete("holder")

    # The driver's message is in the pod's Events, and a refused claim can be deleted.
    cluster.apply(
        claim("refused", config={"isolation": "quiet"}), pod("refused", claims={"c": {"resourceClaimName": "refused"}})
    )
    cluster.wait(lambda: any("--max-isolation" in each for each in cluster.events("refused")), "the refusal is told")
    cluster.delete("refused")
    assert cluster.dranode("claims", "-o", "json").strip() == "[]"


def test_a_claim_over_two_drivers_stays_as_it_is_while_its_pod_is_changed(cluster: Cluster) -> None:
    cluster.install("memory")
    online = cluster.node.online()
    memory = {"deviceClassName": "dra.memory", "capacity": {"requests": {"size": "64Mi"}}}
    requests = [{"name": "cpus", "exactly": exactly(1)}, {"name": "memory", "exactly": memory}]
    node = {"requests": ["cpus", "memory"], "matchAttribute": "resource.kubernetes.io/numaNode"}
    little, more = {"cpu": "50m"}, {"cpu": "100m"}
    cluster.apply(
        document("ResourceClaim", "both", {"devices": {"requests": requests, "constraints": [node]}}),
        pod("both", [sleeper(claims=["local"], requests=little)], claims={"local": {"resourceClaimName": "both"}}),
        pod("plain", [sleeper(requests=little)]),
    )
    cluster.runs("both")
    cluster.runs("plain")
    held = cluster.cpus("both")
    assert len(held) == 1
    cluster.wait(lambda: cluster.cpus("plain") == online - held, "the pod without a claim is apart")
    prepared = json.loads(cluster.dranode("claims", "-o", "json"))
    assert sorted(each["driver"] for each in prepared) == ["dra.cpu", "dra.memory"]
    devices = cluster.claims()["both"]["status"]["allocation"]["devices"]["results"]
    assert sorted(each["driver"] for each in devices) == ["dra.cpu", "dra.memory"]

    # A runtime writes all of a container's resources again when its requests change in place.
    for name in ("plain",) if cluster.release in _CLAIMS_ARE_CHANGES else ("plain", "both"):
        change(cluster, name, "resize", {"containers": [{"name": MAIN, "resources": {"requests": more}}]})
        cluster.wait(lambda name=name: requested(cluster, name) == more, f"{name} has what it was given in place")  # type: ignore[misc]
    # An ephemeral container has none of the pod's claims.
    change(cluster, "both", "ephemeralcontainers", {"ephemeralContainers": [sleeper("guest")]})
    cluster.wait(lambda: cluster.cpus("both", "guest") == online - held, "the guest is apart")
    assert cluster.cpus("both") == held
    assert cluster.cpus("plain") == online - held
    assert not restarts(cluster, "both")
    assert not restarts(cluster, "plain")
    cluster.delete("both")
    assert cluster.dranode("claims", "-o", "json").strip() == "[]"


def requested(cluster: Cluster, name: str) -> Document:
    """Return the requests of a pod's container that kubelet has applied."""
    (status,) = cluster.pods()[name]["status"]["containerStatuses"]
    requests: Document = status.get("resources", {}).get("requests", {})
    return requests


def change(cluster: Cluster, name: str, subresource: str, spec: Document) -> None:
    """Patch a running pod."""
    patch = json.dumps({"spec": spec})
    cluster.kubectl("patch", "pod", name, f"--subresource={subresource}", "--type=strategic", f"--patch={patch}")


@pytest.fixture
def local(cluster: Cluster) -> tuple[Cluster, LocalNode]:
    """Return a cluster whose node is this machine, so that everything on it can be killed."""
    if not isinstance(cluster.node, LocalNode):
        pytest.skip("the node is an emulated machine")
    return cluster, cluster.node


def test_interrupted_starts_and_ends_of_pods_are_completed(local: tuple[Cluster, LocalNode]) -> None:
    cluster, node = local
    online = node.online()
    cluster.install()
    cluster.run("shared")

    # Between Prepare and the start of the pod.
    cluster.apply(*(claim("cut"), pod("cut", claims={"c": {"resourceClaimName": "cut"}})))
    wait_until(lambda: bool(specs(node)), "the claim is prepared")
    node.restart_kubelet()
    cluster.runs("cut")
    held = cluster.cpus("cut")
    assert cluster.cpus("shared") == online - held

    # The pod is deleted while kubelet is down.
    node.kill_kubelet()
    cluster.kubectl("delete", "pod", "cut", "--wait=false")
    node.start_kubelet_again()
    cluster.wait(lambda: "cut" not in cluster.pods(), "the pod is gone")

    # Pods are deleted at each step of their start, every other one by force.
    cluster.apply(template("burst"))
    for number, moment in enumerate([moment for moment in _MOMENTS for _ in range(2)]):
        name = f"burst-{number}"
        cluster.apply(pod(name, claims={"c": {"resourceClaimTemplateName": "burst"}}))
        wait_until(lambda condition=moment, pod=name: is_so(cluster, pod, condition), f"{name}: {moment}")  # type: ignore[misc]
        force = ("--grace-period=0", "--force") if number % 2 else ()
        cluster.kubectl("delete", "pod", name, "--wait=false", *force)
    cluster.wait(
        lambda: not any(name.startswith("burst-") for name in (*cluster.pods(), *cluster.claims())), "all are gone"
    )
    cluster.wait(lambda: cluster.dranode("claims", "-o", "json").strip() == "[]", "nothing is held")
    cluster.wait(lambda: not specs(node), "no file is left")

    # A pod is deleted while there is no driver.
    cluster.run("orphan", cpus=1)
    uid = cluster.pods()["orphan"]["metadata"]["uid"]
    cluster.kubectl("delete", "-n", "dranode", _DAEMONSET)
    cluster.wait(lambda: not cluster.pods("dranode"), "the driver is gone")
    cluster.kubectl("delete", "pod", "orphan", "--wait=false")
    cluster.wait(lambda: not node.allowed(uid, MAIN), "its container ends")
    assert "orphan" in cluster.pods()
    cluster.install_again()
    cluster.wait(lambda: "orphan" not in cluster.pods(), "the pod ends")

    # A power cut.
    cluster.run("kept", cpus=1)
    held = cluster.cpus("kept")
    node.boot()
    cluster.wait(lambda: restarts(cluster, "kept") and restarts(cluster, "shared"), "the pods run again")
    cluster.wait(cluster.driver_is_ready, "the driver is Ready")
    assert cluster.cpus("kept") == held
    cluster.wait(lambda: cluster.cpus("shared") == online - held, "the shared pod is apart")
    cluster.delete("kept")
    assert cluster.dranode("claims", "-o", "json").strip() == "[]"
    # With older runtimes, running containers get CPUs back when the next container is created.
    cluster.run("last")
    cluster.wait(lambda: cluster.cpus("shared") == online, "the CPU is everybody's again")


def specs(node: LocalNode) -> list[Path]:
    """Return the CDI specs of the driver's claims."""
    return list((node.place / "cdi").glob("*.json"))


def is_so(cluster: Cluster, name: str, condition: str) -> bool:
    """Whether a condition of a pod is true, or the pod is gone."""
    found = cluster.pods().get(name)
    if found is None or not condition:
        return True
    return any(each["type"] == condition and each["status"] == "True" for each in found["status"].get("conditions", []))


def restarts(cluster: Cluster, name: str) -> int:
    """Return how often the container of a running pod was restarted."""
    (status,) = cluster.pods()[name]["status"]["containerStatuses"]
    return int(status["restartCount"]) if "running" in status["state"] else 0
