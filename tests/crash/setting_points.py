"""Crash points of a driver that changes settings for a claim with quiet CPUs, as in `tests.crash.points`.

The machine is this one. The settings are plain files in place of `/proc/irq` and its like, which hold what was last
written to them, as the kernel's files do. At each point the driver is killed while it prepares or unprepares the claim.
Every setting that is changed then must be on record with its original value. Whether kubelet goes on with a Prepare or
an Unprepare, in the end all settings have their original values and nothing is on record.
"""

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dranode.api.cpuset import CPUSet
from dranode.driver.claims.answers import Prepared
from dranode.driver.local.store import Store
from dranode.driver.node.ledger import decoded_notes
from dranode.show.ledger_reading import read_ledger
from dranode.sim.local.kubelet import KubeletError
from tests.crash.points import CALLS, DRIVER, Run, end, missing, serving, traced_calls
from tests.crash.runs import Point, Violation, asked_for, report
from tests.fakes.drivers import reference
from tests.fakes.settings import BOOT, DEFAULT, RPS, WORKQUEUE, interrupt, quiet_claim
from tests.fakes.waiting import eventually

ONLINE: Final = Path("/sys/devices/system/cpu/online")
# The kernel accepts a value in one write. So do these files, since all values of a setting have the same length.
_ORIGINALS: Final = {
    interrupt(24): "1",
    interrupt(25): "0",
    interrupt(26): "1",
    DEFAULT: "00000003",
    WORKQUEUE: "00000003",
    RPS: "00000002",
}
_REST: Final = {
    BOOT: Path("/", BOOT).read_text(),
    "sys/devices/system/cpu/online": "0-1",
    "sys/devices/system/cpu/possible": "0-1",
    "sys/class/net/eth0/ifindex": "2",
}
_CLAIM: Final = quiet_claim("quiet", "1")
_POD: Final = {reference(_CLAIM): frozenset({DRIVER})}
_NOT_YET: Final = "kubelet will ask again"
_MACHINE: Final = (
    "--group-by",
    "machine",
    "--max-isolation",
    "quiet",
    "--cpu-host-root",
    "host",
    "--reserved-cpus",
    "0",
)


def why_not() -> str:
    """Why these points cannot be found here; empty if they can."""
    reason = missing()
    online = CPUSet.parse(ONLINE.read_text().strip())
    return reason or ("" if {0, 1} <= set(online) else "this machine has no CPUs 0 and 1")


@contextlib.contextmanager
def world() -> Iterator[Path]:
    """A folder with the claim and the settings that it changes."""
    folder = Path(tempfile.mkdtemp(prefix="crash-"))
    try:
        (folder / "kubelet" / "plugins_registry").mkdir(parents=True)
        Store(folder / "store").put(_CLAIM)
        for path, text in (_ORIGINALS | _REST).items():
            place = folder / "host" / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(f"{text.strip()}\n")
        for number in (24, 25, 26):
            (folder / "host" / interrupt(number)).with_name("eth0").mkdir()
        yield folder
    finally:
        shutil.rmtree(folder)


def values(folder: Path) -> dict[str, str]:
    """The values of the settings."""
    return {path: (folder / "host" / path).read_text().strip() for path in _ORIGINALS}


def work(folder: Path, *options: str) -> Path:
    """Run a traced life of the driver, which prepares and unprepares the claim; return the trace."""
    trace = folder / "trace"
    with serving(folder, ("strace", "-f", "-qq", "-o", str(trace), *options), machine=_MACHINE) as run:
        if run.register():
            with contextlib.suppress(KubeletError):
                run.kubelet.prepare(_POD)
                run.kubelet.unprepare(_POD)
        end(run)
    return trace


def find_points() -> list[Point]:
    """Find the points of an undisturbed life.

    Raises:
        Violation: that life itself failed.
    """
    with world() as folder:
        counts = traced_calls(work(folder, "-e", f"trace={','.join(f'?{call}' for call in CALLS)}").read_text())
        log = (folder / "log").read_text()
        if values(folder) != _ORIGINALS or "devices=1" not in log or not log.rpartition("unprepare")[2].count("done"):
            raise Violation(f"the undisturbed life was not: {values(folder)}: {log[-800:]}")
    return [Point(call, number) for call in CALLS for number in range(1, counts[call] + 1)]


def survive(point: Point, *, again: bool) -> bool:
    """Kill the driver at a point, and check that everything is restored; return whether the point was reached.

    Args:
        point: the point at which it is killed.
        again: whether kubelet prepares the claim again before it unprepares it.

    Raises:
        Violation: something is not restored, or a changed setting is not on record.
    """
    with world() as folder:
        trace = work(folder, "-e", f"trace={point.call}", "-e", f"inject={point.injection}").read_text(errors="replace")
        see_record(folder, point)
        with serving(folder, machine=_MACHINE) as run:
            if not run.register():
                raise Violation(f"{point}: it does not start again: {(folder / 'log').read_text()[-400:]}")
            if again:
                _prepare(run, point)
            eventually(lambda: _unprepared(run))
            now = values(folder)
            end(run)
        contents = read_ledger(_ledger(folder))
        if now != _ORIGINALS or contents.records or contents.damaged or contents.notes:
            raise Violation(f"{point}: at the end there are {now}, {contents.records}, {contents.notes}")
        return "killed by SIGKILL" in trace


def _ledger(folder: Path) -> Path:
    return folder / "kubelet" / "plugins" / DRIVER / "ledger.db"


def see_record(folder: Path, point: Point) -> None:
    """Check that every changed setting is on record with its original value."""
    noted = (decoded_notes(read_ledger(_ledger(folder))) or {}).get("settings", {})
    for path, text in values(folder).items():
        if text == _ORIGINALS[path]:
            continue
        original = CPUSet.parse(noted[path]["original"]) if path in noted else None
        if original != _parsed(path, _ORIGINALS[path]):
            raise Violation(f"{point}: {path} is {text}, and on record is {noted.get(path)}")


def _parsed(path: str, text: str) -> CPUSet:
    return CPUSet.parse(text) if path.startswith("proc/irq/2") else CPUSet.parse_mask(text)


def _unprepared(run: Run) -> bool:
    """Unprepare as kubelet does, until it succeeds: a driver that has just started may not have read its ledger yet."""
    try:
        run.kubelet.unprepare(_POD)
    except KubeletError as error:
        if _NOT_YET in str(error):
            return False
        raise
    return True


def _prepare(run: Run, point: Point) -> None:
    answers: list[object] = []

    def answered() -> bool:
        answers[:] = run.kubelet.prepare(_POD).values()
        return _NOT_YET not in str(answers[0])

    eventually(answered)
    (answer,) = answers
    if not isinstance(answer, Prepared):
        raise Violation(f"{point}: the claim is refused: {answer}")
    moved = values(run.folder)
    held = [path for path, text in moved.items() if 1 in _parsed(path, text)]
    if held:
        raise Violation(f"{point}: the claim is prepared, and {held} still name its CPU: {moved}")


def main() -> int:
    """Run every point, or every n-th; the exit status is 1 if the driver does not survive one of them."""
    options = asked_for("setting_points", why_not)
    if options is None:
        return 1
    points = find_points()
    chosen = [(point, again) for point in points for again in (True, False)][:: options.every]
    what = "with settings, each before a Prepare and an Unprepare"
    return report(what, points, chosen, lambda each: survive(each[0], again=each[1]))


if __name__ == "__main__":
    sys.exit(main())
