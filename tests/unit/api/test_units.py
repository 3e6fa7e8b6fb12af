"""How amounts are named for people: memory and huge pages by Kubernetes' names, others as they are published."""

import pytest

from dranode.api.resource import Device, DeviceAttribute
from dranode.show.picture.devices import unit_of

DRIVER = "memory.example.com"


def device(**attributes: DeviceAttribute) -> Device:
    return Device(name="m", attributes=attributes)


HUGE, PLAIN = DeviceAttribute(bool_=True), DeviceAttribute(bool_=False)


@pytest.mark.parametrize(("size", "unit"), [("2m", "2Mi"), ("1g", "1Gi"), ("64k", "64Ki"), ("512m", "512Mi")])
def test_huge_pages_have_the_name_of_the_kubernetes_resource(size: str, unit: str) -> None:
    pages = device(hugeTLB=HUGE, pageSize=DeviceAttribute(string=size))
    assert unit_of(pages, "size", DRIVER) == unit_of(pages, f"{DRIVER}/size", DRIVER) == f"hugepages-{unit}"


def test_ordinary_memory_is_called_memory_whatever_its_page_size() -> None:
    assert unit_of(device(hugeTLB=PLAIN), "size", DRIVER) == "memory"
    assert unit_of(device(hugeTLB=PLAIN, pageSize=DeviceAttribute(string="4k")), "size", DRIVER) == "memory"


def test_attributes_with_the_drivers_domain_count_and_those_of_others_do_not() -> None:
    own = Device(name="m", attributes={f"{DRIVER}/hugeTLB": PLAIN})
    other = Device(name="m", attributes={"example.org/hugeTLB": PLAIN})
    assert unit_of(own, "size", DRIVER) == "memory"
    assert unit_of(other, "size", DRIVER) == f"{DRIVER}/size"


def test_other_capacities_keep_their_qualified_names() -> None:
    assert unit_of(device(), "size", DRIVER) == f"{DRIVER}/size"
    assert unit_of(device(hugeTLB=PLAIN), "bandwidth", DRIVER) == f"{DRIVER}/bandwidth"
    assert unit_of(device(), "example.org/size", DRIVER) == "example.org/size"
    for size in ("", "2MB", "many", "-2m"):
        pages = device(hugeTLB=HUGE, pageSize=DeviceAttribute(string=size))
        assert unit_of(pages, "size", DRIVER) == f"{DRIVER}/size"
