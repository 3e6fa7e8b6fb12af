"""`dranode report`: a cluster or a node on one page."""

from pathlib import Path

import click

from dranode.api.errors import UsageError, number_of
from dranode.driver.cli.options import MACHINE, machine_option
from dranode.driver.machine.root import Root
from dranode.driver.plugins import load_installed
from dranode.show.cluster_objects import ApiObjects, cluster_documents
from dranode.show.cluster_option import (
    NamedCluster,
    is_given,
    kubeconfig_options,
    named_cluster,
    names_cluster,
)
from dranode.show.output import reporting, write_pictures
from dranode.show.picture.fleet import FleetPicture
from dranode.show.views import driver_views, machine_picture, records_root, time_now
from dranode.sim.allocator.features import Features
from dranode.sim.cli.documents import asked_features, release_options, simulated
from dranode.sim.report.cluster import PAGE_KINDS, ClusterSeen, cluster_seen
from dranode.sim.report.picture import cluster_picture


@click.command(short_help="Write one page for a browser: devices, who holds them, which pods wait and why.")
@click.option("--before", "earlier", multiple=True, metavar="FILE", help="Compare with an earlier dump; repeatable.")
@kubeconfig_options
@click.option(
    "--kubelet-root",
    envvar="DRANODE_KUBELET_ROOT",
    metavar="DIR",
    help="For this node: kubelet's root, where the records of claims are (default /var/lib/kubelet, on the host).",
)
@click.option("--html", default="report.html", show_default=True, metavar="FILE", help="The file to write.")
@click.option("--svg", metavar="FILE", help="Also write an SVG picture.")
@machine_option
@release_options
@click.argument("files", nargs=-1, metavar="[FILE...]")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    files: tuple[str, ...],
    earlier: tuple[str, ...],
    kubeconfig: str,
    context: str,
    kubelet_root: str | None,
    html: str,
    svg: str | None,
    root: Root,
    kubernetes: str | None,
    feature_gates: str,
) -> None:
    """Write one HTML file that opens offline: every node's devices, who holds them, and which pods wait and why.

    FILEs are a dump of a cluster (YAML, JSON or a List; - is the standard input). Without FILEs, the page shows the
    cluster of --kubeconfig, --context or KUBECONFIG. If none is named, or with --machine or --kubelet-root, it shows
    this node, from its hardware and its drivers' records. Nothing is changed anywhere.

    \b
    Example:
      kubectl get resourceslices,deviceclasses,resourceclaims,nodes,pods,events -A -o json > cluster.json
      dranode report cluster.json
      dranode report --before yesterday.json cluster.json
      dranode report --kubeconfig ~/.kube/config --html cluster.html
    """
    features = asked_features(kubernetes, feature_gates)
    named = names_cluster(ctx)
    if files and named:
        raise UsageError("pass either --kubeconfig or FILEs, not both")
    live = not files and (named or (bool(kubeconfig) and not is_given(ctx, MACHINE.parameter, "kubelet_root")))
    if earlier and not (files or live):
        raise UsageError("--before needs a cluster to compare with: pass FILEs or --kubeconfig")
    cluster = named_cluster(kubeconfig, context, "", "dranode-report") if live else None
    if live and cluster is None:
        raise UsageError("no cluster is configured: set KUBECONFIG, pass --kubeconfig, or create ~/.kube/config")
    with reporting() as progress:
        progress("reading")
        if cluster is not None:
            cluster.show(progress)
        shows_cluster = files or cluster is not None
        picture = _cluster(files, earlier, cluster, features) if shows_cluster else _node(root, kubelet_root)
        progress("drawing")
        write_pictures(html, svg, lambda: picture)
    place = cluster.place if cluster is not None else ", ".join(files) or "this node"
    devices = sum(len(node.devices) for node in picture.nodes)
    counted = (
        number_of(len(picture.nodes), "node"),
        number_of(devices, "device"),
        number_of(len(picture.moments[-1].claims), "claim"),
        f"{len(picture.waiting)} waiting",
    )
    click.echo(f"{html} ({Path(html).stat().st_size / 1000:.0f} kB) of {place}: {', '.join(counted)}")
    for note in picture.notes:
        click.echo(f"not seen: {note}", err=True)


def _cluster(
    files: tuple[str, ...], earlier: tuple[str, ...], cluster: NamedCluster | None, features: Features
) -> FleetPicture:
    from dranode.driver.machine.yaml_files import load_documents

    before = cluster_seen(simulated(load_documents(earlier), tolerant=True)) if earlier else None
    if cluster is not None:
        title = f"Cluster of {cluster.name}"
        return cluster_picture(_served(cluster), before, features, title=title, moment=time_now())
    after = cluster_seen(simulated(load_documents(files), tolerant=True))
    names = ", ".join(Path(file).name for file in files)
    return cluster_picture(after, before, features, title=f"Cluster in {names}")


def _served(cluster: NamedCluster) -> ClusterSeen:
    read = cluster_documents(ApiObjects(cluster.client), PAGE_KINDS, cluster.place)
    return cluster_seen(read.documents, read.kinds, [f"not read: {error}" for error in read.refused.values()])


def _node(root: Root, kubelet_root: str | None) -> FleetPicture:
    return machine_picture("Node", root, driver_views(load_installed(root), records_root(root, kubelet_root)))
