"""Crash points of `dranode serve`, found by the run itself: SIGKILL or an error at every system call with an effect.

`strace` counts the system calls of an undisturbed run (start, Prepare, a repeated Prepare, Unprepare, stop), and then
kills the process at the n-th call of each kind, for every n. After each kill the driver is started again, undisturbed.
It must know what was reported to kubelet and leave nothing behind, even if the killed run began with a lost ledger.
`make crash` prints points and survivors.

strace counts each thread's calls separately: a point is the n-th call of a kind in the first thread that gets there.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dranode.api.cpuset import CPUSet
from dranode.cdi.directory import remove_abandoned
from dranode.driver.claims.answers import Prepared, Refused
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.record import PreparedDevice, Record
from dranode.driver.local.store import Store
from dranode.show.ledger_reading import read_ledger
from dranode.sim.local.kubelet import KubeletError, StandInKubelet
from tests.crash.runs import Point, Violation, report
from tests.fakes.drivers import allocated_claim
from tests.fakes.node import missing_mounts
from tests.fakes.waiting import PATIENCE

PROGRAM: Final = Path(sys.executable).with_name("dranode")
DRIVER: Final = "dra.cpu"
CLAIMS: Final = 3


@dataclass(frozen=True)
class Subject:
    """A driver to crash, and the contents of its claims.

    Attributes:
        name: its short name.
        driver: the driver name under which it publishes.
        device: the device of the claims, without the number of its NUMA node.
        consumed: the capacity that each claim consumes.
        variable: the variable in a claim's spec, without the claim's UID.
        spec: the name of its CDI specs, without the claim's UID.
        given: the variable's value, which no other claim may have; from the claim's record and number.
    """

    name: str
    driver: str
    device: str
    consumed: Mapping[str, str]
    variable: str
    spec: str
    given: Callable[[Record, int], str]


CPU: Final = Subject(
    "cpu",
    DRIVER,
    "cpudevnuma00",
    {"dra.cpu/cpu": "2"},
    "DRA_CPUSET_",
    "dra.k8s.io-cpu_claim-",
    lambda record, _: str(record.held),
)
MEMORY: Final = Subject(
    "memory",
    "dra.memory",
    "hugepages-2m-numa",
    # A node has 512 pages, exactly enough for its two claims.
    {"size": "512Mi"},
    "DRANODE_MEMS_",
    "dra.memory-claim_claim-",
    lambda record, number: str(number % 2) if record.amounts == {f"hugepages-2m-numa{number % 2}": 512 << 20} else "?",
)
SUBJECTS: Final = {subject.name: subject for subject in (CPU, MEMORY)}


def _lose_ledger(data: Path) -> None:
    """Damage the ledger, not its copy."""
    (data / "ledger.db").write_bytes(b"lost")


def _lose_ledger_and_copy(data: Path) -> None:
    """Damage ledger and copy, not the CDI specs."""
    for path in data.glob("ledger.db*"):
        path.write_bytes(b"lost")


# What happens to the driver's folder before the run, by the run's name; None for nothing.
LIVES: Final[Mapping[str, Callable[[Path], None] | None]] = {
    "plain": None,
    "recovery from the copy": _lose_ledger,
    "recovery from CDI specs": _lose_ledger_and_copy,
}
# Linux system calls with an effect outside the process. strace gets them with `?`, since no architecture has all.
CALLS: Final = (
    "write", "pwrite64", "ftruncate", "fsync", "fdatasync", "rename", "renameat", "renameat2", "unlink", "unlinkat",
    "link", "linkat", "mkdir", "rmdir", "bind", "sendmsg", "sendto", "fchmod", "chmod",
)  # fmt: skip
# Errors of a failing call, instead of a kill.
ERRORS: Final = ("ENOSPC", "EIO", "EROFS", "EMFILE")
_FAILING: Final = ("write", "pwrite64", "fsync", "fdatasync", "rename", "unlink", "mkdir")
_LINE: Final = re.compile(r"^(\d+)\s+(\w+)\(")


def missing() -> str:
    """Why no points can be found here; empty if they can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    tried = subprocess.run(["strace", "-qq", "-o", "/dev/null", "true"], check=False, capture_output=True, text=True)
    return "" if tried.returncode == 0 else f"strace cannot trace here: {tried.stderr.strip()[:100]}"


@contextlib.contextmanager
def world(subject: Subject = CPU) -> Iterator[Path]:
    """A folder with the run's claims."""
    with tempfile.TemporaryDirectory(prefix="crash-") as name:
        folder = Path(name)
        (folder / "kubelet" / "plugins_registry").mkdir(parents=True)
        store = Store(folder / "store")
        for number in range(CLAIMS):
            share = f"00000000-0000-4000-8000-{number:012d}"
            devices = [f"{subject.device}{number % 2}"]
            consumed = dict(subject.consumed)
            store.put(
                allocated_claim(
                    f"c{number}", subject.driver, devices, uid=f"uid-{number}", consumedCapacity=consumed, shareID=share
                )
            )
        yield folder


