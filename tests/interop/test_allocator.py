"""Our allocator beside each release's Go allocator, on random scenarios; ALLOCATOR_SCENARIOS is how many of each.

Attributes:
    ALLOCATOR_SEED: an environment variable: the first scenario's number, 0 by default.
"""

import os
import shutil

import pytest

from dranode.sim.allocator.releases import RELEASES
from tests.interop.random_allocations import compare

pytestmark = pytest.mark.interop

COUNT = int(os.environ.get("ALLOCATOR_SCENARIOS", "0"))
FIRST = int(os.environ.get("ALLOCATOR_SEED", "0"))


@pytest.mark.parametrize("name", RELEASES)
def test_random_scenarios_are_answered_as_the_release_answers(name: str) -> None:
    if not COUNT:
        pytest.skip("make interop-allocator builds Go's allocators, which takes minutes")
    if shutil.which("go") is None:
        pytest.skip("there is no Go to build the allocators with")
    comparison = compare(name, range(FIRST, FIRST + COUNT))
    assert (comparison.different, comparison.crashed) == ([], [])
    # If Go exceeds its time limit, there is nothing to compare with: 6 in 1,000 until 1.35, 3 in 10,000 since.
    assert len(comparison.unanswered) <= COUNT // 100 + 1
