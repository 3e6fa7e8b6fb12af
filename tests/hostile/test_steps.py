"""A sample of the hostile steps that `make hostile` takes, and that what is looked at can be wrong."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dranode.driver.core.api.cpuset import CPUSet
from tests.hostile.book import BookedClaim
from tests.hostile.node import Node
from tests.hostile.run import run
from tests.hostile.runtime import Violation
from tests.hostile.settling import settle, settled
from tests.hostile.steps import Steps


@pytest.fixture
def steps() -> Iterator[Steps]:
    node = Node(Path(tempfile.mkdtemp(prefix="hostile-", dir="/tmp")))
    try:
        steps = Steps(node, random.Random(1), past=[""])
        settle(steps)
        yield steps
    finally:
        node.close()


def prepared(steps: Steps) -> BookedClaim:
    claim = steps.node.allocate("c0", 0, 2)
    assert steps.node.prepare("a", [claim]) == []
    return claim


def test_a_sample_of_steps_violates_nothing() -> None:
    assert sum(run(150, 20261122).counts.values()) == 150


def test_an_answer_that_differs_is_a_violation(steps: Steps) -> None:
    claim = prepared(steps)
    claim.devices = (b"other",)
    with pytest.raises(Violation, match="kubelet was told"):
        settle(steps)


def test_other_cpus_than_before_are_a_violation(steps: Steps) -> None:
    claim = prepared(steps)
    claim.cpus = CPUSet((7, 15))
    with pytest.raises(Violation, match="kubelet was told when it had 7,15"):
        steps.node.prepare("a", [claim])


def test_a_cpu_of_two_claims_is_a_violation(steps: Steps) -> None:
    claim = prepared(steps)
    other = steps.node.allocate("c1", 0, 2)
    claim.cpus = CPUSet(range(16))
    with pytest.raises(Violation, match="both have"):
        steps.node.prepare("a", [other])


def test_something_left_of_an_unprepared_claim_is_a_violation(steps: Steps) -> None:
    claim = prepared(steps)
    (steps.node.cdi / f"left-of-{claim.uid}.json").write_text("{}")
    with pytest.raises(Violation, match="are left"):
        steps.node.unprepare("a", claim)


def test_masks_that_are_not_right_are_violations(steps: Steps) -> None:
    claim = prepared(steps)
    settled(steps, lambda: [] if steps.node.runtime.plugins else ["no plug-in"], "the driver is not connected")
    assert steps.node.run(None) == ""
    assert steps.node.run(claim) == ""
    shared, mine = steps.node.runtime.containers.values()
    with pytest.raises(Violation, match="is widened"):
        steps.node.book.change(mine, CPUSet(range(16)))
    shared.message.linux.resources.cpu.cpus = "0-15"
    with pytest.raises(Violation, match="runs there"):
        steps.node.book.created(mine, [shared, mine])
    with pytest.raises(Violation, match="has no claim"):
        steps.node.book.created(shared, [shared, mine])


def test_cpus_of_a_claim_without_a_container_count_for_the_instance_that_prepared_it(steps: Steps) -> None:
    claim = prepared(steps)
    settled(steps, lambda: [] if steps.node.runtime.plugins else ["no plug-in"], "the driver is not connected")
    assert steps.node.run(None) == ""
    (shared,) = steps.node.runtime.containers.values()
    shared.message.linux.resources.cpu.cpus = str(claim.cpus)
    steps.node.book.created(shared, [shared], alone="b")
    with pytest.raises(Violation, match="has no claim"):
        steps.node.book.created(shared, [shared], alone="a")
