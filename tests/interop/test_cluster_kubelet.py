"""Real kubelets that restart again and again, have a damaged record of their own, or run odd pods."""

import json

import pytest

from dranode.driver.claims.reconcile import ORPHAN_SECONDS
from tests.interop.cluster import Cluster
from tests.interop.cluster_node import LocalNode
from tests.interop.cluster_pods import claim, claim_spec, document, pod, sleeper, template
from tests.interop.cluster_rows import why_no_cluster
from tests.interop.cri import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.skipif(bool(why_no_cluster()), reason=why_no_cluster() or "-")]

_BURST = 8
_RESTARTS = 4


@pytest.fixture
def local(cluster: Cluster) -> tuple[Cluster, LocalNode]:
    """Return a cluster whose node is this machine, so that kubelet's folder can be changed."""
    if not isinstance(cluster.node, LocalNode):
        pytest.skip("the node is an emulated machine")
    return cluster, cluster.node


def holds_nothing(cluster: Cluster) -> bool:
    return cluster.dranode("claims", "-o", "json").strip() == "[]"


def test_claims_that_are_deleted_while_kubelet_restarts_over_and_over_are_all_released(
    local: tuple[Cluster, LocalNode],
) -> None:
    cluster, node = local
    cluster.install("memory")
    online = node.online()
    cluster.run("shared")
    memory = {"deviceClassName": "dra.memory", "capacity": {"requests": {"size": "16Mi"}}}
    cluster.apply(
        template("cpus"),
        document("ResourceClaimTemplate", "memory", {"spec": claim_spec({"exactly": memory})}),
        pod("pinned", claims={"c": {"resourceClaimTemplateName": "cpus"}}),
        *(pod(f"burst-{number}", claims={"m": {"resourceClaimTemplateName": "memory"}}) for number in range(_BURST)),
    )
    names = ["pinned", *(f"burst-{number}" for number in range(_BURST))]
    for name in names:
        cluster.runs(name)
    assert len(json.loads(cluster.dranode("claims", "-o", "json"))) == len(names)
    held = cluster.cpus("pinned")

    # Every other pod is deleted by force, so that its claim is deleted before kubelet hears of it.
    node.kill_kubelet()
    cluster.kubectl("delete", "pod", "--wait=false", "--grace-period=0", "--force", *names[1::2])
    cluster.wait(lambda: len(cluster.claims()) == len(names) - len(names[1::2]), "the claims of half of them are gone")
    cluster.kubectl("delete", "pod", "--wait=false", *names[2::2])
    for _ in range(_RESTARTS):
        node.restart_kubelet()
        # It is killed again about when it registers plug-ins.
        wait_until(cluster.serves, "kubelet answers")
    cluster.wait(lambda: not set(names[1:]) & set(cluster.pods()), "the pods are gone")
    cluster.wait(lambda: len(json.loads(cluster.dranode("claims", "-o", "json"))) == 1, "their claims are released")
    assert cluster.cpus("pinned") == held
    assert cluster.cpus("shared") == online - held
    cluster.delete("pinned")
    cluster.wait(lambda: holds_nothing(cluster), "the last claim is released")


def test_a_claim_stays_its_containers_when_kubelets_own_record_is_damaged(local: tuple[Cluster, LocalNode]) -> None:
    cluster, node = local
    cluster.install()
    online = node.online()
    cluster.run("shared")
    cluster.run("kept", cpus=1)
    held = cluster.cpus("kept")

    node.kill_kubelet()
    damages = {
        "cpu_manager_state": (b"{",),
        "memory_manager_state": (b"{",),
        "dra_manager_state": (b"", b"{", b'{"data": "{}", "checksum": 1}', b"\0\xff"),
    }
    assert "kept" in (node.place / "kubelet" / "dra_manager_state").read_text()
    for name, contents in damages.items():
        record = node.place / "kubelet" / name
        for content in contents:
            record.write_bytes(content)
            node.start_kubelet_again()
            # kubelet does not start with a record that it cannot read, until somebody deletes it.
            wait_until(node.ended, f"kubelet gives up because of {name} with {content!r}")
            node.kill_kubelet()
        record.unlink()
    node.start_kubelet_again()
    cluster.wait(cluster.serves, "kubelet answers")
    assert cluster.cpus("kept") == held
    assert cluster.cpus("shared") == online - held

    # This kubelet does not know the claim any more, so it does not ask the driver to unprepare it.
    cluster.delete("kept")
    cluster.kubectl("delete", "resourceclaim", "kept")
    cluster.wait(lambda: holds_nothing(cluster), "the driver unprepares the orphaned claim", 2 * ORPHAN_SECONDS)
    cluster.run("next", cpus=1)
    assert cluster.cpus("shared").isdisjoint(cluster.cpus("next"))


def test_pods_that_crash_never_start_or_have_a_limit_of_their_own_leave_claims_right(cluster: Cluster) -> None:
    cluster.install()
    online = cluster.node.online()
    cluster.run("shared")
    uses = {"c": {"resourceClaimName": "mine"}}

    crashing = sleeper(claims=["c"]) | {"command": ["/busybox", "sh", "-c", "exit 3"]}
    cluster.apply(claim("mine", config={"cfsQuota": "unlimited"}), pod("crashing", [crashing], claims=uses))

    def crashes() -> int:
        statuses = cluster.pods()["crashing"]["status"].get("containerStatuses", [])
        return max((int(status["restartCount"]) for status in statuses), default=0)

    cluster.wait(lambda: crashes() > 1, "the container has crashed three times")
    assert len(cluster.cpus("shared")) == len(online) - 1
    cluster.delete("crashing")

    missing = sleeper(claims=["c"]) | {"image": "dranode.test/nowhere:latest"}
    cluster.apply(pod("missing", [missing], claims=uses))
    cluster.wait(lambda: any("ErrImageNeverPull" in said for said in cluster.events("missing")), "no image")
    cluster.delete("missing")

    limited = pod("limited", claims=uses)
    limited["spec"]["resources"] = {"limits": {"cpu": "500m"}, "requests": {"cpu": "100m"}}
    cluster.apply(limited)
    cluster.runs("limited")
    held = cluster.cpus("limited")
    assert len(held) == 1
    cluster.wait(lambda: cluster.cpus("shared") == online - held, "the shared pod leaves the claim's CPU")
    uid = cluster.pods()["limited"]["metadata"]["uid"]
    quota = cluster.node.output(f"cat $(find /sys/fs/cgroup -path '*pod{uid}/cpu.cfs_quota_us' | head -1)")
    assert quota.strip() == "50000"
    (driver,) = cluster.pods("dranode")
    cluster.wait(
        lambda: "limited" in cluster.kubectl("logs", "-n", "dranode", driver), "the log names the pod with a limit"
    )
    cluster.delete("limited")
    cluster.wait(lambda: holds_nothing(cluster), "nothing is held")
