"""`kubectl dranode`: explain, claims, devices, nodes and fit of a cluster, with kubectl's flags and forms of output."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, Final

import click

from dranode.api.errors import DranodeError, UsageError
from dranode.api.resource import ResourceClaim, ResourceSlice
from dranode.driver.cli.commands import run
from dranode.driver.cli.options import between_commas
from dranode.show.cluster_objects import AT_A_TIME, ApiObjects
from dranode.show.cluster_option import NamedCluster, cluster_options, named_cluster
from dranode.sim.allocator.taint_rules import DeviceTaintRule
from dranode.sim.cli.fit import command
from dranode.tools.cli.completion import completion_script
from dranode.tools.cli.explain import explainer, show, subject_place
from dranode.tools.diagnosis.device_view import Availability, device_rows, incomplete_pools
from dranode.tools.kubectl.complete import candidates, names_of
from dranode.tools.kubectl.listings import claim_listing, device_listing, list_options, numa_listing, print_rows
from dranode.tools.kubectl.views import claim_rows, numa_rows
from dranode.tools.readers.cluster import ClusterLists, Unseen
from dranode.tools.readers.sources import FromCluster

_SETTINGS: Final[dict[str, Any]] = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
}


@click.group(context_settings=_SETTINGS)
@click.version_option(package_name="dranode")
def plugin() -> None:
    """Devices, claims and pods of a cluster with DRA: who has what, what is free, what waits, and why.

    Reads alone; deploy/reader has the rights. Every driver's devices are shown.

    \b
    Example:
      kubectl dranode explain near-memory
      kubectl dranode claims -A
      kubectl dranode devices --node worker-1 -o wide
    """


@plugin.command(short_help="Explain why a pod with claims, or a claim, is stuck, and what to do.")
@click.argument("subject", metavar="POD|CLAIM", shell_complete=names_of("Pod"))
@cluster_options
@click.option(
    "-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", help="For people, or for programs."
)
@click.pass_context
def explain(ctx: click.Context, /, subject: str, output: str, **options: str) -> None:
    """Follow POD|CLAIM from its claims to its containers, and say where it stopped, why, and what to do.

    POD|CLAIM is NAME, NAMESPACE/NAME, pod/NAME or claim/NAME. The exit status is 1 if something stopped.

    \b
    Example:
      kubectl dranode explain near-memory
    """
    cluster = _cluster(options)
    # A laptop is no node: nothing of this machine is looked at.
    page = explainer(cluster, None, FromCluster(cluster.client))
    show(ctx, subject_place(subject, options["namespace"], cluster), output, page, cluster)


@plugin.command(short_help="Claims: their pods, node, devices and shares, age, health, and who waits for them.")
@click.argument("names", metavar="[NAME...]", nargs=-1, shell_complete=names_of("ResourceClaim"))
@click.option("-A", "--all-namespaces", is_flag=True, help="List the claims of all namespaces.")
@click.option("-l", "--selector", default="", metavar="LABELS", help="Only claims with these labels.")
@cluster_options
@list_options
def claims(
    *, names: tuple[str, ...], all_namespaces: bool, selector: str, output: str, no_headers: bool, **options: str
) -> None:
    """List claims: state, pod, node, devices with what is consumed of them, age, health, and pods that wait.

    \b
    Example:
      kubectl dranode claims -A -o wide
    """
    cluster = _cluster(options)
    lists, namespace, unseen = _lists(cluster), "" if all_namespaces else cluster.namespace, Unseen()
    with cluster.waiting(), _side_by_side() as pool:
        claiming = pool.submit(lists.claims, namespace, selector)
        listing = pool.submit(lists.slices)
        waiting = pool.submit(lists.pending_pods, namespace)
    slices = unseen.unless_refused("the nodes of claims", listing)
    pods = unseen.unless_refused("the pods that wait", waiting)
    rows = list(claim_rows(claiming.result(), slices, pods))
    _say_unseen(unseen.sentences)
    rows = _named(rows, names, lambda row: row.name, "resourceclaim")
    columns = claim_listing(datetime.now(UTC), namespaces=all_namespaces)
    print_rows(rows, columns, output, headers=not no_headers)


@plugin.command(short_help="Devices of all drivers: free, or taken by whom, and tainted why.")
@click.argument("names", metavar="[NAME...]", nargs=-1)
@click.option("--drivers", default="", metavar="NAME,...", help="Only devices of these drivers.")
@click.option("--node", default="", metavar="NAME", help="Only devices on this node.", shell_complete=names_of("Node"))
@click.option(
    "--state", default="", metavar="STATE", help="Only devices in this state: free, shared, taken, tainted or blocked."
)
@click.option("-l", "--selector", default="", metavar="LABELS", help="Only those in ResourceSlices with these labels.")
@cluster_options
@list_options
def devices(
    *,
    names: tuple[str, ...],
    drivers: str,
    node: str,
    state: str,
    selector: str,
    output: str,
    no_headers: bool,
    **options: str,
) -> None:
    """List the devices of all drivers: what is free of each, the claims that have it, its taints and their source.

    \b
    Example:
      kubectl dranode devices --drivers gpu.example.com --state free
    """
    if state not in ("", *Availability):
        raise UsageError(f'there is no state "{state}"; the states are {", ".join(Availability)}')
    whole = not (selector or node)
    cluster = _cluster(options)
    with cluster.waiting():
        slices, held, rules = _devices_seen(_lists(cluster), selector, node)
    if whole:
        _say_unseen(incomplete_pools(slices))
    asked = between_commas([drivers]) if drivers else ()
    rows = [
        row
        for row in device_rows(slices, held, rules)
        if (not asked or row.driver in asked) and node in ("", row.node) and state in ("", row.state)
    ]
    print_rows(_named(rows, names, lambda row: row.name, "device"), device_listing(), output, headers=not no_headers)


@plugin.command(short_help="Nodes by NUMA node: what each has of every driver's devices, and what of it is free.")
@click.argument("names", metavar="[NAME...]", nargs=-1, shell_complete=names_of("Node"))
@click.option("-l", "--selector", default="", metavar="LABELS", help="Only nodes with these labels.")
@cluster_options
@list_options
def nodes(*, names: tuple[str, ...], selector: str, output: str, no_headers: bool, **options: str) -> None:
    """List nodes by NUMA node: free and all of every driver's devices (CPUs, memory, GPUs, NICs), as free/all.

    \b
    Example:
      kubectl dranode nodes worker-1
    """
    cluster = _cluster(options)
    lists, unseen = _lists(cluster), Unseen()
    with cluster.waiting(), _side_by_side() as pool:
        standing = pool.submit(lists.nodes, selector)
        slices, held, rules = _devices_seen(lists)
    # By labels nodes are chosen, so that there is no answer without them.
    living = standing.result() if selector else unseen.unless_refused("which nodes are ready", standing) or ()
    _say_unseen((*unseen.sentences, *incomplete_pools(slices)))
    chosen = {node.metadata.name for node in living}
    rows = [row for row in numa_rows(living, device_rows(slices, held, rules)) if not selector or row.node in chosen]
    rows = _named(rows, names, lambda row: row.node, "node")
    print_rows(rows, numa_listing(rows), output, headers=not no_headers)


@plugin.command(short_help="Print a script that completes kubectl-dranode in bash, zsh or fish.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion of `kubectl-dranode` for SHELL.

    `kubectl dranode` itself completes through kubectl's own completion, which finds kubectl_complete-dranode.

    \b
    Example:
      kubectl-dranode completion bash
    """
    click.echo(completion_script(plugin, shell, "kubectl-dranode"))


