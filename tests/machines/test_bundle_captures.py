"""Devices of captured machines that belong together (hwloc's test data, beside the repository)."""

from collections import defaultdict

import pytest

from dranode.api.resource import Node, ObjectMeta, ResourceSlice
from dranode.driver.plugins import load_plugins
from dranode.driver.slices.desired import desired_slices
from dranode.driver.slices.plan import complete_slice
from dranode.driver.slices.publishable import publishable
from dranode.sim.allocator.features import Features
from dranode.sim.bundle.offers import offers_for
from dranode.sim.cluster.pods import ClusterDocuments
from tests.machines.test_captured_machines import NAMES, captured

DRIVERS = ("cpu", "memory", "gpu")
ATTRIBUTES = ("resource.kubernetes.io/numaNode", "resource.kubernetes.io/pcieRoot")


def published(name: str) -> list[ResourceSlice]:
    slices = []
    for plugin in load_plugins(DRIVERS, captured(name), {"node_name": "n"}):
        specs = desired_slices(plugin.driver, "n", publishable(plugin.discover()))
        slices += [complete_slice(spec, index, len(specs)) for index, spec in enumerate(specs)]
    return slices


@pytest.mark.parametrize("name", NAMES)
def test_bundles_are_all_devices_of_each_value_and_their_templates_fit(name: str) -> None:
    slices = published(name)
    expected: dict[tuple[str, object], set[tuple[str, str]]] = defaultdict(set)
    for one in slices:
        for device in one.spec.devices:
            for attribute in ATTRIBUTES:
                value = device.attributes.get(attribute)
                if value is not None:
                    expected[attribute, value.string if value.int_ is None else value.int_].add(
                        (one.spec.driver, device.name)
                    )
    cluster = ClusterDocuments(tuple(slices), (), (Node(metadata=ObjectMeta(name="n")),), ())
    offers = offers_for(cluster, Features())
    found = {
        (bundle.attribute, bundle.value): {(each.pool.driver, each.device.name) for each in bundle.devices}
        for bundle in offers.bundles
    }
    assert found == expected
    assert len(found) == len(offers.bundles)
    assert [offer.proof.problem for offer in offers.offers if not offer.proof.count] == []
    whole = [offer for offer in offers.offers if offer.shape.name.startswith("numa-node")]
    assert bool(whole) == any(attribute == ATTRIBUTES[0] for attribute, _ in expected)
