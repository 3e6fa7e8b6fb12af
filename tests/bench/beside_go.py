"""Compares our allocator with Go's: both answer the same random scenarios in one run.

Go's is built from its module (`k8s.io/dynamic-resource-allocation`, the newest stable release). Without Go there are no
rows.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from time import process_time
from typing import Final

from dranode.api.documents import decode
from dranode.api.resource import DeviceClass, Node, ResourceClaim, ResourceSlice
from dranode.sim.allocator.allocate import Allocator
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.releases import RELEASES
from tests.bench.table import Row
from tests.fakes.in_use import allocated_of
from tests.interop.goallocator import Scenario, built, go_features, running, scenarios

_RELEASE: Final = RELEASES["1.37"]
_SCENARIOS: Final = 500


def bench() -> Iterable[Row]:
    """The time spent in allocating, for all scenarios and for the median one."""
    if shutil.which("go") is None:
        return
    asked = list(scenarios(_RELEASE, range(_SCENARIOS)))
    theirs = _theirs(asked)
    pairs = [(_ours(one), each) for one, each in zip(asked, theirs, strict=True) if each is not None]
    for name, index in (("median", len(pairs) // 2), ("95th percentile", len(pairs) * 95 // 100)):
        ours, go = (sorted(pair[side] for pair in pairs)[index] for side in (0, 1))
        yield Row(f"allocate one of {len(pairs)} random scenarios: {name}", ours, "ms", go, "Go's allocator")
    ours, go = (sum(pair[side] for pair in pairs) for side in (0, 1))
    yield Row(f"allocate {len(pairs)} random scenarios", ours, "ms", go, "Go's allocator")


def _theirs(asked: list[Scenario]) -> list[float | None]:
    """Go's milliseconds for each scenario; None where it took too long."""
    times: list[float | None] = []
    with running(built(_RELEASE)) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for one in asked:
            process.stdin.write(json.dumps({**one.document, **go_features(one.gates)}) + "\n")
            process.stdin.flush()
            (answer,) = json.loads(process.stdout.readline())
            times.append(None if answer.get("timeout") else answer["milliseconds"])
    return times


def _ours(one: Scenario) -> float:
    document = one.document
    slices = [decode(ResourceSlice, each) for each in document["slices"]]
    classes = [decode(DeviceClass, each) for each in document["deviceClasses"]]
    allocator = Allocator(slices, classes, Features.of(_RELEASE, one.gates), new_share_id=lambda: "share")
    claims = [decode(ResourceClaim, each) for each in document["claims"]]
    node, allocated = decode(Node, document["node"]), allocated_of(document["inUse"])
    start = process_time()
    allocator.allocate(claims, node, allocated)
    return (process_time() - start) * 1000
