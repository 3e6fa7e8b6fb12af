"""Opaque configuration: the three forms, rows of A.8, and how those of class and claim are merged."""

from typing import Any, Literal

import pytest

from dranode.api.cpuset import CPUSet
from dranode.api.documents import encode_json
from dranode.api.errors import ClaimError
from dranode.cpu.config import CFSQuota, CPUConfig, CPUPolicy, CPUSharing, Memory, Spread, merge, parse_cpu_config
from dranode.cpu.options import L3, PickPolicy, Threads
from dranode.driver.claims.grant import Config
from tests.fakes.cpu import own

PATH = "spec.devices.config[0].opaque.parameters"


def parse(parameters: Any, source: Literal["FromClass", "FromClaim"] = "FromClaim") -> CPUConfig:
    return parse_cpu_config(Config(source, parameters, PATH))


def merged(*parameters: Any) -> CPUPolicy:
    sources: list[Literal["FromClass", "FromClaim"]] = ["FromClass", *["FromClaim"] * len(parameters)]  # type: ignore[list-item]
    return merge(
        Config(source, parse(one, source), f"config[{index}]")
        for index, (source, one) in enumerate(zip(sources, parameters, strict=False))
    )


def form2(cpuset: Any) -> dict[str, Any]:
    return {"apiVersion": "v1alpha1", "cpuConfig": {"cpuset": cpuset}}


@pytest.mark.parametrize("parameters", [{"cpuset": "5,2-4"}, form2("5,2-4"), own(cpuset="5,2-4")])
def test_a_cpuset_is_read_from_each_form(parameters: Any) -> None:
    assert parse(parameters) == CPUConfig(cpuset="2-5")


def test_unknown_fields_in_the_references_form_are_ignored() -> None:
    assert parse({**form2("2"), "kind": "X", "cpuConfig": {"cpuset": "2", "more": 1}}) == CPUConfig(cpuset="2")


@pytest.mark.parametrize(
    ("parameters", "phrase"),
    [
        (form2(""), "opaque config: cpuConfig.cpuset is empty or missing"),
        ({"apiVersion": "v1alpha1"}, "opaque config: cpuConfig.cpuset is empty or missing"),
        (form2("abc"), 'opaque config: failed to parse cpuset "abc"'),
        ({**form2("2-5"), "apiVersion": "v1beta1"}, 'unsupported opaque config apiVersion: "v1beta1"'),
        ({"cpuConfig": {"cpuset": "2-5"}}, 'unsupported opaque config apiVersion: ""'),
        ({"cpuset": "2", "threads": "any"}, 'unsupported opaque config apiVersion: ""'),
        ('{"apiVersion": "v1alpha1", "cpuConf', "failed to unmarshal opaque config: expected an object, got a string"),
        (None, "failed to unmarshal opaque config: expected an object, got nothing"),
        (form2(5), "cpuConfig.cpuset: failed to unmarshal opaque config: expected a cpu-list, got a whole number"),
        ({"apiVersion": "v1alpha1", "cpuConfig": []}, "cpuConfig: failed to unmarshal opaque config"),
        ({"cpuset": ""}, "opaque config: cpuset is empty or missing"),
        (own(cpuset=""), "opaque config: cpuset is empty or missing"),
        ({"apiVersion": "dra.cpu/v1alpha1"}, 'kind: the kind of dra.cpu/v1alpha1 is CPUConfig, not ""'),
    ],
)
def test_an_invalid_configuration_is_refused_with_its_path(parameters: Any, phrase: str) -> None:
    with pytest.raises(ClaimError) as raised:
        parse(parameters)
    assert phrase in str(raised.value)
    assert str(raised.value).startswith(PATH)


