"""A complete run over queues, with a row for each pod set, resource and flavor that was tried.

setup = load(load_documents(paths))
run = run_queues(setup, Anywhere())
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from dranode.sim.queues.assign import (
    LAST_FLAVOR,
    FlavorAttempt,
    FlavorMode,
    FlavorVerdict,
    PodSetAssignment,
    Scan,
    ends_search,
)
from dranode.sim.queues.setup import Setup
from dranode.sim.queues.simulate import Nodes, Situation, Step, simulate
from dranode.sim.queues.values import Admitted, FlavorFungibility, Fungible, Queues

# From the worst to the best.
MODES: Final = ("NoFit", "Preempt", "Borrow", "Fit")
_PREEMPTION: Final = {
    FlavorMode.NO_CANDIDATES: "no workload may be preempted",
    FlavorMode.PREEMPT: "lower workloads of the queue may be preempted",
    FlavorMode.RECLAIM: "workloads that use this queue's quota may be preempted",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One flavor that was tried for one resource.

    Attributes:
        cycle: the scheduling cycle; 0 is before the first.
        workload: the workload's label (`Workload.label`).
        pod_set: the pod set's name.
        resource: the resource's name; None if no flavor was tried.
        flavor: the flavor's name; None if none was tried.
        mode: Fit, Borrow, Preempt or NoFit.
        chosen: whether the search chose this flavor; without a flavor, whether the workload is admitted.
        why: the arithmetic for this resource.
        choice: why the flavor was chosen or not, and the outcome.
        preempted: the labels of the workloads that were preempted for it.
        next: the flavor that the next attempt starts with; None if there is no next attempt.
    """

    cycle: int
    workload: str
    pod_set: str
    resource: str | None
    flavor: str | None
    mode: str
    chosen: bool
    why: str
    choice: str = ""
    preempted: tuple[str, ...] = ()
    next: str | None = None

    @property
    def reason(self) -> str:
        """Return the arithmetic, and why the flavor was chosen or not."""
        return _joined(self.why, self.choice)

    def document(self) -> dict[str, Any]:
        """Return the row as an element of `attempts` in `local -o json`."""
        return {
            "workload": self.workload,
            "podSet": self.pod_set,
            "resource": self.resource,
            "flavor": self.flavor,
            "mode": self.mode,
            "chosen": self.chosen,
            "reason": self.reason,
            "preempted": list(self.preempted),
            "next": self.next,
        }


def rows(steps: Iterable[Step], queues: Queues) -> Iterator[Row]:
    """Yield the rows of a simulation, in order."""
    for step in steps:
        if step.decision is None:
            for pod_set in step.workload.pod_sets:
                mode = "Fit" if step.admitted else "NoFit"
                yield Row(step.cycle, step.workload.label, pod_set.name, None, None, mode, step.admitted, step.outcome)
            continue
        fungibility = queues.cluster_queues[step.workload.queue].fungibility
        for item in step.decision.assignment.pod_sets:
            for scan in item.scans:
                yield from _scan_rows(step, item, scan, fungibility)
            if not item.scans:
                head = (step.cycle, step.workload.label, item.pod_set.name)
                yield Row(
                    *head, None, None, "Fit", chosen=True, why="requests nothing that quota counts", choice=step.outcome
                )


