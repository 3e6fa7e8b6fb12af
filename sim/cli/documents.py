"""The input of a command that simulates: its documents, and kube-scheduler's release and feature gates.

The documents get the names and pods that a cluster would generate; ignored documents are reported.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import click

from dranode.api.errors import UsageError
from dranode.api.manifests import SourceDocument, with_generated_names
from dranode.api.resource import Node
from dranode.driver.claims.plugin import Inventory
from dranode.driver.plugins import load_plugins
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.releases import NEWEST_STABLE, RELEASES, Release, release
from dranode.sim.cluster.controllers import POD_TEMPLATES, with_pods
from dranode.sim.cluster.nodes_file import Discover
from dranode.sim.cluster.pod_templates import ignored_documents
from dranode.sim.cluster.pods import nodes_among
from dranode.sim.cluster.undecoded import unknown_pod_fields
from dranode.sim.machines.forms import open_machine


def release_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--kubernetes` and `--feature-gates`, which `asked_features` reads."""
    kubernetes = click.option(
        "--kubernetes",
        metavar="RELEASE",
        help="Answer as this release does: 1.34 to 1.37, 1.38-alpha or a patch release; default: the newest stable.",
    )
    gates = click.option(
        "--feature-gates",
        default="",
        metavar="NAME=BOOL,...",
        help="Feature gates of that release, as for kube-scheduler.",
    )
    return kubernetes(gates(function))


def asked_features(kubernetes: str | None, feature_gates: str, *, whole_nodes: bool = False) -> Features:
    """Return the release and the gates of the command line; `whole_nodes` is for commands that check more than devices.

    Raises:
        UsageError: the release is not simulated, or a gate cannot be set in it or for this command.
    """
    features = Features.parse(feature_gates, NEWEST_STABLE if kubernetes is None else release(kubernetes))
    if features.node_allocatable_resources and not whole_nodes:
        raise UsageError(
            "the feature gate DRANodeAllocatableResources changes how CPU and memory of nodes are counted, but this "
            "command ignores them; use dranode fit, or leave the gate out"
        )
    _note_differences(features.release)
    return features


def _note_differences(requested: Release) -> None:
    """Print which patch release is modeled, if another one was requested, and how they differ."""
    modeled = RELEASES[requested.name].version
    if requested.version == modeled:
        return
    differences = requested.differences
    click.echo(
        f"note: Kubernetes {requested.version} is simulated with the model of {modeled}"
        f"{', with these differences:' if differences else '; no difference is known'}",
        err=True,
    )
    for difference in differences:
        click.echo(f"  {difference}", err=True)


MOST_NOTES: Final = 20


def simulated(
    documents: Sequence[SourceDocument],
    nodes: Callable[[], Sequence[Node]] | None = None,
    *,
    around: Iterable[SourceDocument] = (),
    queued: bool = False,
    tolerant: bool = False,
) -> tuple[SourceDocument, ...]:
    """Return documents with generated names and the pods of their controllers; print on stderr what is ignored.

    DaemonSets run on `nodes`, by default the Nodes of the documents; for the other arguments, see `with_pods`.

    Raises:
        DocumentError: a controller does not decode, or the API server would reject it; names the place.
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
    report_notes((*_unknown_fields(documents), *ignored_documents(documents, queued=queued), *made.notes))
    return made.documents


def _unknown_fields(documents: Iterable[SourceDocument]) -> Iterator[str]:
    """Yield a sentence for each unknown field of pods and controllers that no API server has stored."""
    for source in documents:
        template = POD_TEMPLATES.get(source.kind, ())
        if (source.document.get("metadata") or {}).get("uid"):
            continue
        if template or source.kind == "Pod":
            for error in unknown_pod_fields(source.document, source.kind, template):
                yield f"{source.place}: {error.path}: {error.message}"
        spec = source.document.get("spec") if source.kind == "Workload" else None
        pod_sets = spec.get("podSets") if isinstance(spec, dict) else None
        for number, pod_set in enumerate(pod_sets if isinstance(pod_sets, list) else ()):
            made = {"template": pod_set.get("template") if isinstance(pod_set, dict) else None}
            for error in unknown_pod_fields(made, "PodTemplate", POD_TEMPLATES["PodTemplate"]):
                yield f"{source.place}: spec.podSets[{number}].{error.path}: {error.message}"


def report_notes(notes: Sequence[str]) -> None:
    """Print the first notes on stderr, and how many more there are."""
    for note in notes[:MOST_NOTES]:
        click.echo(f"dranode: {note}", err=True)
    if len(notes) > MOST_NOTES:
        click.echo(f"dranode: and {len(notes) - MOST_NOTES} more notes", err=True)


def discovering(drivers: tuple[str, ...], options: Mapping[str, Any]) -> Discover:
    """Return a function that yields these drivers with the devices that they find on a machine."""

    def discover(machine: str) -> Iterator[tuple[str, Inventory]]:
        for plugin in load_plugins(drivers, open_machine(machine), options):
            yield plugin.driver, plugin.discover()

    return discover
