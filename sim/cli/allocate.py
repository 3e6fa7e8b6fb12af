"""`dranode allocate` runs only the scheduler's part, on a dump of a cluster."""

import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import click

from dranode.api.documents import encode
from dranode.api.errors import capitalized
from dranode.api.manifests import SourceDocument
from dranode.driver.claims.grant import readable_results
from dranode.show.output import console, emit, output_option
from dranode.show.picture.devices import part_text
from dranode.show.terminal import columns, hanging
from dranode.sim.allocator.pools import contradictions
from dranode.sim.allocator.requests import Outcome
from dranode.sim.cli.documents import asked_features, release_options, report_notes, simulated
from dranode.sim.cluster.pods import ClusterDocuments, nodes_among, read_cluster_documents
from dranode.sim.cluster.workload import DEFAULT_CLASSES, require_pods
from dranode.sim.fit.allocating import PodPlacement, allocate_in_turn


@click.command(short_help="Show what the scheduler would give the claims in FILE from the slices in FILE.")
@click.option(
    "--node",
    metavar="NAME",
    help="Try only this node (default: all Nodes, or those of the slices).",
)
@release_options
@output_option
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
def command(
    *, files: tuple[str, ...], node: str | None, kubernetes: str | None, feature_gates: str, output: str
) -> None:
    """Allocate the claims in FILEs, in the order given, as kube-scheduler would.

    FILEs hold ResourceSlices, DeviceClasses, Nodes, Pods, ResourceClaims, ResourceClaimTemplates and claims that are
    already allocated (YAML, JSON or a List; - is the standard input). Deployments, Jobs and similar objects have the
    pods that they would create. The claims of one pod are allocated together, all or nothing. Nothing is changed
    anywhere.

    \b
    Example:
      kubectl get resourceslices,deviceclasses,nodes,resourceclaims -A -o json > cluster.json
      dranode allocate cluster.json my-claims.yaml
    """
    from dranode.driver.machine.yaml_files import load_documents

    features = asked_features(kubernetes, feature_gates)
    documents = load_documents(files)
    documents = simulated(documents, lambda: nodes_among(documents, node))
    cluster = read_cluster_documents(documents, features, node)
    require_pods(cluster.pods, files)
    report_notes((*_assumed_classes(documents, cluster), *contradictions(cluster.slices)))
    placements = tuple(allocate_in_turn(cluster, cluster.pods, features, lambda: str(uuid.uuid4())))
    outcomes = [outcome for placement in placements for outcome in (*placement.outcomes, *placement.shared)]
    if not emit([_document(outcome) for outcome in outcomes], output):
        _draw(placements)
    if any(outcome.error for outcome in outcomes):
        raise click.exceptions.Exit(1)


def _assumed_classes(documents: Iterable[SourceDocument], cluster: ClusterDocuments) -> Iterator[str]:
    """Yield a note on the classes of deploy/ that claims name and no file has, because a cluster may lack them."""
    written = {document.name for document in documents if document.kind == "DeviceClass"}
    named = {name for pod in cluster.pods for claim in pod.claims for name in claim.spec.devices.classes}
    if assumed := sorted(named & DEFAULT_CLASSES.keys() - written):
        yield f"no file has DeviceClass {', '.join(assumed)}; assumed as in deploy/deviceclasses.yaml"


def _document(outcome: Outcome) -> dict[str, Any]:
    return {
        "namespace": outcome.claim.metadata.namespace,
        "name": outcome.claim.metadata.name,
        "node": outcome.node if outcome.allocation is not None else None,
        "allocation": encode(outcome.allocation) if outcome.allocation is not None else None,
        "error": outcome.error,
        "scope": outcome.scope,
        "notes": list(outcome.notes),
    }


def _rows(outcome: Outcome) -> Iterator[tuple[str, str, str]]:
    """Yield the request, the device and the consumed capacity of each result."""
    results = tuple(readable_results(outcome.allocation))
    for result in results:
        consumed = ", ".join(part_text(amount, name) for name, amount in result.consumed_capacity.items())
        yield result.request, f"{result.driver}/{result.pool}/{result.device}", consumed
    if not results:
        yield "-", "nothing" if outcome.allocation is not None else "-", ""


def _draw(placements: tuple[PodPlacement, ...]) -> None:
    from rich.padding import Padding

    screen = console()
    if not any(placement.outcomes or placement.shared for placement in placements):
        screen.print("No pod and no claim waits for devices.")
        return
    table = columns("pod", "claim", "node", "request", "device", "consumes")
    for placement in placements:
        for outcome in (*placement.outcomes, *placement.shared):
            claim = f"{outcome.claim.metadata.namespace}/{outcome.claim.metadata.name}"
            for row in _rows(outcome):
                table.add_row(placement.pod, claim, placement.node or "-", *row)
    screen.print(table)
    for placement in placements:
        for outcome in (*placement.outcomes, *placement.shared):
            name = f"{outcome.claim.metadata.namespace}/{outcome.claim.metadata.name}"
            for sentence in (*((outcome.error,) if outcome.error else ()), *outcome.notes):
                screen.print()
                screen.print(hanging(name, sentence))
        for node, miss in placement.misses[1:]:
            screen.print(Padding(hanging(node, capitalized(miss.sentence), style=""), (0, 0, 0, 2)))
