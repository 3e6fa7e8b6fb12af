"""Field names as Kubernetes writes them: a field with another name, such as `hostIp` for `hostIP`, is read as empty."""

import importlib
import pkgutil
import re
from collections.abc import Iterator

import msgspec

import dranode.driver
import dranode.sim
import dranode.tools.kubectl
from dranode.api.resource import APIDocument

# Kubernetes' API conventions: the letters of an acronym are all upper case or, at the beginning, all lower case.
ACRONYM = re.compile(r"(Api|Cel|Cidr|Cpu|Dns|Id|Ip|Os|Tls|Uid|Uri|Url)s?(?![a-z])")


def documents() -> Iterator[type[APIDocument]]:
    """Every type of value that is read from Kubernetes documents."""
    for package in (dranode.driver, dranode.tools.kubectl, dranode.sim):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    remaining: list[type[APIDocument]] = [APIDocument]
    while remaining:
        kind = remaining.pop()
        remaining += kind.__subclasses__()
        yield kind


def test_no_field_has_an_acronym_in_camel_case() -> None:
    fields = {(kind.__name__, each.encode_name) for kind in documents() for each in msgspec.structs.fields(kind)}
    assert {("ContainerPort", "hostIP"), ("DeviceRequestAllocationResult", "shareID")} <= fields
    assert sorted(f"{kind}.{name}" for kind, name in fields if ACRONYM.search(name)) == []
