"""`dranode fit`: does a pod fit into a cluster, where, and what would have to change."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import click

from dranode.driver.cli.output import console, emit, output_option, reporting
from dranode.driver.core.api.errors import UsageError
from dranode.sim.cli.release import asked_features, release_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from dranode.driver.core.api.source_document import SourceDocument


@click.command(short_help="Does a pod fit into a cluster, where, why not, and what would have to change.")
@click.option("--kubeconfig", metavar="FILE", help="Read the cluster itself, and FILEs beside it; nothing is written.")
@click.option(
    "--pod", "pods", multiple=True, metavar="[NAMESPACE/]NAME", help="Ask for this pod; default: all that wait."
)
@click.option("--scores", is_flag=True, help="Show how each node scored.")
@release_options
@output_option
@click.argument("files", nargs=-1, metavar="[FILE...]")
def command(
    *,
    files: tuple[str, ...],
    kubeconfig: str | None,
    pods: tuple[str, ...],
    scores: bool,
    kubernetes: str | None,
    feature_gates: str,
    output: str,
) -> None:
    """Say where kube-scheduler would put the pods in FILEs that are bound to no node, one after another.

    FILEs hold a cluster as kubectl prints it and the pods to ask for (YAML, JSON or a List; - is the standard input).
    Exit status 1 if a pod fits nowhere. Nothing is changed anywhere.

    \b
    Example:
      kubectl get nodes,pods,namespaces,services,replicasets,statefulsets,priorityclasses,resourceslices,\\
    deviceclasses,resourceclaims,resourceclaimtemplates -A -o yaml > cluster.yaml
      dranode fit cluster.yaml my-pod.yaml
      dranode fit --kubeconfig ~/.kube/config my-pod.yaml
    """
    from dranode.sim.fit.dump import read_dump
    from dranode.sim.fit.notes import cluster_notes
    from dranode.sim.fit.questions import ClusterQuestions
    from dranode.sim.fit.show import answer_document, show_answers

    features = asked_features(kubernetes, feature_gates)
    with reporting() as progress:
        dump = read_dump(_documents(files, kubeconfig, progress))
        progress("looking at the cluster")
        questions = ClusterQuestions.of(dump, features, lambda: str(uuid.uuid4()))
        answers = []
        for answer in questions.answers(questions.selected(pods)):
            answers.append(answer)
            progress(f"{len(answers)} pods looked at")
    notes = list(cluster_notes(dump))
    if not emit({"pods": [answer_document(answer) for answer in answers], "notes": notes}, output):
        screen = console()
        show_answers(screen, answers, scores=scores)
        for note in notes:
            screen.print(f"note: {note}", markup=False)
    if any(answer.placement.node is None for answer in answers):
        raise click.exceptions.Exit(1)


def _documents(
    files: tuple[str, ...], kubeconfig: str | None, progress: Callable[[str], None]
) -> tuple[SourceDocument, ...]:
    """The documents of the cluster, if one is named, then those of the files."""
    from dranode.driver.machine.yaml_files import load_documents

    if not files and kubeconfig is None:
        raise UsageError("name the files that hold the cluster and its pods, or a cluster with --kubeconfig")
    progress("reading")
    documents = load_documents(files)
    if kubeconfig is None:
        return documents
    from dranode.driver.kube.client import Client
    from dranode.driver.kube.connection import Connection
    from dranode.driver.kube.source import Credentials
    from dranode.sim.fit.live import live_documents

    credentials = Credentials(kubeconfig)
    credentials.check()
    client = Client(Connection(credentials), agent="dranode-fit")
    return (*live_documents(client, kubeconfig, progress), *documents)