def test_every_field_is_read() -> None:
    parameters = own(
        threads="one-per-core",
        l3="require",
        spread={"policy": "numa-distributed", "group": 2},
        sharing="pod",
        cfsQuota="unlimited",
        memory="local",
    )
    assert parse(parameters) == CPUConfig(
        threads=Threads.ONE_PER_CORE,
        l3=L3.REQUIRE,
        spread=Spread(policy=PickPolicy.NUMA_DISTRIBUTED, group=2),
        sharing=CPUSharing.POD,
        cfs_quota=CFSQuota.UNLIMITED,
        memory=Memory.LOCAL,
    )


@pytest.mark.parametrize(
    ("fields", "path", "phrase"),
    [
        ({"thread": "any"}, "", "unknown field thread"),
        ({"spread": {"groups": 2}}, ".spread", "unknown field groups"),
        ({"threads": "half-core"}, ".threads", '"half-core" is not one of any, full-core, one-per-core'),
        ({"spread": {"policy": "x"}}, ".spread.policy", '"x" is not one of packed, spread, numa-distributed'),
        ({"cfsQuota": "off"}, ".cfsQuota", '"off" is not one of keep, unlimited'),
        ({"spread": "packed"}, ".spread", "an object is expected"),
        ({"spread": {"policy": "numa-distributed", "group": 0}}, ".spread.group", ">= 1"),
        ({"spread": {"group": 2}}, ".spread.group", "only for the policy numa-distributed, not for packed"),
        ({"cpuset": "2", "threads": "full-core"}, ".threads", "cannot be combined with a cpuset"),
        ({"cpuset": "2", "l3": "prefer"}, ".l3", "cannot be combined with a cpuset"),
        ({"cpuset": "2", "spread": {}}, ".spread", "cannot be combined with a cpuset"),
        ({"cfs_quota": "keep"}, "", "unknown field cfs_quota"),
    ],
)
def test_a_wrong_field_is_named_by_its_path(fields: dict[str, Any], path: str, phrase: str) -> None:
    with pytest.raises(ClaimError) as raised:
        parse(own(**fields))
    assert str(raised.value).startswith(f"{PATH}{path}: ")
    assert phrase in str(raised.value)


@pytest.mark.parametrize("parameters", [{"cpuset": "2"}, form2("2"), own(cpuset="2", sharing="pod")])
def test_a_class_may_not_name_cpus(parameters: Any) -> None:
    with pytest.raises(ClaimError, match="configuration from DeviceClass is not supported by this driver"):
        parse(parameters, "FromClass")


def test_a_class_may_set_defaults() -> None:
    assert parse(own(threads="full-core"), "FromClass") == CPUConfig(threads=Threads.FULL_CORE)


def test_an_empty_configuration_has_every_default() -> None:
    assert merged() == CPUPolicy()


def test_claims_override_classes_field_by_field_in_list_order() -> None:
    policy = merged(
        own(threads="full-core", l3="ignore", sharing="pod"),
        own(threads="one-per-core", spread={"policy": "numa-distributed", "group": 4}),
        own(spread={"policy": "spread"}),
    )
    assert (policy.threads, policy.l3, policy.sharing) == (Threads.ONE_PER_CORE, L3.IGNORE, CPUSharing.POD)
    assert policy.spread == Spread(policy=PickPolicy.SPREAD)


@pytest.mark.parametrize("fields", [{"threads": "full-core"}, {"l3": "require"}, {"spread": {}}])
def test_a_cpuset_contradicts_a_class_that_chooses_cpus(fields: dict[str, Any]) -> None:
    with pytest.raises(
        ClaimError, match=r"config\[1\]: a cpuset names the CPUs, so it cannot .* which config\[0\] sets"
    ):
        merged(own(**fields), {"cpuset": "2-3"})


def test_all_cpusets_are_kept_for_the_decision() -> None:
    policy = merged(own(sharing="pod"), {"cpuset": "2"}, form2("3"))
    assert policy.cpusets == (CPUSet((2,)), CPUSet((3,)))


def test_a_parsed_configuration_can_be_hashed_with_its_claim() -> None:
    assert encode_json(parse(own(cfsQuota="unlimited", cpuset="3,2"))) == b'{"cpuset":"2-3","cfsQuota":"unlimited"}'
