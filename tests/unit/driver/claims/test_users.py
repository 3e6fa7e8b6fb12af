"""`status.reservedFor` as kubelet interprets it: the cases of `IsReservedForPod` and `IsForPod` of 1.37."""

from typing import Any

import pytest

from dranode.api.documents import decode
from dranode.api.resource import ResourceClaim
from dranode.driver.claims.users import is_reserved_for, names_every_pod, owning_group

POD = {"resource": "pods", "name": "app", "uid": "uid-app"}
GROUP = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "crew", "uid": "uid-crew"}
OTHER = {"apiGroup": "example.com", "resource": "podgroups", "name": "crew", "uid": "uid-other"}


def reserved(*consumers: Any) -> ResourceClaim:
    return decode(ResourceClaim, {"metadata": {"name": "c"}, "status": {"reservedFor": list(consumers)}})


@pytest.mark.parametrize(
    ("consumers", "group", "may"),
    [
        ((POD,), "", True),
        ((), "", False),
        ((), "crew", False),
        ((GROUP,), "crew", True),
        ((GROUP,), "", False),
        ((GROUP,), "others", False),
        ((OTHER,), "crew", False),
        (({**GROUP, "resource": "workloads"},), "crew", False),
        (({**POD, "uid": "uid-earlier", "name": "crew"},), "crew", False),
        (({**POD, "uid": "uid-earlier"}, GROUP), "crew", True),
    ],
)
def test_a_claim_is_reserved_for_a_pod_by_its_uid_or_by_the_name_of_its_group(
    consumers: tuple[Any, ...], group: str, *, may: bool
) -> None:
    assert is_reserved_for(reserved(*consumers), "uid-app", group) is may


def test_a_consumer_is_a_pod_a_pod_group_or_neither() -> None:
    consumers = reserved(POD, GROUP, OTHER, {"resource": "widgets", "name": "w", "uid": "u"}).status.reserved_for
    assert [str(consumer) for consumer in consumers] == ["app", "podgroup crew", "podgroups crew", "widgets w"]


@pytest.mark.parametrize(
    ("consumers", "all_named"),
    [((POD,), True), ((), False), ((GROUP,), False), ((POD, GROUP), False), (({**POD, "uid": ""},), False)],
)
def test_the_pods_of_a_claim_are_known_if_it_names_each_by_its_uid(
    consumers: tuple[Any, ...], *, all_named: bool
) -> None:
    assert names_every_pod(reserved(*consumers).status.reserved_for) is all_named


@pytest.mark.parametrize(
    ("changed", "group"),
    [
        ({}, "crew"),
        ({"apiVersion": "scheduling.k8s.io/v1"}, "crew"),
        ({"apiVersion": "scheduling.k8s.io.example.com/v1"}, ""),
        ({"kind": "Workload"}, ""),
        ({"controller": False}, ""),
    ],
)
def test_the_pod_group_that_a_claim_was_created_for_controls_it(changed: dict[str, Any], group: str) -> None:
    owner = {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "name": "crew", "uid": "u"}
    metadata = {"name": "c", "ownerReferences": [{**owner, "controller": True, **changed}]}
    assert owning_group(decode(ResourceClaim, {"metadata": metadata})) == group