@dataclass
class Run:
    """One life of the driver, and what was reported to kubelet in it."""

    folder: Path
    process: subprocess.Popen[bytes]
    kubelet: StandInKubelet
    subject: Subject = CPU

    def register(self) -> bool:
        """Register the driver; False if it exits before it answers."""
        ends = time.monotonic() + PATIENCE
        while self.process.poll() is None and time.monotonic() < ends:
            with contextlib.suppress(KubeletError):
                self.kubelet.register([self.subject.driver], 0.2)
                return True
        return False


_MADE_UP: Final = ("--machine", "sockets=1,numa=2,cores=4,threads=1")


@contextlib.contextmanager
def serving(
    folder: Path, before: Sequence[str] = (), subject: Subject = CPU, machine: Sequence[str] = _MADE_UP
) -> Iterator[Run]:
    """Run the driver on a machine, optionally under another command."""
    arguments = ["--drivers", subject.name, *machine, "--node-name", "node", "--http-address", "none"]
    places = ["--store", "store", "--kubelet-root", "kubelet", "--cdi-dir", "cdi", "--nri-socket", "none"]
    command = [*before, str(PROGRAM), "serve", *arguments, *places]
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(command, cwd=folder, stderr=log, start_new_session=True)
    kubelet = StandInKubelet(folder / "kubelet" / "plugins_registry")
    try:
        yield Run(folder, process, kubelet, subject)
    finally:
        kubelet.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def pod(number: int, subject: Subject = CPU) -> dict[ClaimRef, frozenset[str]]:
    return {ClaimRef("default", f"c{number}", f"uid-{number}"): frozenset({subject.driver})}


Told = dict[int, tuple[PreparedDevice, ...] | None]


def use(run: Run, told: Told) -> None:
    """Prepare, prepare again, unprepare; `told` is what kubelet knows, None where it cannot know."""
    if not run.register():
        return
    for number in range(CLAIMS):
        known = told.setdefault(number, None)
        with contextlib.suppress(KubeletError):
            (answer,) = run.kubelet.prepare(pod(number, run.subject)).values()
            if isinstance(answer, Prepared):
                if known not in (None, answer.devices):
                    raise Violation(f"claim {number} is answered {answer.devices}, and kubelet was told {known}")
                told[number] = answer.devices
    run.kubelet.restart()
    if run.register():
        with contextlib.suppress(KubeletError):
            run.kubelet.prepare(pod(1, run.subject))
        told[0] = None
        with contextlib.suppress(KubeletError):
            run.kubelet.unprepare(pod(0, run.subject))
            del told[0]
    end(run)


def end(run: Run) -> None:
    """Stop the driver itself, which may be a child of strace."""
    children = subprocess.run(["pgrep", "-P", str(run.process.pid)], check=False, capture_output=True, text=True)
    for process in [int(child) for child in children.stdout.split()] or [run.process.pid]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        run.process.wait(10)


def _before(folder: Path, subject: Subject, life: str) -> Told:
    """Run what comes before the crash; return what kubelet knows then."""
    told: Told = {}
    if (spoil := LIVES[life]) is not None:
        with serving(folder, subject=subject) as run:
            use(run, told)
        spoil(folder / "kubelet" / "plugins" / subject.driver)
    return told


def find_points(subject: Subject = CPU, *, life: str = "plain", errors: bool = False) -> list[Point]:
    """Find the points of an undisturbed run.

    Raises:
        Violation: that run itself failed.
    """
    calls = ",".join(f"?{call}" for call in CALLS)
    with world(subject) as folder:
        told = _before(folder, subject, life)
        traced = ("strace", "-f", "-qq", "-o", str(folder / "trace"), "-e", f"trace={calls}")
        with serving(folder, traced, subject) as run:
            use(run, told)
        if set(told) != {1, 2} or None in told.values():
            raise Violation(f"the undisturbed run told {told}: {(folder / 'log').read_text()[-500:]}")
        most = traced_calls((folder / "trace").read_text(errors="replace"))
    kills = [Point(call, number) for call in CALLS for number in range(1, most[call] + 1)]
    return kills + (failures(kills) if errors else [])


def failures(kills: Sequence[Point]) -> list[Point]:
    """The points at which a call fails, instead of a kill."""
    return [Point(point.call, point.number, error) for point in kills if point.call in _FAILING for error in ERRORS]


def traced_calls(trace: str) -> Counter[str]:
    """For each kind of call, the number of calls in the thread that made the most."""
    counts = Counter((match[1], match[2]) for line in trace.splitlines() if (match := _LINE.match(line)))
    most: Counter[str] = Counter()
    for (_, call), count in counts.items():
        most[call] = max(most[call], count)
    return most


