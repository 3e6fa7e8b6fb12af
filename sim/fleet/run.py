"""Runs on an imagined fleet: place pods on many nodes, or admit workloads by queues and then place them."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from dranode.api.errors import DocumentError
from dranode.api.manifests import SourceDocument
from dranode.api.resource import ResourceSlice
from dranode.sim.allocator.features import Features
from dranode.sim.cluster.manifests import check_manifests
from dranode.sim.cluster.node_kinds import nodes_of
from dranode.sim.cluster.nodes_file import Discover, read_nodes, slices_of
from dranode.sim.cluster.workload import read_workload
from dranode.sim.fit.questions import ClusterQuestions
from dranode.sim.fleet.placing import FleetNodes, demands_in, imagined_dump, imagined_notes, place_pods
from dranode.sim.fleet.report import FleetReport, report_on
from dranode.sim.local.run import Progress
from dranode.sim.queues.report import Anywhere, QueueRun, run_queues
from dranode.sim.queues.setup import load
from dranode.sim.scheduler.documents import SchedulingNode


@dataclass(frozen=True, slots=True)
class ImaginedFleet:
    """Nodes that exist only as a description.

    Attributes:
        nodes: the nodes, each with the description of its machine that people are shown.
        slices: their ResourceSlices.
    """

    nodes: tuple[tuple[SchedulingNode, str], ...]
    slices: tuple[ResourceSlice, ...]

    @property
    def bare_nodes(self) -> tuple[SchedulingNode, ...]:
        """Return the nodes without their machines."""
        return tuple(node for node, _ in self.nodes)

    @classmethod
    def read(cls, path: Path | str, discover: Discover) -> ImaginedFleet:
        """Read the fleet of a `nodes.yaml`; `discover` returns the drivers with their devices on a machine.

        Raises:
            DocumentError: the file is invalid, or a machine cannot be read; names the place.
        """
        kinds = read_nodes(path)
        nodes = tuple((node, kind.origin) for kind in kinds for node in nodes_of([kind]))
        try:
            return cls(nodes, slices_of(kinds, discover))
        except DocumentError as error:
            raise DocumentError(f"{path}: {error}") from error

    @classmethod
    def joined(cls, fleets: Sequence[ImaginedFleet]) -> ImaginedFleet:
        """Return the nodes of several fleets.

        Raises:
            DocumentError: two nodes have the same name.
        """
        counts = Counter(node.metadata.name for fleet in fleets for node, _ in fleet.nodes)
        twice = next((name for name, count in counts.items() if count > 1), None)
        if twice is not None:
            raise DocumentError(f'node "{twice}" is in two files; rename one')
        nodes = tuple(node for fleet in fleets for node in fleet.nodes)
        return cls(nodes, tuple(slice_ for fleet in fleets for slice_ in fleet.slices))


def place(
    fleet: ImaginedFleet,
    sources: Sequence[SourceDocument],
    features: Features,
    *,
    scores: bool,
    progress: Progress,
) -> FleetReport:
    """Place the pods and claims of some documents on a fleet.

    Raises:
        DocumentError: a document does not decode, or names a missing claim or request; names the place.
    """
    workload = read_workload(sources, features)
    dump = imagined_dump(fleet.bare_nodes, fleet.slices, sources, workload)
    questions = ClusterQuestions.of(dump, features, _share_id)
    demands = demands_in(workload.pods, dump, features)
    number = count(1)
    results, state = place_pods(
        questions,
        questions.state,
        demands,
        scores=scores,
        progress=lambda pod: progress(f"pod {next(number)} of {len(demands)}: {pod}"),
    )
    progress("looking for stranded devices")
    notes = imagined_notes(fleet.bare_nodes, dump, demands, features)
    return report_on(
        questions.scheduler,
        state,
        slices=fleet.slices,
        nodes=fleet.nodes,
        results=results,
        pods=workload.pods,
        notes=notes,
    )


def admit(
    fleet: ImaginedFleet | None, sources: Sequence[SourceDocument], features: Features
) -> tuple[QueueRun, FleetReport | None]:
    """Admit workloads by the queues among some documents, and place them if there is a fleet.

    Returns:
        The run, and the report on the fleet; None without a fleet.

    Raises:
        DocumentError: a document does not decode or contradicts others, or there is no workload.
    """
    check_manifests(sources)
    setup = load(sources, fleet.slices if fleet is not None else None)
    if not setup.documents:
        raise DocumentError(
            "nothing to admit: the files have no Workload, and no Job with the label kueue.x-k8s.io/queue-name"
        )
    if fleet is None:
        return run_queues(setup, Anywhere()), None
    workload = read_workload(sources, features)
    dump = imagined_dump(fleet.bare_nodes, fleet.slices, sources, workload)
    questions = ClusterQuestions.of(dump, features, _share_id)
    placed = FleetNodes(questions, setup, sources)
    run = run_queues(setup, placed)
    results = [result for pods in placed.results.values() for result in pods]
    demands = [placed.state.demands[result.pod] for result in results]
    notes = imagined_notes(fleet.bare_nodes, dump, demands, features)
    report = report_on(
        questions.scheduler,
        placed.state,
        slices=fleet.slices,
        nodes=fleet.nodes,
        results=results,
        pods=workload.pods,
        notes=notes,
    )
    return run, report


def _share_id() -> str:
    return str(uuid.uuid4())
