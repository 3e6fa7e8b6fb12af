"""The simulator places random pods as real kube-schedulers did, recorded by tests/interop."""

import json
from pathlib import Path

import pytest

from dranode.sim.allocator.features import Features
from dranode.sim.allocator.releases import release
from tests.fakes.placements import replay

VECTORS = Path(__file__).parents[3] / "vectors"


@pytest.mark.parametrize("name", ["1.36.4", "1.37.1", "1.37.1-mappings"])
def test_pods_go_where_the_real_scheduler_put_them(name: str) -> None:
    recorded = json.loads((VECTORS / f"placements-{name}.json").read_text())
    features = Features.parse(recorded.get("gates", ""), release(recorded["version"]))
    differences = [text for case in recorded["cases"] for text in replay(case, features)]
    assert differences == []
    assert sum(len(case["steps"]) for case in recorded["cases"]) > 30