plugin.add_command(command, "fit")


def _cluster(options: dict[str, str]) -> NamedCluster:
    cluster = named_cluster(options["kubeconfig"], options["context"], options["namespace"], "kubectl-dranode")
    if cluster is None:
        raise UsageError("no cluster is configured: set KUBECONFIG, pass --kubeconfig, or create ~/.kube/config")
    return cluster


def _lists(cluster: NamedCluster) -> ClusterLists:
    return ClusterLists(ApiObjects(cluster.client))


def _side_by_side() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(AT_A_TIME, "list")


def _devices_seen(
    lists: ClusterLists, selector: str = "", node: str = ""
) -> tuple[tuple[ResourceSlice, ...], tuple[ResourceClaim, ...], tuple[DeviceTaintRule, ...]]:
    """Return slices, claims and rules; slices and claims have to be seen for any device to be called free."""
    unseen = Unseen()
    with _side_by_side() as pool:
        listing = pool.submit(lists.slices, selector, node)
        claiming = pool.submit(lists.claims)
        ruling = pool.submit(lists.rules)
    rules = unseen.unless_refused("the taints of DeviceTaintRules", ruling)
    _say_unseen(unseen.sentences)
    return listing.result(), claiming.result(), rules or ()


def _say_unseen(sentences: Iterable[str]) -> None:
    for sentence in sentences:
        click.echo(f"not seen: {sentence}", err=True)


def _named(rows: list[Any], names: tuple[str, ...], name: Any, kind: str) -> list[Any]:
    """Return the rows of these names, all for none; kubectl's error for a name that is not there."""
    missing = set(names) - {name(row) for row in rows}
    if missing:
        raise DranodeError(f'{kind} "{min(missing)}" not found')
    return [row for row in rows if not names or name(row) in names]


def run_plugin() -> None:
    """Run the plug-in; the exit status is 0 done, 1 "no" or failed, 2 wrong usage."""
    # The lists of a cluster are many small values that stay; looking through them for cycles is a third of the time.
    gc.set_threshold(1_000_000)
    # krew's launcher runs it as a word of Python, which has no name of its own.
    run(plugin, sys.argv[1:], "kubectl dranode")


def complete_words() -> None:
    """Answer kubectl's completion."""
    for line in candidates(plugin, sys.argv[1:]):
        click.echo(line)
