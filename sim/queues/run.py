"""A whole run over queues.

setup = load(load_documents(paths))
run = run_queues(setup, Anywhere())
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dranode.sim.queues.report import Row, rows
from dranode.sim.queues.setup import Setup
from dranode.sim.queues.simulate import Nodes, Situation, simulate
from dranode.sim.queues.values import Admitted


@dataclass(frozen=True, slots=True)
class QueueRun:
    """The outcome of a run.

    Attributes:
        rows: every attempt, in order.
        situation: the queues at the end.
        notes: what the documents say and the simulation leaves out, one sentence each.
    """

    rows: tuple[Row, ...]
    situation: Situation
    notes: tuple[str, ...] = ()

    @property
    def attempts(self) -> list[dict[str, Any]]:
        """The part `attempts` of what `local -o json` prints."""
        return [row.document() for row in self.rows]

    @property
    def waiting(self) -> tuple[str, ...]:
        """The workloads that hold no quota at the end."""
        return tuple(workload.label for workload in self.situation.parked)


class Anywhere:
    """For runs without nodes: whatever is admitted has a place."""

    def place(self, admitted: Admitted) -> str:  # noqa: ARG002 - the seam
        """Say yes."""
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
