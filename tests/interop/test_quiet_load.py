"""Quiet CPUs by the real program beside disk and network load, checked by the kernel's interrupt counters.

`QUIET_SECONDS=600 make interop` loads the machine for ten minutes; a second is the default. If irqbalance is
installed, it runs meanwhile, as on most nodes.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from dranode.api.cpuset import CPUSet
from dranode.driver.claims.answers import Prepared
from dranode.driver.local.store import Store
from tests.crash.points import DRIVER, PROGRAM, Run, end, serving
from tests.fakes.drivers import reference
from tests.fakes.settings import quiet_claim
from tests.fakes.waiting import eventually
from tests.interop.balancer import Balancer, irqbalance
from tests.interop.test_isolation import HELD, ONLINE, interrupts_on, settings
from tests.interop.test_isolation import _why_not as why_not_isolated

SECONDS: Final = float(os.environ.get("QUIET_SECONDS", "1"))
# An interrupt that was pending when it was moved fires once more.
LATE: Final = 1
CLAIM: Final = quiet_claim("quiet", str(HELD))
_POD: Final = {reference(CLAIM): frozenset({DRIVER})}
_HOST: Final = ("--group-by", "machine", "--max-isolation", "quiet")
# The discard port: the answer is nothing, or that nobody listens.
_DISCARD: Final = 9

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(bool(why_not_isolated()), reason=why_not_isolated() or "-"),
]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a folder whose path is short enough for sockets."""
    path = Path(tempfile.mkdtemp(prefix="quiet-", dir="/tmp"))
    (path / "kubelet" / "plugins_registry").mkdir(parents=True)
    Store(path / "store").put(CLAIM)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def balancer(tmp_path: Path) -> Iterator[Balancer | None]:
    """Yield a real irqbalance, as on most nodes; None if it is not installed or ends at once."""
    with irqbalance(tmp_path / "irqbalance.log") as running:
        yield running


def test_no_interrupt_that_can_be_moved_fires_on_the_cpu_beside_a_load(
    folder: Path, balancer: Balancer | None, record_property: Callable[[str, object], None]
) -> None:
    before = settings()
    with serving(folder, machine=_HOST) as run:
        assert run.register()
        try:
            eventually(lambda: prepared(run))
            moved = settings()
            assert moved != before
            first, elsewhere = interrupts_on(HELD), others(HELD)
            with loads(folder):
                time.sleep(SECONDS)
            fired = {name: count - first.get(name, 0) for name, count in interrupts_on(HELD).items()}
            reached = others(HELD) - elsewhere
            seen = disturbance(folder)
        finally:
            eventually(lambda: unprepared(run))
            after = settings()
            end(run)
    assert balancer is None or not balancer.ended()
    refused = kept(folder)
    unmoved = {name: count for name, count in fired.items() if count > LATE and name not in refused}
    figures = f"{SECONDS:.0f} s{' beside irqbalance' if balancer else ''}: on CPU {HELD} fired {nonzero(fired)}, "
    figures += f"on others {reached}; claims --verify says {seen}; the kernel keeps {sorted(refused) or 'none'}"
    record_property("figures", figures)
    sys.stderr.write(f"\n{figures}\n")
    assert unmoved == {}
    assert seen["deviceInterrupts"] >= sum(fired.values())
    assert balancer is not None or after == before
    assert movable(after) == movable(before)
    if reached + sum(fired.values()) <= 10 * SECONDS:
        pytest.skip(f"the load reached no device of this machine, so this says little: {figures}")


def nonzero(counts: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}


def movable(found: dict[str, str]) -> dict[str, str]:
    """Return the settings without those that a running irqbalance changes."""
    return {path: text for path, text in found.items() if not path.endswith("smp_affinity_list")}


def prepared(run: Run) -> bool:
    (answer,) = run.kubelet.prepare(_POD).values()
    return isinstance(answer, Prepared)


def unprepared(run: Run) -> bool:
    with contextlib.suppress(Exception):
        run.kubelet.unprepare(_POD)
        return True
    return False


def others(cpu: int) -> int:
    """Return how often devices have interrupted the other CPUs."""
    return sum(sum(interrupts_on(each).values()) for each in ONLINE - CPUSet((cpu,)))


def disturbance(folder: Path) -> dict[str, Any]:
    asked = [str(PROGRAM), "claims", "--kubelet-root", "kubelet", "--verify", "-o", "json"]
    found = subprocess.run(asked, cwd=folder, check=True, capture_output=True)
    (row,) = json.loads(found.stdout)
    document = row["verify"]["disturbance"]
    return {each: document[each] for each in ("deviceInterrupts", "interrupts", "busySeconds", "othersSeconds")}


def kept(folder: Path) -> set[str]:
    """Return the interrupts that the kernel keeps, according to the driver's log."""
    lines = (folder / "log").read_text().splitlines()
    return {line.partition(": interrupt ")[2].split()[0] for line in lines if ": interrupt " in line}


@contextlib.contextmanager
def loads(folder: Path) -> Iterator[None]:
    """Write and read files in a folder, and load the network."""
    ends = threading.Event()
    work: tuple[Callable[[threading.Event, Path], None], ...] = (write, send)
    threads = [threading.Thread(target=each, args=(ends, folder)) for each in work]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ends.set()
        for thread in threads:
            thread.join()


def write(ends: threading.Event, folder: Path) -> None:
    file = folder / "work"
    while not ends.wait(0.01):
        with file.open("wb") as out:
            out.write(os.urandom(1 << 16))
            out.flush()
            os.fsync(out.fileno())


def send(ends: threading.Event, _: Path) -> None:
    gateway = default_gateway()
    while gateway and not ends.wait(0.005):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out, contextlib.suppress(OSError):
            out.sendto(b"x" * 512, (gateway, _DISCARD))


def default_gateway() -> str:
    """Return the address of the default route, from `/proc/net/route` (hexadecimal, in the machine's byte order)."""
    for line in Path("/proc/net/route").read_text().splitlines()[1:]:
        _, destination, gateway, *_ = line.split()
        if destination == "00000000" and gateway != "00000000":
            return ".".join(str(byte) for byte in reversed(bytes.fromhex(gateway)))
    return ""
