"""`kubectl dranode`: explain, claims, devices, nodes and fit for a cluster, with kubectl's flags and output formats."""

import contextlib
import gc
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

import click
from click.shell_completion import CompletionItem, ShellComplete

from dranode.api.errors import DocumentError, DranodeError, UsageError
from dranode.api.manifests import SourceDocument
from dranode.api.resource import APIObject, ResourceClaim, ResourceSlice
from dranode.driver.cli.commands import run
from dranode.driver.cli.options import between_commas
from dranode.driver.kube.errors import ApiError
from dranode.show.cluster_objects import ApiObjects, side_by_side
from dranode.show.cluster_option import NamedCluster, cluster_options, named_cluster
from dranode.sim.allocator.taint_rules import DeviceTaintRule, taint_rules
from dranode.sim.cli.fit import command
from dranode.tools.cli.completion import completion_script
from dranode.tools.cli.explain import explainer, show
from dranode.tools.cli.explaining import subject_of
from dranode.tools.diagnosis.device_view import Availability, device_rows, incomplete_pools
from dranode.tools.diagnosis.live_objects import LiveNode, LivePod
from dranode.tools.kubectl.listings import claim_listing, device_listing, list_options, numa_listing, print_rows
from dranode.tools.kubectl.views import claim_rows, numa_rows
from dranode.tools.readers.cluster import Unseen
from dranode.tools.readers.sources import FromCluster

_SETTINGS: Final[dict[str, Any]] = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
}
_PROGRAM: Final = "kubectl-dranode"
_VARIABLE: Final = "_KUBECTL_DRANODE_COMPLETE"
# The last line of cobra's answer to a completion: do not complete file names (ShellCompDirectiveNoFileComp).
_NO_FILES: Final = ":4"
# A shell shows no more than that at a time.
_MAX_CANDIDATES: Final = 200


