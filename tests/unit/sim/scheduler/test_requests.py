"""What a pod asks for on its node."""

from typing import Any

import pytest

from dranode.api.documents import decode
from dranode.api.resource import ObjectMeta
from dranode.sim.scheduler.amounts import PriorityClass, with_defaults
from dranode.sim.scheduler.documents import SchedulingPod
from dranode.sim.scheduler.requests import Counting, amounts_of, pod_requests
from dranode.sim.scheduler.snapshot import PodInfo

GI = 1 << 30


def container(name: str, restart: str = "", **requests: str) -> dict[str, Any]:
    return {"name": name, "restartPolicy": restart, "resources": {"requests": requests}}


def pod(*containers: dict[str, Any], status: dict[str, Any] | None = None, **spec: Any) -> SchedulingPod:
    document = {"metadata": {"name": "p", "namespace": "n"}, "spec": {"containers": containers, **spec}}
    return decode(SchedulingPod, {**document, "status": status or {}})


def asked(given: SchedulingPod, **counting: Any) -> dict[str, int]:
    return amounts_of(pod_requests(given, Counting(37, **counting)))


def test_containers_are_added_up_and_the_sum_is_rounded_up_once() -> None:
    assert asked(pod(container("a", cpu="100.4m"), container("b", cpu="100.4m", memory="1.5"))) == {
        "cpu": 201,
        "memory": 2,
    }


def test_an_init_container_runs_alone_with_the_sidecars() -> None:
    inits = [
        container("first", cpu="3"),
        container("stays", "Always", cpu="1"),
        container("last", cpu="3"),
    ]
    # 3 + 1 while the last one runs; 1 + 2 afterwards.
    assert asked(pod(container("a", cpu="2"), initContainers=inits)) == {"cpu": 4000}


def test_a_sidecar_runs_next_to_the_others_to_the_end() -> None:
    inits = [container("stays", "Always", cpu="1"), container("once", cpu="1")]
    assert asked(pod(container("a", cpu="2"), initContainers=inits)) == {"cpu": 3000}


def test_overhead_is_added_to_the_pods_request() -> None:
    given = pod(container("a", cpu="1"), resources={"requests": {"cpu": "4"}}, overhead={"cpu": "250m"})
    assert asked(given) == {"cpu": 4250}
    assert asked(given, pod_level=False) == {"cpu": 1250}


def test_resources_that_the_scheduler_does_not_know_are_left_out() -> None:
    requests = {"hugepages-2Mi": "4Mi", "example.com/widget": "2", "shelves": "3"}
    assert asked(pod(container("a", **requests))) == {"hugepages-2Mi": 4 << 20, "example.com/widget": 2}


def statuses(**allocated: str) -> dict[str, Any]:
    resources = {"requests": {"cpu": "3"}}
    return {"containerStatuses": [{"name": "a", "allocatedResources": allocated, "resources": resources}]}


def test_during_a_resize_the_greatest_amount_counts() -> None:
    given = pod(container("a", cpu="1"), status=statuses(cpu="2"))
    assert asked(given) == {"cpu": 1000}
    assert asked(given, status=True) == {"cpu": 3000}


def test_an_infeasible_resize_does_not_count() -> None:
    condition = {"type": "PodResizePending", "status": "True", "reason": "Infeasible"}
    given = pod(container("a", cpu="9"), status={**statuses(cpu="2"), "conditions": [condition]})
    assert asked(given, status=True) == {"cpu": 3000}


@pytest.mark.parametrize(("minor", "cpu"), [(36, 6000), (37, 5000)])
def test_since_1_37_statuses_are_added_up_before_they_are_compared(minor: int, cpu: int) -> None:
    both = [
        {"name": "a", "allocatedResources": {"cpu": "1"}, "resources": {"requests": {"cpu": "4"}}},
        {"name": "b", "allocatedResources": {"cpu": "2"}, "resources": {"requests": {"cpu": "1"}}},
    ]
    given = pod(container("a", cpu="1"), container("b", cpu="1"), status={"containerStatuses": both})
    assert amounts_of(pod_requests(given, Counting(minor, status=True))) == {"cpu": cpu}


def test_a_container_that_asks_for_nothing_counts_when_nodes_are_scored() -> None:
    assert PodInfo.of(pod(container("a"), container("b", cpu="2")), 37).non_zero == (2100, 400 << 20)


def test_the_pods_request_counts_for_containers_without_one() -> None:
    given = pod(container("a"), resources={"requests": {"cpu": "3"}})
    assert PodInfo.of(given, 37).non_zero == (3000, 200 << 20)


def test_a_limit_replaces_a_missing_request() -> None:
    bare = {"name": "a", "resources": {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}}}
    assert asked(with_defaults(pod(bare), {})) == {"cpu": 1000, "memory": GI}


def test_a_pods_limits_count_only_where_its_containers_ask_for_nothing() -> None:
    given = pod(container("a", cpu="1500m"), resources={"limits": {"cpu": "4", "memory": "2Gi"}})
    assert asked(with_defaults(given, {})) == {"cpu": 1500, "memory": 2 * GI}


def test_a_pod_gets_the_servers_tolerations_and_priority() -> None:
    gold = PriorityClass(value=7, preemption_policy="Never")
    usual = PriorityClass(metadata=ObjectMeta(name="usual"), value=3, global_default=True)
    classes = {"gold": gold, "usual": usual}
    made = with_defaults(pod(container("a"), priorityClassName="gold"), classes)
    assert (made.priority, made.spec.preemption_policy) == (7, "Never")
    assert with_defaults(pod(container("a")), classes).priority == 3
    assert with_defaults(pod(container("a"), priority=0), classes).priority == 0
    assert (
        with_defaults(pod(container("a"), priorityClassName="system-node-critical"), classes).priority == 2_000_001_000
    )
    assert with_defaults(pod(container("a"), priorityClassName="gone"), classes).spec.priority is None
    assert [(each.key, each.effect) for each in made.spec.tolerations] == [
        ("node.kubernetes.io/not-ready", "NoExecute"),
        ("node.kubernetes.io/unreachable", "NoExecute"),
    ]
    own = pod(container("a"), tolerations=[{"operator": "Exists"}])
    assert len(with_defaults(own, {}).spec.tolerations) == 1


def test_a_port_of_a_pod_with_host_network_is_a_port_of_the_node() -> None:
    given = pod({"name": "a", "ports": [{"containerPort": 80}]}, hostNetwork=True)
    (port,) = PodInfo.of(with_defaults(given, {}), 37).ports
    assert (port.address, port.protocol, port.port) == ("0.0.0.0", "TCP", 80)  # noqa: S104 - all addresses
