"""`dranode explain`: shows how far a pod or a claim has come, and where and why it stopped."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from dranode.api.errors import DocumentError, UsageError
from dranode.driver.cli.options import DriverCommand, driver_options, serve_option
from dranode.show.cluster_objects import ApiObjects, cluster_documents
from dranode.show.cluster_option import NamedCluster, cluster_options, named_cluster, names_cluster
from dranode.show.output import console, emit, output_option
from dranode.show.terminal import hanging
from dranode.sim.cli.documents import simulated
from dranode.sim.fit.dump import ESSENTIAL_KINDS, live_kinds
from dranode.tools.cli.explaining import Explainer, Subject, features_of, subject_of
from dranode.tools.cli.on_node import ThisNode, plugins_here
from dranode.tools.diagnosis.facts import ServeOptions
from dranode.tools.diagnosis.live_objects import FitAnswer
from dranode.tools.diagnosis.scheduler import fit_answer
from dranode.tools.diagnosis.steps import Outcome, Step, Trace
from dranode.tools.readers.host import NodeHost
from dranode.tools.readers.pods import DumpObjects, PodReader
from dranode.tools.readers.sources import FromCluster, FromStore, ObjectSource


@click.command(cls=DriverCommand, short_help="Explain why a pod with claims, or a claim, is stuck, and what to do.")
@click.argument("subject", metavar="POD|CLAIM")
@click.argument("files", nargs=-1, metavar="[FILE...]")
@cluster_options
@click.option("--store", metavar="DIR", help="Read claims from a folder of YAML files instead of a cluster.")
@driver_options
@click.option(
    "--root", "folder", default="/", metavar="DIR", help="The node's root folder (/host in a node's debugging pod)."
)
@serve_option("--kubelet-root")
@serve_option("--cdi-dir")
@serve_option("--nri-socket")
@output_option
@click.pass_context
def command(ctx: click.Context, /, subject: str, files: tuple[str, ...], output: str, **options: Any) -> None:
    """Follow POD|CLAIM from its claims to its containers, and say where it stopped, why, and what to do.

    POD|CLAIM is NAME, NAMESPACE/NAME, pod/NAME or claim/NAME. Reads pods, claims, templates, Events, slices, classes
    and nodes (deploy/reader has the rights), and on the claim's node the driver's ledger, the CDI directory, the
    runtime's configuration, kubelet's pod-resources and the kernel. For a claim that is not allocated, it shows why
    kube-scheduler rejects each node; for a pod that waits for something else, what `fit` says. FILEs are kubectl's
    output (- is the standard input) and are read instead of a cluster, as by `fit`. Nothing is changed. What cannot be
    seen from here is listed with the command that shows it. The exit status is 1 if something stopped, or if there is
    no pod or claim of that name.

    \b
    Example:
      dranode explain near-memory
      dranode explain default/near-memory-cpus-x7k2p --context prod
      kubectl exec -n dranode ds/dranode -- dranode explain default/near-memory
      dranode explain default/app cluster.json
      dranode explain default/a --store state/store --kubelet-root state/kubelet --cdi-dir state/cdi
    """
    store = options["store"]
    if (files or store is not None) and names_cluster(ctx):
        raise UsageError(
            "FILEs and --store are read instead of a cluster; leave them or --kubeconfig and --context out"
        )
    if files:
        _explain_dump(ctx, subject, files, output, options)
        return
    cluster = None
    if store is None:
        cluster = named_cluster(options["kubeconfig"], options["context"], options["namespace"], "dranode-explain")
    # By default not only the drivers that `serve` runs by default: any installed one may have prepared the claim.
    named = ctx.get_parameter_source("drivers") is not click.core.ParameterSource.DEFAULT
    node = this_node(options["drivers"] if named else (), options)
    place = subject_of(subject, options["namespace"], cluster.namespace if cluster is not None else "default")
    show(ctx, place, output, explainer(cluster, node, _source(store, cluster)), cluster)


def _explain_dump(
    ctx: click.Context, subject: str, files: tuple[str, ...], output: str, options: Mapping[str, Any]
) -> None:
    """Explain a pod or claim from a cluster's objects in files; this machine is not read."""
    from dranode.driver.machine.yaml_files import load_documents

    if options["store"] is not None:
        raise UsageError("--store is a folder of claims, and FILEs are a cluster; leave one of them out")
    documents, place = simulated(load_documents(files)), ", ".join(files)
    if not any(document.kind in ("Pod", "ResourceClaim") for document in documents):
        raise DocumentError(f"{place} holds no Pod or ResourceClaim, so there is nothing to explain")
    objects = DumpObjects(documents, place)

    def fit(pod: str) -> FitAnswer:
        return fit_answer(documents, (), pod, features_of(objects.server_version))

    page = Explainer(PodReader(objects), None, None, fit)
    show(ctx, subject_of(subject, options["namespace"], "default"), output, page, None)


