"""What claims use, from the runtime's events and the kernel's counters to the page that Prometheus reads."""

import itertools

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dranode.driver.serve.metrics import Metrics
from dranode.proto import nri_v1alpha1_pb2 as nri
from dranode.sim.machines.forms import open_machine
from tests.fakes.machine import write_machine
from tests.fakes.nri import container
from tests.fakes.pinning_node import CLAIM, CLAIMS, EXCLUSIVE, PODS, SHARED, pinning_node
from tests.fakes.waiting import eventually

LABELS = {"driver": "dra.cpu", "namespace": "default", "resourceclaim_name": "a", "resourceclaim_uid": "uid-a"}
STAT = "usage_usec {usage}\nnr_periods 4\nnr_throttled 1\nthrottled_usec 500000\n"


def test_the_metrics_page_has_the_kernels_counters_by_claim_pod_and_namespace() -> None:
    with pinning_node() as world:
        write_machine(world.folder / "machine")
        cgroup = world.folder / "machine" / "sys" / "fs" / "cgroup" / "kubepods" / "mine"
        cgroup.mkdir(parents=True)
        service = world.start(machine=open_machine(str(world.folder / "machine")))
        world.prepare(CLAIM)
        assert service.pinning is not None
        service.pinning.usage._clock = itertools.count(step=61).__next__
        metrics = Metrics(itertools.count(step=2).__next__, cost=lambda: 0.0)
        metrics.add(service)
        runtime = world.admit()
        running = [
            container(
                "mine", "pod-uid-a", CLAIMS, EXCLUSIVE, "main", state=nri.CONTAINER_RUNNING, cgroup="/kubepods/mine"
            ),
            container("shared", "p2", (), SHARED, state=nri.CONTAINER_RUNNING, cgroup="/kubepods/shared"),
        ]
        assert "dranode_claim_" not in metrics.page("").body.decode()
        runtime.handshake(PODS, running, "v0.12.1")
        eventually(lambda: service.pinning is not None and service.pinning.synchronized)

        def samples() -> dict[str, tuple[dict[str, str], float]]:
            families = text_string_to_metric_families(metrics.page("").body.decode())
            return {
                sample.name: (sample.labels, sample.value)
                for family in families
                for sample in family.samples
                if sample.name.startswith("dranode_claim_") and "figure" not in sample.labels
            }

        (cgroup / "cpu.stat").write_text(STAT.format(usage=2_000_000))
        pod = {**LABELS, "pod": "pod-a"}
        assert samples() == {
            "dranode_claim_held_cpus": (LABELS, 4.0),
            "dranode_claim_cpu_usage_seconds_total": (pod, 2.0),
            "dranode_claim_cpu_throttled_seconds_total": (pod, 0.5),
            "dranode_claim_cpu_cfs_periods_total": (pod, 4.0),
            "dranode_claim_cpu_cfs_throttled_periods_total": (pod, 1.0),
        }
        (cgroup / "cpu.stat").write_text(STAT.format(usage=2_100_000))
        assert samples()["dranode_claim_idle"] == (LABELS, 1.0)
        (cgroup / "cpu.stat").write_text(STAT.format(usage=9_100_000))
        seen = samples()
        assert seen["dranode_claim_idle"] == (LABELS, 0.0)
        labels, seconds = seen["dranode_claim_cpu_usage_seconds_total"]
        assert labels == pod
        assert seconds == pytest.approx(9.1)
