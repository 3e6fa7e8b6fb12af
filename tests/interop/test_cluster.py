"""The driver under real kubelets: the image as deploy/ runs it, pods with claims, and their CPUs in the kernel.

`make interop-cluster` says which releases of Kubernetes to build and run, each beside which containerd; `make
interop-vm` has the node in an emulated machine with cgroup v2, systemd and two NUMA nodes.
"""

import subprocess

import pytest
import yaml

from dranode.api.cpuset import CPUSet
from tests.interop.api import RefusedError
from tests.interop.cluster import DRIVER_IMAGE, Cluster
from tests.interop.cluster_rows import why_no_cluster
from tests.interop.helm import CHART
from tests.interop.helm import build as build_helm

pytestmark = [pytest.mark.interop, pytest.mark.skipif(bool(why_no_cluster()), reason=why_no_cluster() or "-")]


class ChartRelease:
    """Runs Helm on a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._program = build_helm()
        self._cluster = cluster

    def __call__(self, *words: str) -> str:
        """Run helm.

        Raises:
            RefusedError: it fails.
        """
        place = (f"--kubeconfig={self._cluster.folder}/kubeconfig", "--namespace=dranode", "--timeout=20m")
        done = subprocess.run([self._program, *words, *place], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RefusedError(f"helm {words[0]}: {done.stdout[-2000:]} {done.stderr[-2000:]}")
        return done.stdout

    def chart(self, *values: str) -> tuple[str, ...]:
        """Return arguments for the chart with the test's image and the server's address (there is no kube-proxy)."""
        repository, _, tag = DRIVER_IMAGE.rpartition(":")
        variables = [{"name": name, "value": value} for name, value in self._cluster.server().items()]
        settings = {
            "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
            "extraEnv": variables,
            "drainOnUninstall": {"timeoutSeconds": 900},
        }
        file = self._cluster.folder / "values.yaml"
        file.write_text(yaml.safe_dump(settings))
        return (str(CHART), f"--values={file}", *(f"--set={value}" for value in values))


def ready_since(cluster: Cluster) -> str:
    """Return when the driver's only pod became Ready."""
    (pod,) = cluster.pods("dranode").values()
    conditions = {each["type"]: each for each in pod["status"]["conditions"]}
    return str(conditions["Ready"]["lastTransitionTime"])


def killed(cluster: Cluster, pods: set[str]) -> str:
    """Return when kubelet began to stop the first of these pods of the driver."""
    events = cluster.api.send("GET", "/api/v1/namespaces/dranode/events")["items"]
    ends = (each for each in events if each["reason"] == "Killing" and each["involvedObject"]["name"] in pods)
    return min(str(each["firstTimestamp"]) for each in ends)


def test_pods_run_where_their_claims_say_through_restarts_and_an_update(cluster: Cluster) -> None:
    """In one test, because a cluster takes a minute to start."""
    online = cluster.node.online()
    cluster.install()
    cluster.run("shared")
    assert cluster.cpus("shared") == online
    cluster.run("first", cpus=1)
    first = cluster.cpus("first")
    assert len(first) == 1
    cluster.wait(lambda: cluster.cpus("shared") == online - first, "the shared pod leaves the claim's CPU")

    cluster.node.restart_kubelet()
    cluster.kubectl("rollout", "restart", "-n", "dranode", "daemonset/dranode")
    cluster.wait(cluster.driver_is_ready, "the new driver is Ready")
    assert cluster.cpus("first") == first
    assert cluster.cpus("shared") == online - first

    doctor = cluster.dranode("doctor")
    assert "nothing stops it" in doctor

    cluster.delete("first")
    cluster.wait(lambda: cluster.cpus("shared") == online, "the shared pod has all CPUs again")
    cluster.kubectl("delete", "resourceclaim", "first")
    records = cluster.dranode("claims", "-o", "json")
    assert records.strip() == "[]"


# The settings of a node that a claim for quiet CPUs changes, as far as the node has them.
_SETTINGS = """
cd /proc/irq && grep . default_smp_affinity */smp_affinity_list
cat /sys/devices/virtual/workqueue/cpumask
! test -d /run/systemd/system || systemctl show --property AllowedCPUs system.slice user.slice init.scope
"""
_PARTITIONS = "cat $(find /sys/fs/cgroup -path '*pod{uid}*' -name cpuset.cpus.partition) 2>/dev/null | sort -u"


def settings(cluster: Cluster) -> list[str]:
    return cluster.node.output(_SETTINGS).splitlines()


def test_quiet_claims_move_the_nodes_interrupts_and_services_and_leave_nothing_behind(cluster: Cluster) -> None:
    cluster.install("isolation")
    before = settings(cluster)
    cluster.run("quiet", cpus=1, isolation="quiet")
    held = cluster.cpus("quiet")
    mask = before.index(next(line for line in before if line.startswith("default_smp_affinity")))
    during = settings(cluster)
    assert held.isdisjoint(CPUSet.parse_mask(during[mask].partition(":")[2]))
    if any(line.startswith("AllowedCPUs") for line in before):
        allowed = {line.partition("=")[2].replace(" ", ",") for line in during if line.startswith("AllowedCPUs=")}
        assert set(map(CPUSet.parse, allowed)) == {cluster.node.online() - held}
        cluster.run("apart", cpus=1, isolation="partition")
        uid = cluster.pods()["apart"]["metadata"]["uid"].replace("-", "?")
        cluster.wait(
            lambda: "isolated" in cluster.node.output(_PARTITIONS.format(uid=uid)), "the container is a partition"
        )
        assert cluster.cpus("apart").isdisjoint(held)
        cluster.delete("apart")

    cluster.kubectl("rollout", "restart", "-n", "dranode", "daemonset/dranode")
    cluster.wait(cluster.driver_is_ready, "the new driver is Ready")
    cluster.wait(lambda: settings(cluster) == during, "the claim's CPUs stay quiet")
    cluster.delete("quiet")
    cluster.wait(lambda: settings(cluster) == before, "everything is as it was")


def test_the_chart_is_tested_upgraded_rolled_back_and_removed_only_from_nodes_without_claims(cluster: Cluster) -> None:
    helm = ChartRelease(cluster)
    helm("install", "dranode", *helm.chart(), "--create-namespace", "--wait")
    cluster.wait(cluster.driver_is_ready, "the driver is Ready")
    assert "Phase:          Succeeded" in helm("test", "dranode")

    cluster.run("first", cpus=1)
    first = cluster.cpus("first")
    for change in (("upgrade", "dranode", *helm.chart("podLabels.update=second")), ("rollback", "dranode", "1")):
        older = set(cluster.pods("dranode"))
        helm(*change)
        cluster.wait(lambda known=older: not known & set(cluster.pods("dranode")), "the older driver is gone")  # type: ignore[misc]
        cluster.wait(cluster.driver_is_ready, "the newer driver is Ready")
        assert ready_since(cluster) <= killed(cluster, older), "the older driver went before the newer one was Ready"
        assert cluster.cpus("first") == first

    with pytest.raises(RefusedError, match="dranode-drain"):
        helm("uninstall", "dranode", "--wait")
    said = cluster.kubectl("logs", "-n", "dranode", "job/dranode-drain")
    assert "default/first" in said
    assert "in use" in said
    assert cluster.driver_is_ready()

    cluster.delete("first")
    helm("uninstall", "dranode", "--wait")
    cluster.wait(lambda: not cluster.pods("dranode"), "the driver is gone")
    assert cluster.kubectl("get", "daemonsets,jobs,roles,rolebindings", "-n", "dranode", "-o", "name") == ""
