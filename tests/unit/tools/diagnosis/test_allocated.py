"""Which node an allocation is on: by its node selector, or else by pools that have the names of nodes."""

from typing import Any

import pytest

from dranode.api.documents import decode
from dranode.api.resource import ResourceClaim
from dranode.tools.diagnosis.allocated import node_of

GPU = "gpu.example.com"


def claim(pools: list[str], *nodes: str) -> ResourceClaim:
    results = [{"request": "r", "driver": GPU, "pool": pool, "device": "d"} for pool in pools]
    field = {"key": "metadata.name", "operator": "In", "values": list(nodes)}
    allocation: dict[str, Any] = {"devices": {"results": results}}
    if nodes:
        allocation["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return decode(ResourceClaim, {"status": {"allocation": allocation}})


@pytest.mark.parametrize(
    ("allocated", "node"),
    [
        (claim(["rack-7"], "worker-1"), "worker-1"),
        (claim(["worker-2"]), "worker-2"),
        (claim(["a", "b"]), ""),
        (claim(["rack-7"], "worker-1", "worker-2"), ""),
        (ResourceClaim(), ""),
    ],
)
def test_the_node_of_an_allocation(allocated: ResourceClaim, node: str) -> None:
    assert node_of(allocated, GPU) == node
