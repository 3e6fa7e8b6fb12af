from dranode.api.resource import Device, ObjectMeta, ResourcePool, ResourceSlice, ResourceSliceSpec
from dranode.show.picture.devices import Published, published, with_unpublished
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
