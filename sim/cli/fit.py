"""`dranode fit`: whether and where a pod fits into a cluster, and what would have to change."""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from dranode.api.errors import DocumentError, UsageError
from dranode.api.manifests import SourceDocument
from dranode.driver.cli.options import DriverCommand, plugin_options
from dranode.show.cluster_objects import ApiObjects, cluster_documents
from dranode.show.cluster_option import kubeconfig_options, named_cluster, names_cluster
from dranode.show.output import console, emit, output_option, picture_options, reporting, write_pictures
from dranode.show.picture.fleet import FleetPicture
from dranode.show.terminal import hanging
from dranode.sim.allocator.features import Features
from dranode.sim.cli.documents import asked_features, discovering, release_options, simulated
from dranode.sim.cluster.nodes_file import read_nodes, slice_templates
from dranode.sim.fit.additions import LIKE, NodeModel, model_like, model_of_kind
from dranode.sim.fit.changes import Changes, changes_document, show_changes
from dranode.sim.fit.dump import ESSENTIAL_KINDS, ClusterDump, live_kinds, read_dump
from dranode.sim.fit.questions import ClusterQuestions, PodAnswer, cluster_notes
from dranode.sim.fit.show import answer_document, show_answers
from dranode.sim.report.cluster import cluster_seen
from dranode.sim.report.picture import placed_picture

# Up to so many pods times nodes, -o json and -o yaml list every node of every pod.
_MOST_NAMED = 1_000_000


@dataclass(frozen=True, slots=True)
class _Read:
    """The documents of the cluster and of the files.

    Attributes:
        documents: the objects of both.
        places: the address of the cluster and the names of the files.
        name: a title for them.
        kinds: the kinds that were read completely from the cluster.
        notes: a sentence for each kind that the cluster refused to list.
    """

    documents: tuple[SourceDocument, ...]
    places: tuple[str, ...]
    name: str
    kinds: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()


@click.command(
    cls=DriverCommand, short_help="Find where a pod fits into a cluster, why not, and what would have to change."
)
@kubeconfig_options
@click.option(
    "--pod", "pods", multiple=True, metavar="[NAMESPACE/]NAME", help="Ask for this pod (default: all that wait)."
)
@click.option("--scores", is_flag=True, help="Show how each node scored.")
@click.option("--how-many", is_flag=True, help="Show how many pods like each one fit.")
@click.option("--evict", is_flag=True, help="Find evictions that make room for a pod that fits nowhere.")
@click.option("--move", is_flag=True, help="Find moves of other pods that make room for a pod that fits nowhere.")
@click.option(
    "--add",
    multiple=True,
    metavar="FILE|like:NODE",
    help="Find how many nodes of a nodes.yaml, or like NODE, make room for all pods; repeatable.",
)
@plugin_options
@picture_options
@release_options
@output_option
@click.argument("files", nargs=-1, metavar="[FILE...]")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    files: tuple[str, ...],
    kubeconfig: str,
    context: str,
    pods: tuple[str, ...],
    scores: bool,
    how_many: bool,
    evict: bool,
    move: bool,
    add: tuple[str, ...],
    drivers: tuple[str, ...],
    kubernetes: str | None,
    feature_gates: str,
    output: str,
    html: str | None,
    svg: str | None,
    **options: Any,
) -> None:
    """Show where kube-scheduler would place the pods in FILEs that have no node yet, one after another.

    FILEs hold a cluster as kubectl prints it and the pods to place, or the Deployments, Jobs and similar objects that
    create them (YAML, JSON or a List; - is the standard input). If no FILE has a Node or a ResourceSlice, or if
    --kubeconfig, --context or another of kubectl's options for a connection is given, the cluster itself is read in
    addition to FILEs: the one of --kubeconfig, of KUBECONFIG, of ~/.kube/config, or inside a pod without these its
    own. The exit status is 1 if a pod fits nowhere. Nothing is changed anywhere. Pictures show the cluster before and
    after, in the same layout.

    \b
    Example:
      kubectl get nodes,pods,namespaces,services,replicasets,statefulsets,daemonsets,priorityclasses,resourceslices,\\
    deviceclasses,resourceclaims,resourceclaimtemplates -A -o json > cluster.json
      dranode fit cluster.json my-pod.yaml --move --add nodes.yaml --drivers cpu,gpu
      dranode fit --context prod my-pod.yaml --how-many
      dranode fit cluster.json my-pod.yaml --html fit.html
    """
    features = asked_features(kubernetes, feature_gates, whole_nodes=True)
    read = _read(files, kubeconfig, context, features, named=names_cluster(ctx))
    dump = read_dump(read.documents, read.kinds)
    _require_question(dump, ", ".join(read.places), every=not pods)
    with reporting() as progress:
        progress("evaluating the cluster")
        questions = ClusterQuestions.of(dump, features, lambda: str(uuid.uuid4()))
        models = list(_models(add, questions, drivers, options))
    answers = _ask(questions, output, read, models, pods=pods, scores=scores, how_many=how_many, evict=evict, move=move)
    write_pictures(html, svg, lambda: _picture(questions, read, answers))
    if any(answer.choice.node is None for answer in answers):
        raise click.exceptions.Exit(1)


