"""The documents that a command simulates, with the names and pods that a cluster makes; what is passed over is said."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import click

from dranode.api.manifests import SourceDocument, with_generated_names
from dranode.api.resource import Node
from dranode.sim.cluster.controllers import with_pods
from dranode.sim.cluster.not_run import passed_over
from dranode.sim.cluster.pods import nodes_among

_MOST_NOTES: Final = 20


def simulated(
    documents: Sequence[SourceDocument],
    nodes: Callable[[], Sequence[Node]] | None = None,
    *,
    around: Iterable[SourceDocument] = (),
    queued: bool = False,
    tolerant: bool = False,
) -> tuple[SourceDocument, ...]:
    """Return documents with generated names and the pods of their controllers.

    What is made of them and what is passed over is said on stderr.

    `nodes` are those on which DaemonSets run, else those of the documents; the rest is as in `with_pods`.

    Raises:
        DocumentError: what makes pods does not decode, or the API server would refuse it; says where.
    """
    around = tuple(around)
    documents = tuple(with_generated_names(documents, around))
    made = with_pods(
        documents,
        nodes or (lambda: nodes_among((*documents, *around))),
        around=around,
        queued=queued,
        tolerant=tolerant,
    )
    report_notes((*passed_over(documents, queued=queued), *made.notes))
    return made.documents


def report_notes(notes: Sequence[str]) -> None:
    """Print notes on stderr, the first of many."""
    for note in notes[:_MOST_NOTES]:
        click.echo(f"dranode: {note}", err=True)
    if len(notes) > _MOST_NOTES:
        click.echo(f"dranode: and {len(notes) - _MOST_NOTES} more such notes", err=True)
