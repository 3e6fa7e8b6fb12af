from typing import Any

import pytest

from dranode.api.documents import decode
from dranode.api.resource import DeviceClaim, DeviceClass, ResourceClaim, ResourceClaimTemplate
from dranode.api.validation import claim_errors, class_errors, devices_by_class, template_errors


def anything(_: str) -> None:
    return None


def errors(devices: dict[str, Any], name: str = "c") -> dict[str, str]:
    claim = decode(ResourceClaim, {"metadata": {"name": name}, "spec": {"devices": devices}})
    return {error.path: error.message for error in claim_errors(claim, anything)}


def exactly(**wanted: Any) -> dict[str, Any]:
    return {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu", **wanted}}]}


def alternatives(*names: str) -> dict[str, Any]:
    return {"name": "r", "firstAvailable": [{"name": name, "deviceClassName": "g"} for name in names]}


def test_a_valid_claim_has_no_errors() -> None:
    assert not errors(
        {
            "requests": [
                {"name": "a", "exactly": {"deviceClassName": "gpu", "allocationMode": "All", "adminAccess": True}},
                {"name": "b", "firstAvailable": [{"name": "x", "deviceClassName": "gpu", "count": 2}]},
            ],
            "constraints": [{"requests": ["a", "b/x"], "matchAttribute": "gpu.example.com/model"}],
            "config": [{"requests": ["b"], "opaque": {"driver": "gpu.example.com", "parameters": {}}}],
        }
    )


@pytest.mark.parametrize(
    ("devices", "path", "message"),
    [
        ({"requests": [{"name": "R", "exactly": {"deviceClassName": "gpu"}}]}, "spec.devices.requests[0].name", '"R"'),
        ({"requests": [{"name": "r"}]}, "spec.devices.requests[0]", "exactly one of exactly and firstAvailable"),
        (
            {"requests": [{**alternatives("a"), "exactly": {"deviceClassName": "g"}}]},
            "spec.devices.requests[0]",
            "both are set",
        ),
        (exactly(deviceClassName=""), "spec.devices.requests[0].exactly.deviceClassName", "required"),
        (exactly(deviceClassName="A_b"), "spec.devices.requests[0].exactly.deviceClassName", '"A_b"'),
        (exactly(count=-1), "spec.devices.requests[0].exactly.count", "-1 must be greater than zero"),
        (exactly(count=1 << 63), "spec.devices.requests[0].exactly.count", "does not fit in 64 bits"),
        (exactly(count=2, allocationMode="All"), "spec.devices.requests[0].exactly.count", "allocationMode is All"),
        (exactly(allocationMode="Some"), "spec.devices.requests[0].exactly.allocationMode", '"Some"'),
        (exactly(selectors=[{}]), "spec.devices.requests[0].exactly.selectors[0].cel", "required"),
        (exactly(selectors=[{"cel": {"expression": "true"}}] * 33), "spec.devices.requests[0].exactly.selectors", "33"),
        (
            exactly(tolerations=[{"operator": "Exists", "value": "x"}]),
            "spec.devices.requests[0].exactly.tolerations[0].value",
            "must be empty",
        ),
        (
            exactly(tolerations=[{"key": "a b"}]),
            "spec.devices.requests[0].exactly.tolerations[0].key",
            "not a label name",
        ),
        (
            exactly(tolerations=[{"key": "a", "operator": "Like"}]),
            "spec.devices.requests[0].exactly.tolerations[0].operator",
            '"Like"',
        ),
        (
            exactly(tolerations=[{"key": "a", "effect": "Prefer"}]),
            "spec.devices.requests[0].exactly.tolerations[0].effect",
            '"Prefer"',
        ),
        (
            exactly(capacity={"requests": {"a/b/c": "1"}}),
            "spec.devices.requests[0].exactly.capacity.requests[a/b/c]",
            "qualified name",
        ),
        ({"requests": exactly()["requests"] * 2}, "spec.devices.requests[1].name", '"r" is a duplicate'),
        (
            {"requests": [{"name": f"r{n}", "exactly": {"deviceClassName": "g"}} for n in range(33)]},
            "spec.devices.requests",
            "33 entries are more than 32",
        ),
        (
            {"requests": [alternatives(*(f"a{n}" for n in range(9)))]},
            "spec.devices.requests[0].firstAvailable",
            "9 entries are more than 8",
        ),
        (
            {"requests": [alternatives("a", "a")]},
            "spec.devices.requests[0].firstAvailable[1].name",
            "is a duplicate",
        ),
        ({**exactly(), "constraints": [{}]}, "spec.devices.constraints[0]", "not 0"),
        (
            {**exactly(), "constraints": [{"matchAttribute": "a.b/c", "distinctAttribute": "a.b/d"}]},
            "spec.devices.constraints[0]",
            "not 2",
        ),
        ({**exactly(), "constraints": [{"matchAttribute": "c"}]}, "spec.devices.constraints[0].matchAttribute", '"c"'),
        (
            {**exactly(), "constraints": [{"requests": ["r/x"], "matchAttribute": "a.b/c"}]},
            "spec.devices.constraints[0].requests[0]",
            '"r/x" is neither a request',
        ),
        ({**exactly(), "config": [{"requests": ["q"]}]}, "spec.devices.config[0].requests[0]", '"q"'),
        ({**exactly(), "config": [{}]}, "spec.devices.config[0].opaque", "required"),
        (
            {**exactly(), "config": [{"opaque": {"driver": "d_", "parameters": {}}}]},
            "spec.devices.config[0].opaque.driver",
            '"d_"',
        ),
        (
            {**exactly(), "config": [{"opaque": {"driver": "d", "parameters": [1]}}]},
            "spec.devices.config[0].opaque.parameters",
            "a JSON object, not [1]",
        ),
        (
            {**exactly(), "config": [{"opaque": {"driver": "d", "parameters": {"x": "y" * 10_240}}}]},
            "spec.devices.config[0].opaque.parameters",
            "10248 bytes of parameters are more than 10240",
        ),
    ],
)  # fmt: skip
def test_a_broken_rule_of_the_api_server_is_reported_with_its_path(
    devices: dict[str, Any], path: str, message: str
) -> None:
    assert message in errors(devices)[path]


def test_all_errors_are_found_not_only_the_first() -> None:
    assert len(errors({"requests": [{"name": "R"}, {"name": "R"}], "constraints": [{}]}, name="A_b")) == 6


def test_selectors_of_alternatives_templates_and_classes_are_checked() -> None:
    selectors = [{"cel": {"expression": "x"}}]
    alternative = {"name": "a", "deviceClassName": "g", "selectors": selectors}
    devices = {"requests": [{"name": "r", "firstAvailable": [alternative]}]}
    template = decode(
        ResourceClaimTemplate, {"metadata": {"generateName": "t-"}, "spec": {"spec": {"devices": devices}}}
    )
    found = template_errors(template, lambda expression: f"not {expression}")
    path = "spec.spec.devices.requests[0].firstAvailable[0].selectors[0].cel.expression"
    assert [(error.path, error.message) for error in found] == [(path, "not x")]
    device_class = decode(DeviceClass, {"metadata": {"name": "c"}, "spec": {"selectors": selectors, "config": [{}]}})
    assert [error.path for error in class_errors(device_class, lambda _: "no")] == [
        "spec.selectors[0].cel.expression",
        "spec.config[0].opaque",
    ]


@pytest.mark.parametrize(("name", "good"), [("example.com/gpu", True), ("gpu", False), ("kubernetes.io/gpu", False)])
def test_an_extended_resource_has_a_domain_other_than_kubernetes(name: str, good: bool) -> None:  # noqa: FBT001 - a parameter of the test
    device_class = decode(DeviceClass, {"metadata": {"name": "c"}, "spec": {"extendedResourceName": name}})
    assert bool(class_errors(device_class, anything)) is not good


def test_each_alternative_counts_against_its_class_and_the_largest_of_one_class() -> None:
    devices = {
        "requests": [
            {"name": "a", "exactly": {"deviceClassName": "gpu", "count": 2}},
            {"name": "b", "exactly": {"deviceClassName": "nic", "allocationMode": "All"}},
            {
                "name": "c",
                "firstAvailable": [
                    {"name": "x", "deviceClassName": "gpu", "count": 1},
                    {"name": "y", "deviceClassName": "gpu", "count": 3},
                    {"name": "z", "deviceClassName": "cpu"},
                ],
            },
        ]
    }
    assert devices_by_class(decode(DeviceClaim, devices)) == {"gpu": 5, "nic": 32, "cpu": 1}