def _require_question(dump: ClusterDump, names: str, *, every: bool) -> None:
    """Fail if there is no node, or if `every` waiting pod is to be placed and none waits."""
    if not dump.nodes:
        raise DocumentError(
            f"no Node in {names}, so no pod can fit; name a dump of a cluster or --kubeconfig, or place the pods on "
            "nodes that do not exist yet with dranode local --nodes"
        )
    if every and not dump.waiting:
        raise DocumentError(f"no pod in {names} waits for a node; name one with --pod")


def _ask(
    questions: ClusterQuestions,
    output: str,
    read: _Read,
    models: Sequence[NodeModel],
    *,
    pods: tuple[str, ...],
    scores: bool,
    how_many: bool,
    evict: bool,
    move: bool,
) -> list[PodAnswer]:
    """Place the pods, print the answers and return them."""
    with reporting() as progress:
        answers = []
        selected = questions.selected(pods)
        for answer in questions.answers(selected):
            answers.append(answer)
            progress(f"{len(answers):,} of {len(selected):,} pods placed", len(answers), len(selected))
        progress("looking for changes that make room")
        changes = Changes.of(questions, answers, models, how_many=how_many, evict=evict, move=move)
    notes = [*read.notes, *cluster_notes(questions.dump, adds=any(model.copied is None for model in models))]
    if output != "table":
        # Programs get every node for every pod, unlike people. With many of both, that takes hours and too much memory.
        named = len(answers) * len(questions.dump.nodes) <= _MOST_NAMED
        if not named:
            notes.append(
                f"nodes are only counted, and scores are left out, because {len(answers):,} pods times "
                f"{len(questions.dump.nodes):,} nodes is more than {_MOST_NAMED:,}; select fewer pods with --pod"
            )
        documents = [answer_document(answer, named=named) for answer in answers]
        emit({"read": read.places, "pods": documents, **changes_document(changes), "notes": notes}, output)
    else:
        screen = console()
        screen.print(hanging("read:", ", ".join(read.places), style=""))
        show_answers(screen, answers, scores=scores)
        show_changes(screen, changes)
        for note in notes:
            screen.print(hanging("note:", note, style=""))
    return answers


def _picture(questions: ClusterQuestions, read: _Read, answers: Sequence[PodAnswer]) -> FleetPicture:
    # Events do not decide whether a pod fits, so the picture does not report them as missing.
    cluster = cluster_seen(read.documents, {*read.kinds, "Event"}, read.notes)
    end = questions.after(answers[-1])
    return placed_picture(cluster, answers, end, questions.features, title=f"Where pods fit in {read.name}")


def _read(files: tuple[str, ...], kubeconfig: str, context: str, features: Features, *, named: bool) -> _Read:
    """Read the documents of the files, and of the cluster if one is named or the files do not hold one.

    Raises:
        ApiError: an essential kind cannot be read.
    """
    from dranode.driver.machine.yaml_files import load_documents

    with reporting() as progress:
        progress("reading")
        documents = load_documents(files)
    dumped = any(document.kind in ("Node", "ResourceSlice") for document in documents)
    cluster = named_cluster(kubeconfig, context, "", "dranode-fit") if named or not dumped else None
    names = tuple(Path(file).name for file in files)
    if cluster is None:
        if not files:
            raise UsageError("name the files that hold the cluster and its pods, or a cluster with --kubeconfig")
        return _Read(simulated(documents), files, ", ".join(names))
    with cluster.waiting():
        kinds: dict[str, dict[str, str]] = {kind: {} for kind in live_kinds(features)}
        read = cluster_documents(ApiObjects(cluster.client), kinds, cluster.place, ESSENTIAL_KINDS)
    notes = tuple(f"not seen: {error}" for error in read.refused.values())
    documents = (*read.documents, *simulated(documents, around=read.documents))
    places = (cluster.place, *files)
    return _Read(documents, places, ", ".join((cluster.name, *names)), read.kinds, notes)


def _models(
    names: tuple[str, ...], questions: ClusterQuestions, drivers: tuple[str, ...], options: Mapping[str, Any]
) -> Iterator[NodeModel]:
    """Yield the nodes that could be added: entries of a nodes.yaml, and copies of the cluster's nodes."""
    discover = discovering(drivers, options)
    for name in names:
        if name.startswith(LIKE):
            yield model_like(name.removeprefix(LIKE), questions.dump)
        else:
            kinds = read_nodes(name)
            try:
                yield from (model_of_kind(kind, slice_templates(kind, discover)) for kind in kinds)
            except DocumentError as error:
                raise DocumentError(f"{name}: {error}") from error
