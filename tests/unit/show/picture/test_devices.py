""""""

import pytest

from dranode.api.resource import Device, DeviceAttribute, ObjectMeta, ResourcePool, ResourceSlice, ResourceSliceSpec
from dranode.show.picture.devices import Published, published, unit_of, with_unpublished
from dranode.show.picture.fleet import DeviceKey, DeviceShare, FleetClaim


def slice_of(node: str, *names: str, generation: int = 1, count: int = 1, pool: str = "") -> ResourceSlice:
    return ResourceSlice(
        metadata=ObjectMeta(name=f"{node}-{generation}"),
        spec=ResourceSliceSpec(
            driver="d",
            pool=ResourcePool(name=pool or node, generation=generation, resource_slice_count=count),
            node_name=node or None,
            devices=tuple(Device(name=name) for name in names),
        ),
    )


def names(what: Published) -> dict[str, list[str]]:
    return {node.name: [device.key.device for device in node.devices] for node in what.nodes}


def test_only_the_newest_generation_of_a_pool_counts() -> None:
    slices = [slice_of("a", "old", generation=1), slice_of("a", "new", generation=2), slice_of("b", "x")]
    assert names(published(slices, {}, {})) == {"a": ["new"], "b": ["x"]}


def test_nodes_are_sorted_by_number_and_devices_of_several_nodes_come_last() -> None:
    what = published([slice_of("n-10"), slice_of("n-9"), slice_of("", "far", pool="fabric")], {"n-1": ()}, {})
    assert [node.name for node in what.nodes] == ["n-1", "n-9", "n-10", ""]


def test_a_pool_that_lacks_slices_is_reported_on_its_node() -> None:
    (node,) = published([slice_of("a", "x", count=2)], {"a": ("cordoned",)}, {}).nodes
    assert node.remarks[0] == "cordoned"
    assert "incomplete: pool a of d has 1 of 2 slices" in node.remarks[1]
    (whole,) = published([slice_of("a", "x")], {"a": ()}, {}).nodes
    assert whole.remarks == ()


def test_held_but_unpublished_devices_are_on_the_node_of_their_pool() -> None:
    what = published([slice_of("a", "x")], {}, {})
    claims = [
        FleetClaim("ns/c", shares=(DeviceShare(DeviceKey("d", "a", "x")), DeviceShare(DeviceKey("d", "a", "gone")))),
        FleetClaim("ns/e", shares=(DeviceShare(DeviceKey("d", "elsewhere", "y")),)),
    ]
    shown = with_unpublished(what, claims)
    assert names(shown) == {"a": ["x", "gone"], "": ["y"]}
    assert [device.published for node in shown.nodes for device in node.devices] == [True, False, False]
    assert with_unpublished(what, []) is what


# --- How amounts are named for people: memory and huge pages by Kubernetes' names, others as they are published ---


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
