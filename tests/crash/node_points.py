"""Crash points of a driver on a working node: NRI, a rolling update, a change of authority, as in `tests.crash.points`.

The node is that of the hostile steps: a kubelet, a runtime whose containers have claims or none, and two instances, one
of which is traced. After the traced one has died, the other takes over or a new one starts, and everything must be as
kubelet and the containers know it.
"""

import contextlib
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.crash.points import CALLS, failures, missing, traced_calls
from tests.crash.runs import Point, Violation, asked_for, report
from tests.fakes.waiting import PATIENCE
from tests.hostile.book import BookedClaim
from tests.hostile.node import Node
from tests.hostile.runtime import Violation as StepViolation
from tests.hostile.settling import settle
from tests.hostile.steps import Steps

TRACED: Final = "a"
OTHER: Final = "b"


@contextlib.contextmanager
def node() -> Iterator[Node]:
    """A node without containers."""
    node = Node(Path(tempfile.mkdtemp(prefix="crash-")))
    try:
        yield node
    finally:
        node.close()


def work(node: Node, options: tuple[str, ...]) -> None:
    """The life of the traced instance: it works alone, then next to another one, hands over, and exits."""
    node.start(TRACED, ("strace", "-f", "-qq", "-o", "trace", *options))
    # Do not wait long for an answer that will not come.
    threading.Thread(target=node.instances[TRACED].close_at_end, name="end").start()
    first, second, third = (node.allocate(f"c{number}", number % 2, 2) for number in range(3))
    if not _ready(node, TRACED):
        return
    node.prepare(TRACED, [first, second])
    _attend(node, 1)
    node.run(None)
    for claim in node.book.told():
        node.run(claim)
    node.start(OTHER)
    if not _ready(node, OTHER) or not _ready(node, TRACED):
        return
    node.prepare(TRACED, [third])
    _attend(node, 2)
    node.run(None)
    node.runtime.close()
    node.runtime.open()
    _attend(node, 2)
    node.unprepare(TRACED, first)
    _end(node)


def _ready(node: Node, name: str) -> bool:
    """Wait until an instance has read what it needs for an answer; False if the traced one has died meanwhile."""
    unknown = BookedClaim("unknown", "uid-unknown", "", 0, 1)
    ends = time.monotonic() + PATIENCE
    while time.monotonic() < ends and node.instances[TRACED].process.poll() is None:
        answer = node.call(name, "NodeUnprepareResources", [unknown])
        if answer is not None and not answer.claims[unknown.uid].error:
            return True
        node.runtime.attend(0.02)
    return False


def _attend(node: Node, plugins: int) -> None:
    """Make the runtime accept `count` plug-ins, unless the traced instance has died."""
    ends = time.monotonic() + PATIENCE
    while len(node.runtime.plugins) < plugins and time.monotonic() < ends:
        if node.instances[TRACED].process.poll() is not None:
            return
        node.runtime.attend(0.05)


def _end(node: Node) -> None:
    """Send SIGTERM to the traced instance."""
    node.instances[TRACED].process.terminate()
    ends = time.monotonic() + PATIENCE
    while node.instances[TRACED].process.poll() is None and time.monotonic() < ends:
        node.runtime.attend(0.05)


def find_points() -> list[Point]:
    """Find the points of an undisturbed life.

    Raises:
        Violation: that life itself failed.
    """
    with node() as where:
        work(where, ("-e", f"trace={','.join(f'?{call}' for call in CALLS)}"))
        if len(where.book.told()) != 2 or where.instances[TRACED].wait() != 0:
            raise Violation(f"the undisturbed life was not: {where.book.claims}: {where.log[-800:]}")
        counts = traced_calls((where.folder / "trace").read_text(errors="replace"))
    return [Point(call, number) for call in CALLS for number in range(1, counts[call] + 1)]


def survive(point: Point) -> bool:
    """Crash the traced instance at a point, and check that everything recovers; return whether the point was reached.

    Raises:
        Violation: something does not recover.
    """
    with node() as where:
        try:
            work(where, ("-e", f"trace={point.call}", "-e", f"inject={point.injection}"))
            where.kill(TRACED)
            settle(Steps(where, random.Random(1), past=[""]))
        except StepViolation as violation:
            raise Violation(f"{point}: {violation}: {where.log[-800:]}") from violation
        trace = (where.folder / "trace").read_text(errors="replace")
    return "killed by SIGKILL" in trace or "INJECTED" in trace


def main() -> int:
    """Run every point, or every n-th; the exit status is 1 if the driver does not survive one of them."""
    options = asked_for("node_points", missing, errors=True)
    if options is None:
        return 1
    points = find_points()
    points += failures(points) if options.errors else []
    return report("beside another instance and a runtime", points, points[:: options.every], survive)


if __name__ == "__main__":
    sys.exit(main())
