"""A whole run over queues, from documents to the attempts that are printed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from dranode.driver.local.files import SourceDocument
from dranode.driver.local.queues.report import Row, rows
from dranode.driver.local.queues.setup import load
from dranode.driver.local.queues.simulate import Fleet, Situation, simulate
from dranode.driver.local.queues.values import Admitted


@dataclass(frozen=True, slots=True)
class QueueRun:
    """What came of a run: every attempt, and how things stand at the end."""

    rows: tuple[Row, ...]
    situation: Situation

    @property
    def attempts(self) -> list[dict[str, Any]]:
        """The part `attempts` of what `local -o json` prints."""
        return [row.document() for row in self.rows]

    @property
    def waiting(self) -> tuple[str, ...]:
        """The workloads that hold no quota at the end."""
        return tuple(workload.label for workload in self.situation.parked)


@dataclass(frozen=True, slots=True)
class Anywhere:
    """A fleet for runs without nodes: whatever is admitted has a place."""

    def place(self, admitted: Admitted) -> tuple[Self, str]:  # noqa: ARG002 - the seam
        """Say yes."""
        return self, ""

    def release(self, admitted: Admitted) -> Self:  # noqa: ARG002 - the seam
        """Do nothing."""
        return self


def run_queues(sources: Iterable[SourceDocument], fleet: Fleet) -> QueueRun:
    """Admit the workloads among some documents through the queues among them, onto a fleet.

    Raises:
        DocumentError: a document does not fit, or does not fit the others.
    """
    setup = load(sources)
    steps, situation = simulate(setup, fleet)
    return QueueRun(tuple(rows(steps, setup.queues)), situation)
