"""`dranode local --nodes` and `--queues`: place claims and admit workloads on an imagined fleet."""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import click

from dranode.api.errors import UsageError
from dranode.api.manifests import SourceDocument
from dranode.driver.machine.yaml_files import load_documents, parse_yaml
from dranode.show.output import console, emit, reporting, write_pictures
from dranode.show.terminal import hanging
from dranode.sim.allocator.features import Features
from dranode.sim.cli.documents import MOST_NOTES, discovering, report_notes, simulated
from dranode.sim.cluster.manifests import check_unused
from dranode.sim.cluster.workload import read_workload, require_pods
from dranode.sim.fleet.report import FleetReport, fleet_document, report_picture
from dranode.sim.fleet.run import ImaginedFleet, admit, place
from dranode.sim.fleet.show import attempts_drawn, show_fleet
from dranode.sim.queues.documents import CONFIG_GROUP
from dranode.sim.queues.report import QueueRun


def run_on_fleet(
    drivers: tuple[str, ...],
    options: Mapping[str, Any],
    files: tuple[str, ...],
    features: Features,
    *,
    nodes: tuple[str, ...],
    queues: tuple[str, ...],
    scores: bool,
    html: str | None,
    svg: str | None,
    output: str,
) -> None:
    """Run and show; the exit status is 1 if a claim fits nowhere or a workload waits for quota.

    Raises:
        UsageError: a picture or scores are requested without nodes.
        DranodeError: a file or a machine cannot be read, or the picture cannot be written.
    """
    if not nodes and (scores or html is not None or svg is not None):
        raise UsageError("--scores, --html and --svg need --nodes FILE")
    with reporting() as progress:
        progress("reading")
        discover = discovering(drivers, options)
        fleet = ImaginedFleet.joined([ImaginedFleet.read(path, discover) for path in nodes]) if nodes else None
        sources = tuple(_with_configurations(load_documents([*queues, *files])))
        nodes_known = (lambda: [node for node, _ in fleet.nodes]) if fleet is not None else None
        sources = simulated(sources, nodes_known, queued=bool(queues))
        check_unused(sources)
        if files and not queues:
            require_pods(read_workload(sources, features).pods, files)
        run: QueueRun | None = None
        report: FleetReport | None = None
        if queues:
            progress("admitting")
            report_notes(_without_queue(sources))
            run, report = admit(fleet, sources, features)
        elif fleet is not None:
            report = place(fleet, sources, features, scores=scores, progress=progress)
    if report is not None:
        report_notes(report.notes)
        write_pictures(html, svg, functools.partial(report_picture, report))
    if not emit(_document(report, run, scores=scores), output):
        _draw(report, run, scores=scores)
    unplaced = report is not None and any(result.node is None for result in report.results)
    if unplaced or (run is not None and run.waiting):
        raise click.exceptions.Exit(1)


def _with_configurations(sources: Iterable[SourceDocument]) -> Iterator[SourceDocument]:
    """Yield the documents, and the Configuration of Kueue in a ConfigMap, as `kubectl get configmap` prints it.

    Raises:
        DocumentError: the Configuration is not one YAML document.
    """
    for source in sources:
        yield source
        data = source.document.get("data") if source.kind == "ConfigMap" else None
        for name, text in data.items() if isinstance(data, Mapping) else ():
            place = f"{source.place}, data[{name}]"
            if CONFIG_GROUP in str(text) and "kind" in (document := parse_yaml(str(text).encode(), place) or {}):
                yield SourceDocument(place, 0, document)


def _without_queue(sources: Sequence[SourceDocument]) -> list[str]:
    """Return a note on pods that belong to no Workload or Job with a queue, since --queues does not place them."""
    pods = [source.name for source in sources if source.kind == "Pod"]
    more = f" and {len(pods) - 1} more" if pods[1:] else ""
    return [f"--queues places only pods of Workloads and of Jobs with a queue, not {pods[0]}{more}"] if pods else []


def _document(report: FleetReport | None, run: QueueRun | None, *, scores: bool) -> dict[str, Any]:
    document = fleet_document(report, scores=scores) if report is not None else {}
    return {**document, "attempts": run.attempts, "notes": list(run.notes)} if run is not None else document


def _draw(report: FleetReport | None, run: QueueRun | None, *, scores: bool) -> None:
    screen = console()
    if run is not None:
        screen.print(attempts_drawn(run.rows))
        if run.waiting:
            screen.print()
            screen.print(hanging("Still waiting for quota", ", ".join(run.waiting)))
        more = [f"and {len(run.notes) - MOST_NOTES} more notes (-o json has all)"] if run.notes[MOST_NOTES:] else []
        for note in (*run.notes[:MOST_NOTES], *more):
            screen.print()
            screen.print(hanging("note", note))
        screen.print()
    if report is not None:
        show_fleet(screen, report, scores=scores)
