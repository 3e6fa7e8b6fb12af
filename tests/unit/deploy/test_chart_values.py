"""The schema of the chart's values refuses what the driver would refuse when it starts."""

import json
import re
from typing import Any

import jsonschema
import pytest
import yaml

from dranode.driver import UsageError
from dranode.driver.claims.options import FRAMEWORK_KEYS
from dranode.driver.cli.options import driver_settings
from dranode.driver.plugins import declared
from dranode.memory.options import parse_reserved
from tests.fakes.kustomize import DEPLOY

CHART = DEPLOY / "chart"
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
OURS = ("cpu", "gpu", "memory")
# The template refuses these, and says which value of the chart to set instead.
REFUSED_BY_A_TEMPLATE = ("maxIsolation", "hostRoot")


def problems(values: dict[str, Any]) -> list[str]:
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    merged = {
        key: {**value, **values[key]} if isinstance(value, dict) and key in values else values.get(key, value)
        for key, value in {**values, **defaults}.items()
    }
    return [
        f"{error.json_path}: {error.message}" for error in jsonschema.Draft202012Validator(SCHEMA).iter_errors(merged)
    ]


def test_the_defaults_of_the_chart_follow_its_schema_also_below_another_chart() -> None:
    assert problems({"enabled": True, "global": {"a": 1}}) == []


@pytest.mark.parametrize(
    "value",
    [
        "", "0:1Gi", "0:1Gi,1:1Gi", "0:1Gi, 1:512Mi", "0:memory=1Gi,hugepages-2Mi=64Mi", "0:1e9", "0:0.5Gi",
        "0:memory=1Gi,hugepages-2Mi=64Mi;1:memory=1Gi", "12:1024",
    ],
)  # fmt: skip
def test_memory_that_the_driver_can_reserve_is_accepted(value: str) -> None:
    parse_reserved(value)
    assert problems({"memory": {"reservedMemory": value}}) == []
    assert problems({"drivers": ["memory"], "config": {"plugins": {"memory": {"reservedMemory": value}}}}) == []


@pytest.mark.parametrize(
    "value", ["1Gi", "a:1Gi", "0=1Gi", "0:", "0:1GB", "memory=1Gi", "0:memory", "0:mem=1Gi", "0:-1Gi"]
)
def test_memory_that_the_driver_would_not_understand_is_refused(value: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f'"{value}"')):
        parse_reserved(value)
    assert problems({"memory": {"reservedMemory": value}})
    assert problems({"config": {"plugins": {"memory": {"reservedMemory": value}}}})


def keys() -> list[tuple[tuple[str, ...], Any]]:
    """Every key of the configuration file that belongs to one of our drivers, with its option."""
    return [
        (("plugins", each.section, each.key) if each.section else (each.key,), each.option)
        for each in declared().options
        if each.driver in OURS and each.key not in REFUSED_BY_A_TEMPLATE
    ]


def in_config(place: tuple[str, ...], value: Any) -> dict[str, Any]:
    for key in reversed(place):
        value = {key: value}
    return {"config": value}


@pytest.mark.parametrize(
    ("place", "option"), keys(), ids=lambda each: ".".join(each) if isinstance(each, tuple) else ""
)
def test_every_driver_key_takes_the_same_values_in_chart_and_file(place: tuple[str, ...], option: Any) -> None:
    for value in option.choices or ([True, False] if isinstance(option.default, bool) else [option.default]):
        assert problems(in_config(place, value)) == []
    wrong = ["soket"] if option.choices else ["yes", 1] if isinstance(option.default, bool) else [True, ["a"]]
    for value in wrong:
        assert problems(in_config(place, value)), (place, value)


def test_the_chart_knows_every_framework_key_and_refuses_misspelt_ones() -> None:
    known = set(SCHEMA["properties"]["config"]["properties"])
    assert known == {
        *FRAMEWORK_KEYS,
        "apiVersion",
        "plugins",
        "maxIsolation",
        *(place[0] for place, _ in keys() if len(place) == 1),
    }
    for place in (("groupby",), ("gropBy",), ("plugins", "cpu", "groupBy"), ("plugins", "gpu", "sharing")):
        assert problems(in_config(place, "socket")), place
    assert problems(in_config(("plugins", "memory", "gropBy"), "socket"))
    assert problems(in_config(("plugins", "cpuu"), "socket"))


def test_a_third_partys_driver_may_have_keys_that_the_chart_does_not_know() -> None:
    config = {
        "apiVersion": "v1alpha1",
        "idleSpeed": 3,
        "plugins": {"fans": {"idleSpeed": 3}, "memory": {"groupBy": "socket"}},
    }
    assert problems({"drivers": ["cpu", "fans"], "config": config}) == []
    assert problems({"drivers": ["cpu"], "config": config})
    assert problems({"drivers": ["cpu", "fans"], "config": {"groupBy": "soket"}})


def test_a_framework_key_takes_what_serve_takes() -> None:
    assert problems({"config": {"claimStatus": "off", "deviceTaints": True, "logFormat": "text", "verbosity": 2}}) == []
    for key, wrong in (("claimStatus", False), ("deviceTaints", "on"), ("logFormat", "plain"), ("verbosity", "2")):
        assert problems({"config": {key: wrong}}), key


def test_reserved_cpus_are_written_the_same_in_file_and_value() -> None:
    for section in ("cpu", "config"):
        found = [problems({section: {"reservedCPUs": value}}) for value in ("0-1,8", "0", "", "a-b")]
        assert [not each for each in found] == [True, True, True, False]


def test_drivers_are_entry_points_and_driver_names_are_checked() -> None:
    assert problems({"drivers": ["cpu", "fpga"]}) == []
    assert problems({"drivers": ["cpu", "fans"], "driverNames": {"fans": "fans.example.com"}}) == []
    for values in ({"drivers": ["cpu,fpga"]}, {"drivers": [""]}, {"driverNames": {"fans": "Fans/x"}}):
        assert problems(values), values


def test_the_chart_uses_only_flags_and_keys_that_the_program_has() -> None:
    flags = {setting.flag for setting in driver_settings()}
    template = (CHART / "templates" / "daemonset.yaml").read_text()
    named = set(
        re.findall(r"^ +- (--(?:cpu|gpu|memory|group|reserved|threads|max|huge)[\w-]*)", template, re.MULTILINE)
    )
    assert named
    assert named <= flags
