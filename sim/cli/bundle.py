"""`dranode bundle`: ready claim templates for devices that belong together."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import click

from dranode.api.errors import DocumentError
from dranode.api.resource import Node, ObjectMeta, ResourceSlice
from dranode.driver.cli.options import DriverCommand, driver_options, machine_option
from dranode.driver.machine.numa import has_one_node
from dranode.driver.machine.root import Root
from dranode.driver.plugins import load_plugins
from dranode.driver.slices.desired import desired_slices
from dranode.driver.slices.plan import complete_slice
from dranode.driver.slices.publishable import publishable
from dranode.show.output import console, emit, output_option, report_oddities, reporting
from dranode.sim.bundle.offers import offers_for
from dranode.sim.bundle.show import manifests as as_manifests
from dranode.sim.bundle.show import offers_document, show_offers
from dranode.sim.cli.documents import asked_features, release_options, simulated
from dranode.sim.cluster.pods import ClusterDocuments, read_cluster_documents


@click.command(
    cls=DriverCommand,
    short_help="Print claim templates for a NUMA node, half a socket, or a GPU with its share.",
)
@click.option("--manifests", is_flag=True, help="Print only DeviceClasses and ResourceClaimTemplates, for kubectl.")
@machine_option
@driver_options
@release_options
@output_option
@click.argument("files", nargs=-1, metavar="[FILE...]")
def command(
    *,
    files: tuple[str, ...],
    manifests: bool,
    root: Root,
    drivers: tuple[str, ...],
    node_name: str,
    kubernetes: str | None,
    feature_gates: str,
    output: str,
    **options: Any,
) -> None:
    """Find the devices of all drivers that belong together, and print claim templates for them.

    FILEs hold ResourceSlices, and optionally DeviceClasses, Nodes and ResourceClaims (YAML, JSON or a List; - is the
    standard input). Without FILEs, the devices are those that the drivers of --drivers publish on this machine, or on
    that of --machine. How many fit is counted with a model of kube-scheduler's allocator, once all claims in the FILEs
    have their devices, those of waiting pods included. The exit status is 1 if no template fits.

    \b
    Example:
      dranode bundle --drivers cpu,memory,gpu
      kubectl get resourceslices,deviceclasses,nodes,resourceclaims -A -o json | dranode bundle -
      dranode bundle cluster.json --manifests > bundles.yaml
    """
    from dranode.driver.machine.yaml_files import load_documents

    features = asked_features(kubernetes, feature_gates)
    unseen: list[str] = []
    single: frozenset[str] = frozenset()
    with reporting() as progress:
        progress("reading")
        if files:
            documents = simulated(load_documents(files))
            cluster = read_cluster_documents(documents, features)
            if not cluster.slices:
                raise DocumentError(f"{', '.join(files)}: no ResourceSlice, so no devices are known")
            if not any(document.kind == "ResourceClaim" for document in documents):
                unseen.append("the files have no ResourceClaim, so every device counts as free")
        else:
            cluster = _of_machine(root, drivers, node_name, options)
            single = frozenset({node_name}) if has_one_node(root) else single
            unseen.append("this machine's claims are not read, so every device counts as free")
        progress("looking for devices that belong together")
        offers = offers_for(cluster, features, single)
        offers = replace(offers, notes=(*unseen, *offers.notes))
    if manifests:
        emit(as_manifests(offers), "json" if output == "json" else "yaml")
    elif not emit(offers_document(offers), output):
        show_offers(console(), offers)
    if not any(offer.proof.count for offer in offers.offers):
        raise click.exceptions.Exit(1)


def _of_machine(root: Root, drivers: tuple[str, ...], node_name: str, options: dict[str, Any]) -> ClusterDocuments:
    """Return the cluster of one machine, with nothing allocated."""
    slices = tuple(_slices(root, drivers, node_name, options))
    return ClusterDocuments(slices, (), (Node(metadata=ObjectMeta(name=node_name)),), ())


def _slices(root: Root, drivers: tuple[str, ...], node_name: str, options: dict[str, Any]) -> Iterator[ResourceSlice]:
    for plugin in load_plugins(drivers, root, {**options, "node_name": node_name}):
        inventory = publishable(plugin.discover())
        report_oddities(plugin.driver, inventory.warnings)
        specs = desired_slices(plugin.driver, node_name, inventory)
        yield from (complete_slice(spec, index, len(specs)) for index, spec in enumerate(specs))