def this_node(drivers: tuple[str, ...], options: dict[str, Any]) -> ThisNode:
    """Return the node that this command runs on, as its options describe it.

    Raises:
        UsageError: a driver that was named is not installed, or refuses its options.
    """
    host = NodeHost.at(options["folder"])
    root = _absolute(options["kubelet_root"])
    plugins = plugins_here(drivers, host.files, options)
    judged = ServeOptions(
        node=options["node_name"],
        drivers=tuple(plugins),
        kubelet_root=root,
        cdi_dir=_absolute(options["cdi_dir"]),
        nri_socket=options["nri_socket"],
    )
    return ThisNode(
        host,
        judged,
        plugins,
        f"{root}/pod-resources/kubelet.sock",
        real=options["store"] is None,
        root=os.geteuid() == 0,
    )


def _absolute(path: str) -> str:
    return os.path.abspath(path)  # noqa: PTH100 - links of the node must not be resolved here


def _source(store: str | None, cluster: NamedCluster | None) -> ObjectSource | None:
    if store is not None:
        from dranode.driver.local.store import Store

        return FromStore(Store(Path(store)))
    return FromCluster(cluster.client) if cluster is not None else None


def explainer(cluster: NamedCluster | None, node: ThisNode | None, source: ObjectSource | None) -> Explainer:
    """Return an explainer, with kube-scheduler's answers as of the cluster's release."""
    if cluster is None:
        return Explainer(None, node, source)
    objects = ApiObjects(cluster.client)

    def fit(pod: str) -> FitAnswer:
        features = features_of(objects.server_version)
        kinds: dict[str, dict[str, str]] = {kind: {} for kind in live_kinds(features)}
        read = cluster_documents(objects, kinds, cluster.place, ESSENTIAL_KINDS)
        return fit_answer(read.documents, read.kinds, pod, features)

    return Explainer(PodReader(objects), node, source, fit)


def show(ctx: click.Context, subject: Subject, output: str, page: Explainer, cluster: NamedCluster | None) -> None:
    """Print the page, and on a terminal what it waits for meanwhile.

    The exit status is 1 if something stopped, or if nothing is known about the subject.
    """
    with cluster.waiting() if cluster is not None else contextlib.nullcontext():
        traces = page.explain(subject)
    if not emit(page_document(str(subject), traces, page.unasked), output):
        draw_page(console(), traces, page.unasked)
    if any(trace.unknown or trace.stopped is not None for trace in traces):
        ctx.exit(1)


if TYPE_CHECKING:
    from rich.console import Console

_STYLES: Final = {Outcome.PASSED: "green", Outcome.STOPPED: "red", Outcome.UNSEEN: "yellow"}
# The longest word is `stopped`.
_WORD_WIDTH: Final = 8


def page_document(about: str, traces: Sequence[Trace], unasked: Sequence[str]) -> dict[str, Any]:
    """Return the page as a plain document.

    A step is `{"name", "passed", "what", "details", "fix", "cause"}`, a trace `{"about", "claim", "driver", "stopped",
    "stations"}`, the page `{"about", "causes", "ways", "unasked"}`; `causes` are the steps that stop it, each as
    `{"cause", "about", "what", "details", "fix"}`.
    """
    return {
        "about": about,
        "causes": [
            {
                "cause": trace.stopped.cause.value if trace.stopped.cause else None,
                "about": trace.about,
                "what": trace.stopped.what,
                "details": list(trace.stopped.details),
                "fix": trace.stopped.fix,
            }
            for trace in traces
            if trace.stopped is not None
        ],
        "ways": [
            {
                "about": trace.about,
                "claim": trace.claim or None,
                "driver": trace.driver or None,
                "stopped": trace.stopped.name if trace.stopped else None,
                "stations": [_step_document(step) for step in trace.steps],
            }
            for trace in traces
        ],
        "unasked": list(unasked),
    }


def _step_document(step: Step) -> dict[str, Any]:
    return {
        "name": step.name,
        "passed": step.outcome.value,
        "what": step.what,
        "details": list(step.details),
        "fix": step.fix or None,
        "cause": step.cause.value if step.cause else None,
    }


def draw_page(screen: Console, traces: Sequence[Trace], unasked: Sequence[str]) -> None:
    """Print the page for people."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    for trace in traces:
        screen.print(f"{trace.about}{f', {trace.driver}' if trace.driver else ''}", markup=False)
        # In a grid, long sentences wrap beside the word, not under it.
        grid = Table.grid(padding=(0, 1))
        grid.add_column(width=_WORD_WIDTH)
        grid.add_column(overflow="fold")
        for step in trace.steps:
            code = (f" ({step.cause})", "dim") if step.cause else ""
            style = _STYLES[step.outcome]
            grid.add_row(Text(step.outcome, style=style), Text.assemble(f"{step.name}: {step.what}", code))
            for line in step.details:
                grid.add_row("", Text(line))
            if step.fix:
                grid.add_row("", Text(f"-> {step.fix}"))
        screen.print(Padding(grid, (0, 0, 0, 2), expand=False))
    for sentence in unasked:
        screen.print(hanging("not seen", sentence, style="dim"))