def survive(point: Point, subject: Subject = CPU, life: str = "plain") -> bool:
    """Crash the driver at a point, start it again, and check it; return whether the point was reached.

    Raises:
        Violation: something that was reported to kubelet is not so, or something is left.
    """
    with world(subject) as folder:
        told = _before(folder, subject, life)
        injected = ("-e", f"trace={point.call}", "-e", f"inject={point.injection}")
        with serving(folder, ("strace", "-f", "-qq", "-o", str(folder / "trace"), *injected), subject) as run:
            use(run, told)
        trace = (folder / "trace").read_text(errors="replace")
        see_mounts(folder / "cdi", point)
        with serving(folder, subject=subject) as run:
            look(run, told, point)
        return "killed by SIGKILL" in trace or "INJECTED" in trace


def _later(folder: Path) -> None:
    """Remove what a killed writer left; the driver's sweep does so after a minute."""
    for path in folder.iterdir():
        os.utime(path, (time.time() - 120, time.time() - 120))
    remove_abandoned(folder)


def _asked_again(run: Run, number: int) -> Prepared | Refused:
    """Prepare as kubelet does: on a busy machine, ask a driver again that has not read its hardware yet."""
    ends = time.monotonic() + PATIENCE
    while True:
        (answer,) = run.kubelet.prepare(pod(number, run.subject)).values()
        if isinstance(answer, Prepared) or "kubelet will ask again" not in answer.reason or time.monotonic() > ends:
            return answer


def see_mounts(cdi: Path, point: Point) -> None:
    """Check that no CDI spec mounts a missing file, since a runtime would not start a container with it.

    Raises:
        Violation: a spec does.
    """
    if missing := missing_mounts(cdi):
        raise Violation(f"{point}: specs mount {missing}, which are not there")


def look(run: Run, told: Told, point: Point) -> None:
    log = run.folder / "log"
    if not run.register():
        raise Violation(f"{point}: it does not start again: {log.read_text()[-400:]}")
    for number in range(CLAIMS):
        answer = _asked_again(run, number)
        if not isinstance(answer, Prepared):
            raise Violation(f"{point}: claim {number} is refused: {answer}")
        known = told.get(number)
        if known is not None and answer.devices != known:
            raise Violation(f"{point}: claim {number} has {answer.devices}, and kubelet was told {known}")
    ledger, subject = run.folder / "kubelet" / "plugins" / run.subject.driver / "ledger.db", run.subject
    contents = read_ledger(ledger)
    records = {record.uid: record for record in contents.records}
    masks = {uid: record.held for uid, record in records.items()}
    if contents.damaged or sum(map(len, masks.values())) != len(CPUSet.union(masks.values())):
        raise Violation(f"{point}: the ledger has {masks}, damaged: {contents.damaged}")
    see_mounts(run.folder / "cdi", point)
    for number in range(CLAIMS):
        uid = f"uid-{number}"
        spec = json.loads((run.folder / "cdi" / f"{subject.spec}{uid}.json").read_bytes())
        expected = f"{subject.variable}{uid}={subject.given(records[uid], number)}"
        if expected not in spec["devices"][0]["containerEdits"]["env"]:
            raise Violation(f"{point}: the spec of claim {number} does not say {expected}")
        run.kubelet.unprepare(pod(number, subject))
    run.process.terminate()
    status = run.process.wait(PATIENCE)
    _later(run.folder / "cdi")
    left = [path.name for path in (run.folder / "cdi").iterdir()]
    remaining = read_ledger(ledger).records
    if status or left or remaining:
        raise Violation(f"{point}: at the end status {status}, files {left}, records {remaining}")


def main() -> int:
    """Run every point, or every n-th; the exit status is 1 if the driver does not survive one of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.points")
    parser.add_argument("--every", type=int, default=1, help="run each n-th point alone")
    parser.add_argument("--errors", action="store_true", help="errors too: ENOSPC, EIO, EROFS, EMFILE")
    parser.add_argument("--driver", choices=sorted(SUBJECTS), default=CPU.name, help="the driver")
    options = parser.parse_args()
    if reason := missing():
        print(f"not run: {reason}")  # noqa: T201
        return 1
    failed = 0
    for life in LIVES:
        failed |= _report_life(SUBJECTS[options.driver], life, options.every, errors=options.errors)
    return failed


def _report_life(subject: Subject, life: str, every: int, *, errors: bool) -> int:
    points = find_points(subject, life=life, errors=errors)
    return report(f"{subject.driver}, {life}", points, points[::every], lambda point: survive(point, subject, life))


if __name__ == "__main__":
    sys.exit(main())
