"""Our allocator beside Go's of each release, on random scenarios. ALLOCATOR_SCENARIOS says on how many of each."""

from __future__ import annotations

import os
import shutil

import pytest

from dranode.sim.allocator.releases import RELEASES
from tests.interop.goallocator import Scenario, answers_of, batches, built, differs, running, scenarios

pytestmark = pytest.mark.interop

COUNT = int(os.environ.get("ALLOCATOR_SCENARIOS", "0"))


def without_names(asked: list[Scenario]) -> list[Scenario]:
    """The alpha whose module can be had has no long and short capacity names yet."""
    return [each for each in asked if not any("capacity" in device for device in devices(each))]


def devices(scenario: Scenario) -> list[dict[str, object]]:
    return [device for each in scenario.document["slices"] for device in each["spec"].get("devices", ())]


@pytest.mark.parametrize("name", RELEASES)
def test_random_scenarios_are_answered_as_the_release_answers(name: str) -> None:
    if not COUNT:
        pytest.skip("make interop-allocator builds Go's allocators, which takes minutes")
    if shutil.which("go") is None:
        pytest.skip("there is no Go to build the allocators with")
    release = RELEASES[name]
    program = built(release)
    wrong = []
    with running(program) as process:
        for batch in batches(scenarios(release, range(COUNT))):
            asked = without_names(batch) if name == "1.38-alpha" else batch
            answers = answers_of(process, asked)
            wrong += [one.seed for one, theirs in zip(asked, answers, strict=True) if differs(release, one, theirs)]
    assert wrong == []
