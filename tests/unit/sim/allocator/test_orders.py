"""The orders of pools and slices that are tried for releases without a fixed order."""

from itertools import permutations

from dranode.api.documents import decode
from dranode.api.resource import Node, ResourceSlice
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.pools import MAX_ORDERS, Pool, PoolIndex, orders


def pools(*slices: int) -> tuple[Pool, ...]:
    """One pool for each number of slices, and one device in each slice."""
    documents = [
        {
            "metadata": {"name": f"{pool}-{number}"},
            "spec": {
                "driver": "d",
                "pool": {"name": f"p{pool}", "generation": 1, "resourceSliceCount": count},
                "nodeName": "n",
                "devices": [{"name": f"d{number}"}],
            },
        }
        for pool, count in enumerate(slices)
        for number in range(count)
    ]
    index = PoolIndex([decode(ResourceSlice, each) for each in documents], Features())
    return index.pools(decode(Node, {"metadata": {"name": "n"}}))


def shown(order: tuple[Pool, ...]) -> tuple[str, ...]:
    return tuple(f"{pool.id.pool}/{one.device.name}" for pool in order for one in pool.candidates)


def test_all_orders_are_tried_if_there_are_few() -> None:
    given = pools(1, 1, 1)
    made = {shown(order) for order in orders(given)}
    assert made | {shown(given)} == set(permutations(shown(given)))
    assert shown(given) not in made


def test_the_slices_of_a_pool_stay_together() -> None:
    given = pools(2, 2)
    made = [shown(order) for order in orders(given)]
    assert len(set(made)) == len(made) == 7
    assert all({one.partition("/")[0] for one in order[:2]} in ({"p0"}, {"p1"}) for order in made)


def test_some_of_many_orders_are_tried_that_begin_with_different_pools() -> None:
    made = [shown(order) for order in orders(pools(2, 2, 2, 2))]
    assert len(set(made)) == len(made)
    assert MAX_ORDERS - 2 <= len(made) <= MAX_ORDERS
    assert len({order[0] for order in made}) > 3


def test_a_single_slice_has_only_one_order() -> None:
    assert not list(orders(pools(1)))
    assert not list(orders(()))
