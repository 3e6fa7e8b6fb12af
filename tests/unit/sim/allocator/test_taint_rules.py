"""DeviceTaintRules: which devices they taint, in which release, and which API versions are read."""

from typing import Any

import pytest

from dranode.api.documents import decode
from dranode.api.errors import DocumentError, UsageError
from dranode.api.manifests import SourceDocument
from dranode.api.resource import ResourceSlice
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.releases import release
from dranode.sim.allocator.taint_rules import DeviceTaintRule, taint_rules, with_rule_taints

TAINT = {"key": "sick", "effect": "NoSchedule"}


def rule(selector: dict[str, Any] | None, version: str = "v1") -> DeviceTaintRule:
    spec = {"taint": TAINT, **({} if selector is None else {"deviceSelector": selector})}
    document = {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "DeviceTaintRule",
        "metadata": {"name": "r"},
        "spec": spec,
    }
    (made,) = taint_rules([SourceDocument("rules.yaml", 0, document)])
    return made


def slice_of(driver: str, pool: str) -> ResourceSlice:
    spec = {
        "driver": driver,
        "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1},
        "nodeName": "n",
        "devices": [{"name": "d0", "taints": [{"key": "own", "effect": "None"}]}, {"name": "d1"}],
    }
    return decode(ResourceSlice, {"metadata": {"name": f"{driver}-{pool}"}, "spec": spec})


SLICES = [slice_of("gpu", "p"), slice_of("gpu", "q"), slice_of("nic", "p")]
EVERY = ["gpu/p/d0", "gpu/p/d1", "gpu/q/d0", "gpu/q/d1", "nic/p/d0", "nic/p/d1"]


def tainted_devices(made: DeviceTaintRule, features: Features | None = None) -> list[str]:
    return [
        f"{slice_.spec.driver}/{slice_.spec.pool.name}/{device.name}"
        for slice_ in with_rule_taints(SLICES, [made], features or Features())
        for device in slice_.spec.devices
        if any(taint.key == "sick" for taint in device.taints)
    ]


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ({}, EVERY),
        ({"driver": "gpu"}, EVERY[:4]),
        ({"pool": "p"}, [*EVERY[:2], *EVERY[4:]]),
        ({"device": "d1"}, EVERY[1::2]),
        ({"driver": "gpu", "pool": "q", "device": "d0"}, ["gpu/q/d0"]),
        ({"driver": "other"}, []),
        (None, []),
    ],
)
def test_a_rule_taints_what_its_whole_selector_matches(selector: dict[str, Any] | None, expected: list[str]) -> None:
    assert tainted_devices(rule(selector)) == expected


def test_taints_of_the_driver_stay_next_to_those_of_rules() -> None:
    (first, *_) = with_rule_taints(SLICES, [rule({}), rule({"driver": "gpu"})], Features())
    assert [taint.key for taint in first.spec.devices[0].taints] == ["own", "sick", "sick"]
    assert [taint.key for taint in SLICES[0].spec.devices[0].taints] == ["own"]


def test_before_1_37_1_a_rule_without_selector_tainted_all_devices() -> None:
    on = {"DRADeviceTaintRules": True}
    assert tainted_devices(rule(None), Features.of(release("1.36"), on)) == EVERY
    assert tainted_devices(rule(None), Features.of(release("1.37.0"))) == EVERY
    assert tainted_devices(rule(None), Features.of(release("1.37.1"))) == []


def test_rules_are_ignored_while_their_gate_is_off() -> None:
    assert tainted_devices(rule({}), Features.of(release("1.36"))) == []
    assert tainted_devices(rule({}), Features.parse("DRADeviceTaintRules=false")) == []
    with pytest.raises(UsageError, match=r"DRADeviceTaintRules of Kubernetes 1\.37 needs DRADeviceTaints"):
        Features.parse("DRADeviceTaints=false")


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1alpha3"])
def test_every_served_version_is_read(version: str) -> None:
    assert tainted_devices(rule({"pool": "q"}, version)) == EVERY[2:4]


@pytest.mark.parametrize("selector", [{"deviceClassName": "gpu"}, {"selectors": [{"cel": {"expression": "true"}}]}])
def test_selectors_that_1_35_removed_are_refused_by_name(selector: dict[str, Any]) -> None:
    with pytest.raises(DocumentError, match=r"rules.yaml, document 1 \(DeviceTaintRule r\): spec.deviceSelector"):
        rule(selector, "v1alpha3")


def test_a_rule_without_taint_is_refused_with_its_place() -> None:
    document = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceTaintRule", "metadata": {"name": "r"}, "spec": {}}
    with pytest.raises(DocumentError, match=r"rules.yaml, document 1 \(DeviceTaintRule r\): spec.*taint"):
        taint_rules([SourceDocument("rules.yaml", 0, document)])