def _scan_rows(step: Step, item: PodSetAssignment, scan: Scan, fungibility: FlavorFungibility) -> Iterator[Row]:
    head = (step.cycle, step.workload.label, item.pod_set.name)
    if not scan.attempts:
        for resource in scan.resources:
            yield Row(*head, resource, None, "NoFit", chosen=False, why=scan.why or "no flavor is left to try")
    for attempt in scan.attempts:
        chosen = attempt is scan.chosen and item.mode is not FlavorMode.NO_FIT
        choice = _joined(_choice(scan, attempt, fungibility), step.outcome if chosen else "")
        for resource in scan.resources:
            verdict = attempt.verdicts.get(resource, attempt.worst)
            gone = step.preempted if chosen and verdict.mode in _PREEMPTION else ()
            yield Row(
                *head,
                resource,
                attempt.flavor,
                _mode(verdict),
                chosen,
                _joined(verdict.why, *_detail(verdict)),
                choice,
                tuple(target.workload.label for target in gone),
                _next(step, item, scan),
            )


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _mode(verdict: FlavorVerdict) -> str:
    if verdict.mode is FlavorMode.FIT:
        return "Borrow" if verdict.borrow else "Fit"
    return "NoFit" if verdict.mode is FlavorMode.NO_FIT else "Preempt"


def _detail(verdict: FlavorVerdict) -> Iterator[str]:
    if verdict.mode in _PREEMPTION:
        yield _PREEMPTION[verdict.mode]
    if verdict.borrow and verdict.mode is not FlavorMode.NO_FIT:
        yield f"borrows from {verdict.borrow} level{'s' if verdict.borrow > 1 else ''} up"


def _choice(scan: Scan, attempt: FlavorAttempt, fungibility: FlavorFungibility) -> str:
    """Return why the search ended here or continued, and whether the flavor was the best."""
    if attempt.worst.mode is FlavorMode.NO_FIT:
        return ""
    if ends_search(attempt.worst, fungibility):
        return "the search stops here"
    going_on = _why_on(attempt.worst, fungibility)
    if attempt is scan.chosen:
        return f"{going_on}, but nothing better follows" if len(scan.flavors) > 1 else going_on
    better = scan.chosen.flavor if scan.chosen is not None else ""
    return f'{going_on}, and "{better}" is better'


def _why_on(verdict: FlavorVerdict, fungibility: FlavorFungibility) -> str:
    if verdict.mode is FlavorMode.NO_CANDIDATES:
        return "the search goes on"
    if verdict.mode is not FlavorMode.FIT and fungibility.when_can_preempt is Fungible.TRY_NEXT_FLAVOR:
        return "whenCanPreempt is TryNextFlavor"
    return "whenCanBorrow is TryNextFlavor"


def _next(step: Step, item: PodSetAssignment, scan: Scan) -> str | None:
    """Return the flavor of the next attempt: the first again after preemption, or if the pod set does not fit."""
    if step.admitted or not scan.flavors:
        return None
    starts_over = item.mode is FlavorMode.NO_FIT or step.preempted
    return scan.flavors[0 if starts_over else scan.tried - LAST_FLAVOR]


@dataclass(frozen=True, slots=True)
class QueueRun:
    """The outcome of a run.

    Attributes:
        rows: every attempt, in order.
        situation: the queues at the end.
        notes: one sentence for each part of the documents that is not simulated.
    """

    rows: tuple[Row, ...]
    situation: Situation
    notes: tuple[str, ...] = ()

    @property
    def attempts(self) -> list[dict[str, Any]]:
        """Return `attempts` of `local -o json`."""
        return [row.document() for row in self.rows]

    @property
    def waiting(self) -> tuple[str, ...]:
        """Return the workloads without quota at the end."""
        return tuple(workload.label for workload in self.situation.parked)


class Anywhere:
    """Stands for nodes in runs without nodes: every admitted workload can be placed."""

    def place(self, admitted: Admitted) -> str:  # noqa: ARG002 - the seam
        """Accept the workload."""
        return ""

    def release(self, admitted: Admitted) -> None:
        """Do nothing."""


def run_queues(setup: Setup, nodes: Nodes) -> QueueRun:
    """Admit the workloads of a setup through its queues, onto nodes.

    Raises:
        DocumentError: `nodes` cannot place a workload because its claims or pods do not decode.
    """
    steps, situation = simulate(setup, nodes)
    return QueueRun(tuple(rows(steps, setup.queues)), situation, setup.notes)