def names_of(kind: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Return a function that completes the names of a kind's objects; nothing if the cluster cannot be read."""

    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        del parameter
        options = (str(ctx.params.get(name) or "") for name in ("kubeconfig", "context", "namespace"))
        # An error message would end up among the candidates.
        with contextlib.suppress(DranodeError):
            cluster = named_cluster(*options)
            if cluster is not None:
                namespace = "" if kind == "Node" else cluster.namespace
                objects = ApiObjects(cluster.client).values(APIObject, kind, namespace)
                names = sorted(named.metadata.name for named in objects)
                return [CompletionItem(name) for name in names if name.startswith(incomplete)][:_MAX_CANDIDATES]
        return []

    return complete


@click.group(context_settings=_SETTINGS)
@click.version_option(package_name="dranode")
def plugin() -> None:
    """Show the devices, claims and pods of a cluster with DRA: who uses what, what is free, what waits, and why.

    Shows the devices of all drivers, and only reads; deploy/reader has the rights that it needs.

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
    # The plug-in runs on a laptop, not on a node, so it reads no files of this machine.
    page = explainer(cluster, None, FromCluster(cluster.client))
    show(ctx, subject_of(subject, options["namespace"], cluster.namespace), output, page, cluster)


@plugin.command(short_help="List claims: their pods, node, devices and shares, age, health, and who waits for them.")
@click.argument("names", metavar="[NAME...]", nargs=-1, shell_complete=names_of("ResourceClaim"))
@click.option("-A", "--all-namespaces", is_flag=True, help="List the claims of all namespaces.")
@click.option("-l", "--selector", default="", metavar="LABELS", help="Only claims with these labels.")
@cluster_options
@list_options
def claims(
    *, names: tuple[str, ...], all_namespaces: bool, selector: str, output: str, no_headers: bool, **options: str
) -> None:
    """List claims: state, pods, node, devices and how much of them is consumed, age, health, and waiting pods.

    \b
    Example:
      kubectl dranode claims -A -o wide
    """
    cluster = _cluster(options)
    objects, namespace, unseen = ApiObjects(cluster.client), "" if all_namespaces else cluster.namespace, Unseen()
    with cluster.waiting(), side_by_side() as pool:
        claims_future = pool.submit(objects.values, ResourceClaim, "ResourceClaim", namespace, labelSelector=selector)
        slices_future = pool.submit(objects.values, ResourceSlice, "ResourceSlice")
        pods_future = pool.submit(objects.values, LivePod, "Pod", namespace, fieldSelector="status.phase=Pending")
    slices = unseen.unless_refused("the nodes of claims", slices_future)
    pods = unseen.unless_refused("the pods that wait", pods_future)
    rows = list(claim_rows(claims_future.result(), slices, pods))
    _report_unseen(unseen.sentences)
    rows = _named(rows, names, lambda row: row.name, "resourceclaim")
    columns = claim_listing(datetime.now(UTC), namespaces=all_namespaces)
    print_rows(rows, columns, output, headers=not no_headers)


@plugin.command(short_help="List the devices of all drivers: free, or taken by whom, and tainted why.")
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
    """List the devices of all drivers: how much of each is free, which claims have it, and who tainted it.

    \b
    Example:
      kubectl dranode devices --drivers gpu.example.com --state free
    """
    if state not in ("", *Availability):
        raise UsageError(f'there is no state "{state}"; the states are {", ".join(Availability)}')
    cluster = _cluster(options)
    with cluster.waiting():
        slices, held, rules = _list_devices(ApiObjects(cluster.client), selector, node)
    # With a selector or a node, slices of a pool may be missing because they were not asked for.
    if not selector and not node:
        _report_unseen(incomplete_pools(slices))
    chosen = between_commas([drivers]) if drivers else ()
    rows = [
        row
        for row in device_rows(slices, held, rules)
        if (not chosen or row.driver in chosen) and node in ("", row.node) and state in ("", row.state)
    ]
    print_rows(_named(rows, names, lambda row: row.name, "device"), device_listing(), output, headers=not no_headers)


@plugin.command(
    short_help="List nodes by NUMA node: how much of every driver's devices each has, and how much is free."
)
@click.argument("names", metavar="[NAME...]", nargs=-1, shell_complete=names_of("Node"))
@click.option("-l", "--selector", default="", metavar="LABELS", help="Only nodes with these labels.")
@cluster_options
@list_options
def nodes(*, names: tuple[str, ...], selector: str, output: str, no_headers: bool, **options: str) -> None:
    """List nodes by NUMA node, with every driver's devices (CPUs, memory, GPUs, NICs) as free/total.

    \b
    Example:
      kubectl dranode nodes worker-1
    """
    cluster = _cluster(options)
    objects, unseen = ApiObjects(cluster.client), Unseen()
    with cluster.waiting(), side_by_side() as pool:
        nodes_future = pool.submit(objects.values, LiveNode, "Node", labelSelector=selector)
        slices, held, rules = _list_devices(objects)
    # Without a selector, devices can be listed even if the nodes cannot. With one, only the API server knows which
    # nodes have the labels.
    live = nodes_future.result() if selector else unseen.unless_refused("which nodes are ready", nodes_future) or ()
    _report_unseen((*unseen.sentences, *incomplete_pools(slices)))
    chosen = {node.metadata.name for node in live}
    rows = [row for row in numa_rows(live, device_rows(slices, held, rules)) if not selector or row.node in chosen]
    rows = _named(rows, names, lambda row: row.node, "node")
    print_rows(rows, numa_listing(rows), output, headers=not no_headers)


@plugin.command(short_help="Print a script that completes kubectl-dranode in bash, zsh or fish.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that completes `kubectl-dranode` in SHELL.

    `kubectl dranode` needs no script: kubectl's own completion runs kubectl_complete-dranode.

    \b
    Example:
      kubectl-dranode completion bash
    """
    click.echo(completion_script(plugin, shell, _PROGRAM))


plugin.add_command(command, "fit")


def _cluster(options: dict[str, str]) -> NamedCluster:
    cluster = named_cluster(options["kubeconfig"], options["context"], options["namespace"], _PROGRAM)
    if cluster is None:
        raise UsageError("no cluster is configured: set KUBECONFIG, pass --kubeconfig, or create ~/.kube/config")
    return cluster


def _list_devices(
    objects: ApiObjects, selector: str = "", node: str = ""
) -> tuple[tuple[ResourceSlice, ...], tuple[ResourceClaim, ...], tuple[DeviceTaintRule, ...]]:
    """Return slices, claims and taint rules, without rules if they cannot be read.

    Raises:
        ApiError: slices or claims cannot be read, so no device can be called free.
    """
    unseen = Unseen()
    with side_by_side() as pool:
        on_node = f"spec.nodeName={node}" if node else ""
        slices_future = pool.submit(
            objects.values, ResourceSlice, "ResourceSlice", labelSelector=selector, fieldSelector=on_node
        )
        claims_future = pool.submit(objects.values, ResourceClaim, "ResourceClaim")
        rules_future = pool.submit(_rules, objects)
    rules = unseen.unless_refused("the taints of DeviceTaintRules", rules_future)
    _report_unseen(unseen.sentences)
    return slices_future.result(), claims_future.result(), rules or ()


def _rules(objects: ApiObjects) -> tuple[DeviceTaintRule, ...]:
    documents = objects.documents("DeviceTaintRule")
    try:
        return taint_rules(SourceDocument("the API server", *item) for item in enumerate(documents))
    except DocumentError as error:
        raise ApiError(str(error)) from error


def _report_unseen(sentences: Iterable[str]) -> None:
    for sentence in sentences:
        click.echo(f"not seen: {sentence}", err=True)


def _named(rows: list[Any], names: tuple[str, ...], name: Any, kind: str) -> list[Any]:
    """Return the rows with these names, or all if there are no names; fail as kubectl does if a name is missing."""
    missing = set(names) - {name(row) for row in rows}
    if missing:
        raise DranodeError(f'{kind} "{min(missing)}" not found')
    return [row for row in rows if not names or name(row) in names]


def run_plugin() -> None:
    """Run the plug-in; the exit status is 0 done, 1 "no" or failed, 2 wrong usage."""
    # A cluster's lists are many small values that live until the end; searching them for reference cycles would take a
    # third of the time.
    gc.set_threshold(1_000_000)
    # krew's launcher runs this with `python -c`, so sys.argv[0] is not the program's name.
    run(plugin, options_behind(sys.argv[1:]), "kubectl dranode")


def options_behind(words: list[str]) -> list[str]:
    """Return the words with kubectl's options behind the command, as in `kubectl dranode --context prod claims`."""
    options = (option for option in claims.params if isinstance(option, click.Option))
    takes_value = {name: not option.is_flag for option in options for name in option.opts}
    count = 0
    while count < len(words):
        name, equals, _ = words[count].partition("=")
        if name not in takes_value and name[:2] not in takes_value:  # the second for -nNAME
            break
        count += 2 if takes_value.get(name) and not equals else 1
    after = words[count:]
    # Without a command, click would report the options as unknown, which would also hide --help.
    return after if not after or after[0].startswith("-") else [after[0], *words[:count], *after[1:]]


def candidates(words: list[str]) -> Iterator[str]:
    """Yield cobra's answer: the candidates for the last of the words with their descriptions, then `:4`."""
    *before, incomplete = words or [""]
    for item in ShellComplete(plugin, {}, _PROGRAM, _VARIABLE).get_completions(options_behind(before), incomplete):
        yield f"{item.value}\t{item.help}" if item.help else str(item.value)
    yield _NO_FILES


def complete_words() -> None:
    """Complete the words so far: kubectl's own completion runs this as `kubectl_complete-dranode`."""
    for line in candidates(sys.argv[1:]):
        click.echo(line)
