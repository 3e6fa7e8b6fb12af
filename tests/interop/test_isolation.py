"""Quiet CPUs on a real kernel: its interrupts, workqueues and slices, with the driver killed in between.

The machine's own settings are changed for seconds and put back. `make interop-vm` passes these in an emulated machine
with cgroup v2 and systemd too. How many interrupts a machine has, which of them the kernel keeps, and what else it has
of what a claim changes, is up to the machine.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from dranode.api.cpuset import CPUSet
from dranode.api.resource import ResourceClaim, ResourceClaimConsumerReference
from dranode.cpu.isolation.setting_files import why_kept
from dranode.cpu.options import read_options
from dranode.cpu.plugin import CPUPlugin
from dranode.driver.claims.answers import Prepared
from dranode.driver.machine.folder import HostRoot
from dranode.driver.node.node import NodeClaims
from tests.fakes.drivers import reference
from tests.fakes.settings import quiet_claim
from tests.interop.vanishing import text_of

IRQ, CGROUP = Path("/proc/irq"), Path("/sys/fs/cgroup")
ONLINE = CPUSet.parse(Path("/sys/devices/system/cpu/online").read_text().strip())
# What a slice with processes gets back if it had no cpuset of its own.
POSSIBLE = CPUSet.parse(Path("/sys/devices/system/cpu/possible").read_text().strip())
HELD = max(ONLINE)
CLAIM = quiet_claim("quiet", str(HELD))
TWO = CPUSet(sorted(ONLINE)[-2:])
POD = "0f1e2d3c-0000-4000-8000-00000000000a"
APART = quiet_claim("apart", str(TWO), isolation="partition")
PARTITION = msgspec.structs.replace(
    APART,
    status=msgspec.structs.replace(
        APART.status, reserved_for=(ResourceClaimConsumerReference(resource="pods", name="pod-a", uid=POD),)
    ),
)
_CONTROLLERS = CGROUP / "cgroup.controllers"
_UNIFIED = _CONTROLLERS.exists() and "cpuset" in _CONTROLLERS.read_text().split()


def _why_not() -> str:
    if os.environ.get("INTEROP") is None:
        return "make interop"
    if os.geteuid() != 0:
        return "root alone moves interrupts"
    if len(ONLINE) < 2 or not IRQ.exists():
        return "this machine has one CPU, or no /proc/irq"
    default = IRQ / "default_smp_affinity"
    # In most containers /sys is read-only.
    if not os.access(default, os.W_OK):
        return "/proc/irq cannot be written here"
    served = HELD in CPUSet.parse_mask(default.read_text().strip())
    return "" if served else "new interrupts keep off the last CPU already"


def _why_no_slices() -> str:
    if _why_not() or not _UNIFIED:
        return "this machine has no cgroup v2 with cpusets"
    if not (CGROUP / "system.slice").exists():
        return "this machine has no system.slice"
    return why_kept(HostRoot(), "system.slice")


pytestmark = [pytest.mark.interop, pytest.mark.skipif(bool(_why_not()), reason=_why_not() or "-")]
unified = pytest.mark.skipif(not _UNIFIED, reason="this machine has no cgroup v2 with cpusets")
sliced = pytest.mark.skipif(bool(_why_no_slices()), reason=_why_no_slices() or "-")


class Killing(HostRoot):
    """Kills its process before the given write; never if there are fewer writes."""

    def __init__(self, before: int) -> None:
        super().__init__()
        self.before = before

    def write(self, path: str, content: str) -> None:
        if self.before == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.before -= 1
        super().write(path, content)


def driver(folder: Path, host: HostRoot | None = None) -> NodeClaims:
    (folder / "data").mkdir(exist_ok=True)
    options = read_options({"group_by": "machine", "max_isolation": "partition", "keep_shared": False})
    node = NodeClaims(CPUPlugin(HostRoot(), options, host=host or HostRoot()), folder / "data", folder / "cdi")
    node.open(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    return node


def prepare(node: NodeClaims, claim: ResourceClaim = CLAIM) -> None:
    answer = node.prepare({reference(claim): claim})[claim.metadata.uid]
    assert isinstance(answer, Prepared), answer


def unprepare(node: NodeClaims, claim: ResourceClaim = CLAIM) -> None:
    ref = reference(claim)
    assert node.unprepare((ref,)) == {ref.uid: None}


def settings() -> dict[str, str]:
    """Return every setting of this machine that a claim may change."""
    paths = [*IRQ.glob("*/smp_affinity_list"), IRQ / "default_smp_affinity"]
    paths += [Path("/sys/devices/virtual/workqueue/cpumask"), *CGROUP.glob("*.slice/cpuset.cpus")]
    texts = {str(path): text_of(path) for path in paths}
    # systemd disables the controller for slices that no longer need it, so a missing file counts as an empty one.
    found = {path: text for path, text in texts.items() if text}
    return {path: text for path, text in found.items() if not path.endswith("_list")} if balanced() else found


def balanced() -> bool:
    """Whether an irqbalance of this machine moves interrupts during the test."""
    return "irqbalance" in map(text_of, Path("/proc").glob("[0-9]*/comm"))


def interrupts_on(cpu: int) -> dict[str, int]:
    head, *lines = Path("/proc/interrupts").read_text().splitlines()
    column = head.split().index(f"CPU{cpu}")
    rows = (line.split() for line in lines if line.split()[0].rstrip(":").isdecimal())
    return {row[0].rstrip(":"): int(row[1 + column]) for row in rows}


@pytest.fixture
def before(tmp_path: Path) -> Iterator[dict[str, str]]:
    found = settings()
    yield found
    node = driver(tmp_path)
    node.unprepare(tuple(record.ref for record in node.records()))
    node.tune()
    assert settings() == found


@pytest.fixture
def writes(tmp_path: Path) -> dict[str, int]:
    """Return how many settings a Prepare and an Unprepare write on this machine."""
    folder = tmp_path / "counted"
    folder.mkdir()
    root = Killing(-1)
    node = driver(folder, root)
    prepare(node)
    prepared = root.before
    unprepare(node)
    return {"prepare": -1 - prepared, "unprepare": prepared - root.before}


def test_movable_interrupts_leave_the_cpu_and_come_back(tmp_path: Path, before: dict[str, str]) -> None:
    node = driver(tmp_path)
    prepare(node)
    kept = {sentence.split()[1] for sentence in unmoved(node) if sentence.startswith("interrupt")}
    for path in IRQ.glob("*/smp_affinity_list"):
        if path.parent.name not in kept:
            assert HELD not in CPUSet.parse(text_of(path)), path
    assert HELD not in CPUSet.parse_mask((IRQ / "default_smp_affinity").read_text().strip())
    first = interrupts_on(HELD)
    work = tmp_path / "work"
    for _ in range(40):
        work.write_bytes(os.urandom(1 << 16))
        os.sync()
        time.sleep(0.02)
    last = interrupts_on(HELD)
    # The kernel moves an interrupt the next time it fires, so each may fire here once more.
    fired = {name: count - first.get(name, 0) for name, count in last.items() if name not in kept}
    assert {name: count for name, count in fired.items() if count > 1} == {}
    unprepare(node)
    assert settings() == before


# How many settings a claim changes depends on the machine, so later points are fractions of their number.
@pytest.mark.parametrize("point", [0, 1, 2, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("when", ["prepare", "unprepare"])
def test_a_driver_that_is_killed_leaves_nothing_behind(
    tmp_path: Path, before: dict[str, str], writes: dict[str, int], when: str, point: float
) -> None:
    last = writes[when] - 1
    stop = round(last * point) if isinstance(point, float) else min(point, last)
    # Since the count, an interrupt may have disappeared or been moved by somebody else.
    while not killed(tmp_path, when, stop):
        assert stop > 0
        stop -= 1
    node = driver(tmp_path)
    unprepare(node)
    assert settings() == before


def killed(folder: Path, when: str, stop: int) -> bool:
    """Run a driver that is killed before a write of Prepare or Unprepare; returns whether it was."""
    script = (
        "import sys; from pathlib import Path; from tests.interop.test_isolation import *\n"
        f"folder, root = Path({str(folder)!r}), Killing({stop if when == 'prepare' else -1})\n"
        "node = driver(folder, root); prepare(node)\n"
        f"root.before = {stop}; unprepare(node)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[2], check=False)
    assert done.returncode in (0, -signal.SIGKILL)
    return done.returncode == -signal.SIGKILL


@sliced
@pytest.mark.skipif(Path("/run/systemd/system").exists(), reason="systemd is the one writer of its cgroups")
def test_the_hosts_slices_leave_the_cpu_and_come_back(tmp_path: Path, before: dict[str, str]) -> None:
    (CGROUP / "cgroup.subtree_control").write_text("+cpuset")
    system = CGROUP / "system.slice" / "cpuset.cpus"
    found = system.read_text()
    node = driver(tmp_path)
    prepare(node)
    assert HELD not in CPUSet.parse((CGROUP / "system.slice" / "cpuset.cpus.effective").read_text().strip())
    assert CPUSet.parse(system.read_text().strip()) == ONLINE - CPUSet((HELD,))
    unprepare(node)
    assert CPUSet.parse(system.read_text().strip()) in (CPUSet.parse(found.strip()), POSSIBLE)
    before.update(settings())


@sliced
@pytest.mark.skipif(not Path("/run/systemd/system").exists(), reason="this machine has no systemd")
def test_systemd_keeps_its_slices_off_the_cpu_until_the_claim_ends(tmp_path: Path, before: dict[str, str]) -> None:
    effective = CGROUP / "system.slice" / "cpuset.cpus.effective"
    if allowed() != "AllowedCPUs=":
        pytest.skip(f"system.slice has CPUs of its own here: {allowed()}")
    node = driver(tmp_path)
    prepare(node)
    node.tune()
    assert CPUSet.parse(effective.read_text().strip()) == ONLINE - CPUSet((HELD,))
    assert not [sentence for sentence in unmoved(node) if "slice" in sentence]
    subprocess.run(["systemctl", "daemon-reload"], check=True)
    assert CPUSet.parse(effective.read_text().strip()) == ONLINE - CPUSet((HELD,))
    unprepare(node)
    node.tune()
    assert allowed() == "AllowedCPUs="
    assert not effective.exists() or CPUSet.parse(effective.read_text().strip()) == ONLINE
    subprocess.run(["systemctl", "daemon-reload"], check=True)
    assert allowed() == "AllowedCPUs="
    before.update(settings())


def allowed() -> str:
    """Return the CPUs that systemd allows the host's services."""
    asked = ["systemctl", "show", "--property", "AllowedCPUs", "system.slice"]
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()


