"""Ends all faults, and checks that everything becomes as kubelet knows it."""

import time
from collections.abc import Callable
from typing import Final

from dranode.api.cpuset import CPUSet
from dranode.driver.node.ledger import CorruptLedgerError
from dranode.show.ledger_reading import read_ledger
from tests.fakes.waiting import PATIENCE
from tests.hostile.book import RESERVED, BookedClaim, Stage
from tests.hostile.faults import set_schema
from tests.hostile.node import CPUS
from tests.hostile.runtime import Violation
from tests.hostile.steps import Steps

# The CPU seconds that a driver needs to start and to answer, with a wide margin.
_USED: Final = 10.0


def settle(steps: Steps) -> None:
    """Repair what only people can repair, and check that everything is as kubelet knows it.

    Raises:
        Violation: it does not become so.
    """
    node = steps.node
    if steps.newer:
        set_schema(steps, "1")
        steps.newer = False
    node.pods.mood = "well"
    node.set_online(CPUS)
    node.runtime.refuse("")
    steps.open_runtime()
    steps.start_if_none()
    settled(steps, lambda: _answered(steps), "the driver does not answer as before")
    if node.book.offline:
        settled(steps, lambda: ungranted(steps), "the driver has not seen that the CPUs are back")
    if not node.book.claims:
        _look(steps)
    if not _readable(steps):
        # The driver had read the byte before it was flipped; a restarted one reads it again.
        for name in tuple(node.instances):
            node.terminate(name)
        steps.start_if_none()
        settled(steps, lambda: _answered(steps), "the driver does not answer as before")
        # Without claims nothing was asked of it, and it reads its ledger only after its socket is there.
        settled(steps, lambda: [] if _readable(steps) else [str(node.ledger)], "the ledger stays damaged")
    if node.loss():
        # Ledger and copy were damaged while there was no claim, so there is no spec to recover from either.
        node.forget_lost()
    if steps.fault == "ledger":
        _end_revived(steps)
    settled(steps, lambda: _wrong_masks(steps), "masks are wrong")
    settled(steps, node.book.wrong_files, "the files are wrong")
    steps.fault = ""
    node.book.offline = CPUSet()


def _look(steps: Steps) -> None:
    """Make every instance read its ledger, whatever the result; without a claim nothing else does."""
    for name in sorted(steps.node.instances):
        claim = steps.node.allocate("free", 0, 1)
        steps.node.prepare(name, [claim])
        steps.node.unprepare(name, claim)


def _readable(steps: Steps) -> bool:
    try:
        return not read_ledger(steps.node.ledger).damaged
    except CorruptLedgerError:
        return False


def _answered(steps: Steps) -> list[str]:
    """Repeat each claim's last call, as kubelet does; return the refusals."""
    refused = []
    for claim in tuple(steps.node.book.claims.values()):
        for name in sorted(steps.node.instances):
            if claim.stage is Stage.ENDING:
                reason = steps.node.unprepare(name, claim)
                refused += [f"unprepare {claim.name}: {reason}"] if reason else []
                if not reason:
                    break
            else:
                refused += [f"prepare {claim.name}: {reason}" for reason in steps.node.prepare(name, [claim])]
    steps.node.runtime.attend()
    steps.node.check()
    if _drop_refused(steps, refused):
        return []
    return refused


def ungranted(steps: Steps) -> list[str]:
    """Have every instance grant all free CPUs for a moment; return the refusals.

    An instance checks its hardware now and then, and grants what it saw last until then.
    """
    node, refused = steps.node, []
    for name in sorted(node.instances):
        for numa in range(len(RESERVED)):
            held = sum(claim.count for claim in node.book.claims.values() if claim.numa == numa)
            claim = node.allocate("free", numa, len(CPUS) // len(RESERVED) - 1 - held)
            refused += [f"prepare {claim.uid}: {reason}" for reason in node.prepare(name, [claim])]
            if reason := node.unprepare(name, claim):
                refused.append(f"unprepare {claim.uid}: {reason}")
    return refused


def _end_revived(steps: Steps) -> None:
    """End claims that came back with the old rows of a lost ledger; the driver's own check takes minutes."""
    for record in read_ledger(steps.node.ledger).records:
        if record.uid not in steps.node.book.claims:
            steps.node.refused("revived", "claims that had ended")
            claim = steps.node.book.claims[record.uid] = BookedClaim(record.name, record.uid, "", 0, 1)
            if reason := steps.node.unprepare(min(steps.node.instances), claim):
                raise Violation(f"claim {record.uid} came back and cannot be unprepared: {reason}")


def _wrong_masks(steps: Steps) -> list[str]:
    if not steps.node.runtime.version:
        # NRI before 0.12 applies updates only with a request, or after a reconnect some time later.
        before = set(steps.node.runtime.containers)
        steps.node.run(None)
        for name in set(steps.node.runtime.containers) - before:
            steps.node.runtime.stop(steps.node.runtime.containers[name])
    return steps.node.book.wrong_masks(steps.node.runtime.containers.values(), CPUS)


def _drop_refused(steps: Steps, refused: list[str]) -> bool:
    """Give up claims for which there is no room; the scheduler would not have allocated them."""
    waiting = [claim for claim in steps.node.book.claims.values() if claim.stage is Stage.PREPARING]
    for claim in waiting:
        if any(reason.startswith(f"prepare {claim.name}:") for reason in refused):
            claim.stage = Stage.ENDING
    return not refused


def settled(steps: Steps, wrong: Callable[[], list[str]], what: str) -> None:
    began, used = time.monotonic(), steps.node.cpu_seconds()
    while reasons := wrong():
        waited = time.monotonic() - began
        # On a busy machine the driver gets little of that time, so its CPU time counts.
        if waited > PATIENCE and (steps.node.cpu_seconds() - used > _USED or waited > 10 * PATIENCE):
            raise Violation(f"{what}: {'; '.join(reasons)}")
        steps.node.runtime.attend(0.05)
        steps.node.check()
