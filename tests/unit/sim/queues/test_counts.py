"""What a pod counts against quota: containers, and devices by DeviceClass."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from dranode.api.documents import decode
from dranode.api.resource import ResourceSlice
from dranode.sim.queues.setup import load
from dranode.sim.queues.values import Workload
from tests.fakes.queues import admitted, cluster_queue, flavor, group, local_queue, pod_set, sources, workload

MAPPINGS = {
    "apiVersion": "config.kueue.x-k8s.io/v1beta2",
    "kind": "Configuration",
    "resources": {
        "deviceClassMappings": [
            {"name": "gpus", "deviceClassNames": ["dra.gpu", "big-gpu"]},
            {"name": "small", "deviceClassNames": ["small-gpu"]},
        ]
    },
}


def _read(
    spec: dict[str, Any],
    *documents: dict[str, Any],
    covered: tuple[str, ...] = ("cpu",),
    published: Sequence[ResourceSlice] | None = None,
) -> Workload:
    base = [flavor("f"), cluster_queue("q", group(covered, f=[9] * len(covered))), local_queue("door", "q"), MAPPINGS]
    pods = {"name": "main", "count": 1, "template": {"spec": spec}}
    return load(sources([*base, *documents, workload("w", "door", pods)]), published=published).pending[0]


def _template(*requests: dict[str, Any], version: str = "v1") -> dict[str, Any]:
    return {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "t", "namespace": "default"},
        "spec": {"spec": {"devices": {"requests": list(requests)}}},
    }


def _exactly(device_class: str, **more: Any) -> dict[str, Any]:
    return {"name": "r", "exactly": {"deviceClassName": device_class, **more}}


def _cel(expression: str) -> list[dict[str, Any]]:
    return [{"cel": {"expression": expression}}]


def _list(*alternatives: tuple[str, int]) -> dict[str, Any]:
    named = [
        {"name": f"s{number}", "deviceClassName": device_class, "count": count}
        for number, (device_class, count) in enumerate(alternatives)
    ]
    return {"name": "r", "firstAvailable": named}


def _with_claims(*names: str) -> dict[str, Any]:
    return {"resourceClaims": [{"name": f"c{n}", "resourceClaimTemplateName": name} for n, name in enumerate(names)]}


def _asks(**requests: Any) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": requests}}


PODS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "containers run together": (
        {"containers": [_asks(cpu=1, memory="1Gi"), _asks(cpu="500m")]},
        {"cpu": 1500, "memory": 2**30},
    ),
    "init containers one after another": (
        {"containers": [_asks(cpu=1)], "initContainers": [_asks(cpu=3), _asks(cpu=2, memory=5)]},
        {"cpu": 3000, "memory": 5},
    ),
    "a sidecar beside all that follow it": (
        {"containers": [_asks(cpu=1)], "initContainers": [{**_asks(cpu=2), "restartPolicy": "Always"}, _asks(cpu=3)]},
        {"cpu": 5000},
    ),
    "limits stand in for requests": (
        {"containers": [{"name": "c", "resources": {"limits": {"cpu": 2, "memory": 9}, "requests": {"cpu": 1}}}]},
        {"cpu": 1000, "memory": 9},
    ),
    "what the pod asks for as a whole goes before its containers": (
        {"containers": [_asks(cpu=1, memory=7)], "resources": {"requests": {"cpu": 4}}},
        {"cpu": 4000, "memory": 7},
    ),
    "the limit of the whole pod goes before its containers (kubernetes-sigs/kueue#15702)": (
        {"containers": [_asks(cpu=1, memory=7)], "resources": {"limits": {"cpu": 4}}},
        {"cpu": 4000, "memory": 7},
    ),
    "overhead comes on top": ({"containers": [_asks(cpu=1)], "overhead": {"cpu": "250m"}}, {"cpu": 1250}),
}


@pytest.mark.parametrize(("spec", "counts"), PODS.values(), ids=PODS)
def test_containers_count_as_the_scheduler_adds_them_up(spec: dict[str, Any], counts: dict[str, int]) -> None:
    assert dict(_read(spec).pod_sets[0].requests) == counts


CLAIMS: dict[str, tuple[list[dict[str, Any]], dict[str, int]]] = {
    "one device without a count": ([_exactly("dra.gpu")], {"gpus": 1}),
    "a count": ([_exactly("dra.gpu", count=3)], {"gpus": 3}),
    "a count of 0, which the API server changes": ([_exactly("dra.gpu", count=0)], {"gpus": 1}),
    "two classes under one name": ([_exactly("dra.gpu"), _exactly("big-gpu", count=2)], {"gpus": 3}),
}


@pytest.mark.parametrize(("requests", "counts"), CLAIMS.values(), ids=CLAIMS)
def test_devices_count_under_the_mapped_name_of_their_class(
    requests: list[dict[str, Any]], counts: dict[str, int]
) -> None:
    assert dict(_read(_with_claims("t"), _template(*requests)).pod_sets[0].requests) == counts


def test_a_template_counts_once_for_each_claim_made_from_it() -> None:
    assert _read(_with_claims("t", "t"), _template(_exactly("dra.gpu"))).pod_sets[0].requests == {"gpus": 2}


def test_admin_access_counts_nothing() -> None:
    read = _read(_with_claims("t"), _template(_exactly("other", adminAccess=True, allocationMode="All")))
    assert (read.inadmissible, read.pod_sets[0].requests) == ("", {})


def test_a_workload_that_names_a_claim_is_refused() -> None:
    spec = {"resourceClaims": [{"name": "c", "resourceClaimName": "shared"}], "containers": [_asks(cpu=1)]}
    read = _read(spec)
    assert 'ResourceClaim "shared"' in read.inadmissible
    assert read.pod_sets[0].requests == {"cpu": 1000}  # what it uses if it is admitted already


UNCOUNTABLE: dict[str, tuple[list[dict[str, Any]], str]] = {
    "a class without a mapping": (
        [_template(_exactly("other"))],
        'no deviceClassMappings entry names DeviceClass "other"',
    ),
    "all devices": ([_template(_exactly("dra.gpu", allocationMode="All"))], "cannot be counted before it is allocated"),
    "a prioritized list": ([_template(_list(("big-gpu", 1), ("small-gpu", 2)))], "firstAvailable"),
    "a selector that does not compile": ([_template(_exactly("dra.gpu", selectors=_cel("device.nope")))], "selector"),
    "a missing template": ([], 'ResourceClaimTemplate "t" does not exist'),
}


@pytest.mark.parametrize(("documents", "why"), UNCOUNTABLE.values(), ids=UNCOUNTABLE)
def test_a_workload_that_cannot_be_counted_waits_with_the_reason(documents: list[dict[str, Any]], why: str) -> None:
    read = _read(_with_claims("t"), *documents)
    assert read.inadmissible.startswith("pod set main: ")
    assert why in read.inadmissible


_LARGE = _cel("device.attributes['dra.gpu'].memory == 80")
_CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "dra.gpu"},
    "spec": {"selectors": _cel("device.driver == 'dra.gpu'")},
}


def _published(*memory: int) -> ResourceSlice:
    devices = [{"name": f"gpu-{n}", "attributes": {"memory": {"int": size}}} for n, size in enumerate(memory)]
    pool = {"name": "a", "generation": 1, "resourceSliceCount": 1}
    return decode(ResourceSlice, {"spec": {"driver": "dra.gpu", "nodeName": "a", "pool": pool, "devices": devices}})


@pytest.mark.parametrize(
    ("requests", "refused"),
    [
        ([_exactly("dra.gpu", selectors=_LARGE, count=2)], ""),
        ([_exactly("dra.gpu", selectors=_LARGE, count=3)], "2 devices of the cluster match, but 3 are requested"),
        # A device that matched one request of the claim does not match another one.
        ([_exactly("dra.gpu", selectors=_LARGE, count=2), _exactly("dra.gpu", selectors=_LARGE)], "0 devices"),
        ([_exactly("dra.gpu", count=9)], ""),  # Kueue only checks requests with selectors
        ([_exactly("dra.gpu", selectors=_cel("device.attributes['dra.gpu'].nope == 1"))], "nope"),
        ([_exactly("big-gpu", selectors=_LARGE)], 'DeviceClass "big-gpu" does not exist'),
    ],
)
def test_a_template_that_matches_too_few_devices_is_refused_before_quota(
    requests: list[dict[str, Any]], refused: str
) -> None:
    read = _read(_with_claims("t"), _template(*requests), _CLASS, published=[_published(80, 40, 80)])
    assert refused in read.inadmissible
    assert bool(refused) is bool(read.inadmissible)


@pytest.mark.parametrize(
    ("queue", "local", "why", "drained"),
    [
        ({"stopPolicy": "Hold"}, {}, "the queue is stopped (Hold)", 0),
        ({"stopPolicy": "Hold"}, {"stopPolicy": "HoldAndDrain"}, "the queue is stopped (HoldAndDrain)", 1),
        ({"stopPolicy": "HoldAndDrain"}, {}, "the queue is stopped (HoldAndDrain)", 1),
    ],
)
def test_a_stopped_queue_admits_nothing_and_says_so(
    queue: dict[str, Any], local: dict[str, Any], why: str, drained: int
) -> None:
    door = local_queue("door", "q")
    door["spec"] |= local
    held = admitted("h", "q", {"cpu": "f"}, {"cpu": 1})
    held["spec"]["queueName"] = "door"
    queues = [flavor("f"), cluster_queue("q", group(["cpu"], f=[9]), **queue), door]
    setup = load(sources([*queues, workload("w", "door", pod_set()), held]))
    assert {item.label: item.inadmissible for item in setup.pending} == dict.fromkeys(["w", "h"][: 1 + drained], why)
    assert [item.workload.label for item in setup.admitted] == ["h"][drained:]


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ({"conditions": [{"type": "QuotaReserved", "status": "False", "reason": "OnHold"}]}, "it is on hold"),
        ({"conditions": [{"type": "WaitingForReplacementPods", "status": "True"}]}, "it waits for replacement pods"),
        ({"requeueState": {"requeueAt": "2027-01-01T00:00:00Z"}}, "not queued again before 2027-01-01T00:00:00Z"),
        ({"conditions": [{"type": "QuotaReserved", "status": "False", "reason": "Pending"}]}, ""),
    ],
)
def test_a_workload_that_its_controller_holds_back_waits_and_holds_no_quota(status: dict[str, Any], why: str) -> None:
    lost = admitted("w", "q", {"cpu": "f"}, {"cpu": 1})
    lost["spec"]["queueName"] = "door"
    lost["status"] = {**status, **(lost["status"] if "QuotaReserved" in str(status) else {})}
    base = [flavor("f"), cluster_queue("q", group(["cpu"], f=[9])), local_queue("door", "q")]
    setup = load(sources([*base, lost]))
    assert why in setup.pending[0].inadmissible
    assert bool(why) is bool(setup.pending[0].inadmissible)


def test_pods_count_if_the_queue_covers_them() -> None:
    read = _read({"containers": [_asks(cpu=1)]}, covered=("cpu", "pods"))
    assert read.pod_sets[0].requests == {"cpu": 1000, "pods": 1}


def _device_class(name: str, created: str | None = None) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name, "creationTimestamp": created},
        "spec": {"extendedResourceName": "example.com/gpu"},
    }


@pytest.mark.parametrize(
    ("classes", "counted"),
    [
        ([], "example.com/gpu"),
        ([_device_class("unmapped")], "example.com/gpu"),
        ([_device_class("dra.gpu")], "gpus"),
        ([_device_class("small-gpu"), _device_class("dra.gpu")], "gpus"),
        (
            [_device_class("small-gpu", "2026-02-01T00:00:00Z"), _device_class("dra.gpu", "2026-01-01T00:00:00Z")],
            "small",
        ),
    ],
    ids=["no class", "a class without a mapping", "a mapped class", "the first by name", "the newest"],
)
def test_an_extended_resource_counts_under_the_name_of_its_class(classes: list[dict[str, Any]], counted: str) -> None:
    pod = {"containers": [_asks(**{"example.com/gpu": 2})]}
    assert dict(_read(pod, *classes).pod_sets[0].requests) == {counted: 2}
    with_overhead = _read({**pod, "overhead": {"example.com/gpu": 1}}, *classes)
    assert with_overhead.pod_sets[0].requests == Counter({counted: 2}) + Counter({"example.com/gpu": 1})