@unified
@pytest.mark.skipif(len(ONLINE) < 3, reason="this machine has less than three CPUs")
def test_a_container_is_a_partition_as_far_as_its_parents_allow(tmp_path: Path, before: dict[str, str]) -> None:
    pods = CGROUP / "kubepods"
    pod = pods / f"pod{POD}"
    container = pod / ("ab" * 32)
    node = driver(tmp_path)
    with subprocess.Popen(["sleep", "infinity"]) as sleeper:
        try:
            for folder in (pods, pod, container):
                (folder.parent / "cgroup.subtree_control").write_text("+cpuset")
                folder.mkdir()
            (container / "cpuset.cpus").write_text(str(HELD))
            (container / "cgroup.procs").write_text(str(sleeper.pid))
            prepare(node, PARTITION)
            node.tune()
            if (container / "cpuset.cpus.exclusive").exists():
                assert (state(container), partitions(node)) == ("isolated", [])
            else:
                # Before Linux 6.7, the parent of a partition has to be a partition.
                assert state(container).startswith("isolated invalid")
                (sentence,) = partitions(node)
                assert sentence.endswith(f"the kernel says {state(container)}")
            unprepare(node, PARTITION)
            node.tune()
        finally:
            sleeper.kill()
            sleeper.wait()
            for folder in (container, pod, pods):
                if folder.exists():
                    folder.rmdir()
    before.update(settings())


def state(cgroup: Path) -> str:
    return (cgroup / "cpuset.cpus.partition").read_text().strip()


def partitions(node: NodeClaims) -> list[str]:
    """Return the driver's messages about containers that are not partitions."""
    return [sentence for sentence in unmoved(node) if "partition" in sentence]


def unmoved(node: NodeClaims) -> tuple[str, ...]:
    assert isinstance(node.plugin, CPUPlugin)
    return node.plugin.remaining or ()
