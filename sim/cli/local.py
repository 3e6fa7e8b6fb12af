"""`dranode local`: a claim from publishing to unprepare on one node, without a cluster."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from dranode.api.documents import encode
from dranode.api.errors import UsageError
from dranode.api.resource import ResourceSlice
from dranode.driver.cli.options import DriverCommand, driver_options, machine_option
from dranode.driver.machine.root import Root
from dranode.driver.plugins import load_plugins
from dranode.show.output import console, emit, output_option, picture_options, reporting, write_pictures
from dranode.show.picture.node import node_picture
from dranode.sim.cli.documents import asked_features, release_options, simulated
from dranode.sim.cli.fleet import run_on_fleet
from dranode.sim.cluster.manifests import check_unused
from dranode.sim.cluster.workload import read_workload, require_pods
from dranode.sim.local.run import ClaimResult, local_run, node_named
from dranode.sim.local.show import (
    WrittenFile,
    kept_back,
    run_picture,
    show_claims,
    show_picture,
    show_published,
    show_written,
    views_of,
    written_files,
)
from dranode.sim.machines.scratch import WritableMachine


@click.command(
    cls=DriverCommand, short_help="Run claims without a cluster: publish, allocate, prepare, show, unprepare."
)
@machine_option
@driver_options
@click.option(
    "--state", metavar="DIR", help="Keep everything in DIR (store/, kubelet/, cdi/; default: a temporary folder)."
)
@click.option(
    "--nodes",
    multiple=True,
    metavar="FILE",
    help="Only place the pods and claims, on the nodes of a nodes.yaml; nothing is prepared; repeatable.",
)
@click.option(
    "--queues",
    multiple=True,
    metavar="FILE",
    help="First admit the workloads in FILEs through these Kueue queues; repeatable.",
)
@click.option("--scores", is_flag=True, help="With --nodes: show how each node scored for each pod.")
@picture_options
@click.option("--keep", is_flag=True, help="Keep the claims prepared at the end; needs --state.")
@click.option("-v", "--verbose", is_flag=True, help="Show the CDI devices of every claim too.")
@release_options
@output_option
@click.argument("files", nargs=-1, metavar="[FILE...]")
def command(
    *,
    root: Root,
    drivers: tuple[str, ...],
    node_name: str,
    files: tuple[str, ...],
    state: str | None,
    keep: bool,
    nodes: tuple[str, ...],
    queues: tuple[str, ...],
    scores: bool,
    html: str | None,
    svg: str | None,
    kubernetes: str | None,
    feature_gates: str,
    output: str,
    verbose: bool,
    **options: Any,
) -> None:
    """Publish this machine's devices, allocate and prepare the claims in FILEs, show them, and undo everything.

    FILEs hold ResourceClaims, ResourceClaimTemplates, Pods, Deployments, Jobs and other objects that create pods, and
    DeviceClasses (YAML, JSON or a List; - is the standard input). A claim that has status.allocation is prepared as it
    is. The classes of deploy/deviceclasses.yaml exist unless a file defines them.

    \b
    Example:
      dranode local --machine sockets=2,numa=2,cores=4,threads=2 examples/cpu-numa.yaml
      dranode local --state state --keep examples/cpu-numa.yaml
      dranode local --html run.html examples/cpu-numa.yaml
      dranode local --nodes nodes.yaml --scores --html fleet.html claims.yaml
    """
    features = asked_features(kubernetes, feature_gates, whole_nodes=bool(nodes))
    if nodes or queues:
        run_on_fleet(
            drivers,
            options,
            files,
            features,
            nodes=nodes,
            queues=queues,
            scores=scores,
            html=html,
            svg=svg,
            output=output,
        )
        return
    if scores:
        raise UsageError("--scores needs --nodes FILE")
    from dranode.driver.machine.yaml_files import load_documents

    if keep and state is None:
        raise UsageError("--keep needs --state DIR, the folder where claims stay prepared")
    sources = simulated(load_documents(files), lambda: (node_named(node_name),))
    check_unused(sources)
    workload = read_workload(sources, features)
    if files:
        require_pods(workload.pods, files)
    plugins = load_plugins(drivers, root, options)
    folder = Path(state) if state is not None else None
    screen = console()
    with (
        reporting() as progress,
        local_run(plugins, node_name, folder, features, progress, taints=options["device_taints"]) as run,
    ):
        before = views_of(run)
        results = run.run(workload, progress)
        with run.containers(root):
            after = views_of(run)
            slices, notes = run.slices(), kept_back(run)
            during = root.held() if isinstance(root, WritableMachine) else {}
        progress("unpreparing")
        failures = () if keep else run.unprepare()
        written = written_files(root, during) if isinstance(root, WritableMachine) else ()
    unprepared = not (keep or failures)
    write_pictures(html, svg, lambda: run_picture(node_name, before, after, results))
    if emit(document(slices, results, unprepared=unprepared, written=written), output):
        for result in results:
            for note in result.notes:
                click.echo(f"{result.namespace}/{result.name}: {note}", err=True)
    else:
        show_published(screen, slices, notes)
        show_picture(screen, "Before", node_picture(before))
        show_claims(screen, results, verbose=verbose)
        show_picture(screen, "With the claims prepared", node_picture(after))
        show_written(screen, written)
        end = f"Everything is kept in {state}." if keep else "All claims of this run are unprepared."
        for sentence in failures or (end,):
            screen.print()
            screen.print(sentence)
    if any(result.error for result in results) or not (unprepared or keep):
        raise click.exceptions.Exit(1)


def document(
    slices: Iterable[ResourceSlice],
    results: Iterable[ClaimResult],
    *,
    unprepared: bool,
    written: Sequence[WrittenFile] = (),
) -> dict[str, Any]:
    """Return the run as a plain document."""
    return {
        "slices": [encode(slice_) for slice_ in slices],
        "claims": [_claim(result) for result in results],
        "unprepared": unprepared,
        **({"written": [asdict(file) for file in written]} if written else {}),
    }


def _claim(result: ClaimResult) -> dict[str, Any]:
    return {
        "namespace": result.namespace,
        "name": result.name,
        "uid": result.uid,
        "node": result.node,
        "allocation": encode(result.allocation) if result.allocation is not None else None,
        "devices": [
            {
                "requests": [device.request],
                "pool": device.pool,
                "device": device.device,
                "cdi": list(device.cdi),
                "share_id": device.share_id,
            }
            for device in result.devices
        ],
        "cdi_files": list(result.cdi_files),
        "cpus": result.cpus,
        # A claim with one request has all its CPUs from that request.
        **({"requestCpus": dict(result.request_cpus)} if len(result.request_cpus) > 1 else {}),
        "error": result.error,
    }
