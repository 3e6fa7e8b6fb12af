"""Takes a sample of the hostile steps of `make hostile`, and shows that each of its checks can fail."""

import os
import random
import resource
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dranode.api.cpuset import CPUSet
from tests.fakes.waiting import PATIENCE
from tests.hostile import three_drivers
from tests.hostile.book import BookedClaim
from tests.hostile.node import CPUS, EXEC_OF, Node
from tests.hostile.run import run
from tests.hostile.runtime import Violation
from tests.hostile.settling import settle, settled, ungranted
from tests.hostile.steps import Steps
from tests.hostile.zygote import ForkedProcess, zygote


@pytest.fixture
def steps() -> Iterator[Steps]:
    node = Node(Path(tempfile.mkdtemp(prefix="hostile-")))
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


def test_a_sample_of_steps_over_three_drivers_violates_nothing() -> None:
    assert three_drivers.run(60, 20261126)["prepare_new"] > 10


def test_all_cpus_can_be_granted_when_all_faults_are_repaired(steps: Steps) -> None:
    steps.node.set_online(CPUS - CPUSet((5, 6, 7)))
    settled(steps, lambda: [] if ungranted(steps) else ["all are granted"], "the driver does not look")
    settle(steps)
    assert steps.node.prepare("a", [steps.node.allocate("c0", 1, 7)]) == []


def test_the_runtime_polls_descriptors_above_the_limit_of_select(steps: Steps) -> None:
    steps.node.runtime.close()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    opened: list[int] = []
    try:
        while not opened or opened[-1] < 1024:
            opened.append(os.open(os.devnull, os.O_RDONLY))
        steps.node.runtime.open()
        settled(steps, lambda: [] if steps.node.runtime.plugins else ["no plug-in"], "the driver is not connected")
    finally:
        steps.node.runtime.close()
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_forked_driver_is_a_process_that_exits_by_itself(steps: Steps) -> None:
    prepared(steps)
    forked = steps.node.instances["a"].process
    assert isinstance(forked, ForkedProcess)
    assert Path(f"/proc/{forked.pid}/cwd").resolve() == steps.node.folder.resolve()
    assert forked.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        forked.wait(0.0)
    forked.terminate()
    assert forked.wait(PATIENCE) == 0
    wrong = zygote().fork(steps.node.folder, ["clock", "serve", "--nri-socket"])
    assert wrong.wait(PATIENCE) == 2, "a wrong usage"


def test_two_threads_may_wait_for_a_forked_driver(steps: Steps) -> None:
    forked = steps.node.instances["a"].process
    statuses: list[int | None] = []
    waiting = [threading.Thread(target=lambda: statuses.append(forked.wait(PATIENCE))) for _ in range(4)]
    for each in waiting:
        each.start()
    forked.kill()
    for each in waiting:
        each.join()
    assert [*statuses, forked.poll()] == [-signal.SIGKILL] * 5


def test_some_drivers_are_started_by_exec(steps: Steps) -> None:
    steps.node.starts = EXEC_OF - 1
    steps.node.start("b")
    assert isinstance(steps.node.instances["b"].process, subprocess.Popen)


def test_a_changed_answer_is_a_violation(steps: Steps) -> None:
    claim = prepared(steps)
    claim.devices = (b"other",)
    with pytest.raises(Violation, match="kubelet was told"):
        settle(steps)


def test_changed_cpus_are_a_violation(steps: Steps) -> None:
    claim = prepared(steps)
    claim.cpus = CPUSet((7, 15))
    with pytest.raises(Violation, match="kubelet was told when it had 7,15"):
        steps.node.prepare("a", [claim])


def test_a_cpu_in_two_claims_is_a_violation(steps: Steps) -> None:
    claim = prepared(steps)
    other = steps.node.allocate("c1", 0, 2)
    claim.cpus = CPUSet(range(16))
    with pytest.raises(Violation, match="both have"):
        steps.node.prepare("a", [other])


def test_a_file_left_by_an_unprepared_claim_is_a_violation(steps: Steps) -> None:
    claim = prepared(steps)
    (steps.node.cdi / f"left-of-{claim.uid}.json").write_text("{}")
    with pytest.raises(Violation, match="are left"):
        steps.node.unprepare("a", claim)


def test_wrong_masks_are_violations(steps: Steps) -> None:
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


def test_kubelet_may_widen_a_container_whose_cpus_are_all_offline(steps: Steps) -> None:
    claim = prepared(steps)
    steps.node.runtime.close()
    # Without a version, updates come only with the answer to kubelet's update.
    steps.node.runtime.version = ""
    steps.node.runtime.open()
    settled(steps, lambda: [] if steps.node.runtime.plugins else ["no plug-in"], "the driver is not connected")
    assert steps.node.run(claim) == ""
    (mine,) = steps.node.runtime.containers.values()
    steps.node.set_online(CPUS - claim.cpus)

    def still_there() -> list[str]:
        steps.update_container()
        return [str(mine)] if mine.cpus is not None and mine.cpus <= claim.cpus else []

    settled(steps, still_there, "it stays where no CPU is")
    steps.node.book.offline = CPUSet()
    mine.message.linux.resources.cpu.cpus = str(claim.cpus)
    with pytest.raises(Violation):
        steps.update_container()


def test_a_claim_without_a_container_counts_only_for_the_instance_that_prepared_it(steps: Steps) -> None:
    claim = prepared(steps)
    settled(steps, lambda: [] if steps.node.runtime.plugins else ["no plug-in"], "the driver is not connected")
    assert steps.node.run(None) == ""
    (shared,) = steps.node.runtime.containers.values()
    shared.message.linux.resources.cpu.cpus = str(claim.cpus)
    steps.node.book.created(shared, [shared], alone="b")
    with pytest.raises(Violation, match="has no claim"):
        steps.node.book.created(shared, [shared], alone="a")
