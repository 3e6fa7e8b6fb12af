"""`dranode pick`: shows which CPUs a request would get."""

from collections.abc import Mapping

import click

from dranode.api.cpuset import CPUSet
from dranode.api.errors import UsageError
from dranode.cpu.options import L3, Order, PickPolicy, Threads
from dranode.cpu.picking.pick import Pick, pick
from dranode.cpu.sysfs import read_topology
from dranode.cpu.topology import Topology
from dranode.driver.cli.options import machine_option
from dranode.driver.machine.root import Root
from dranode.show.output import console, emit, output_option


@click.command
@machine_option
@click.option("--count", type=click.IntRange(min=0), required=True, metavar="N", help="How many CPUs to hold.")
@click.option(
    "--free", metavar="LIST", help="The free CPUs as a cpu-list; by default all online CPUs on which pods may run."
)
@click.option(
    "--within",
    default="machine",
    show_default=True,
    metavar="machine|socket:ID|numa:ID|l3:ID",
    help="Where to pick. The ID of an L3 cache is the kernel's cache id or, if the kernel's ids repeat, its position, "
    "from 0, in the list that `dranode topology -o json` prints.",
)
@click.option(
    "--policy",
    type=click.Choice([word.value for word in PickPolicy]),
    default=PickPolicy.PACKED.value,
    show_default=True,
    help="packed: together; spread: on as many physical cores as possible; numa-distributed: equally over NUMA nodes.",
)
@click.option("--group", type=click.IntRange(min=1), metavar="G", help="numa-distributed: CPUs at a time (default 1).")
@click.option(
    "--threads",
    type=click.Choice([word.value for word in Threads]),
    default=Threads.ANY.value,
    show_default=True,
    help="full-core: holds whole physical cores; one-per-core: the same, but runs on one thread of each.",
)
@click.option(
    "--l3",
    type=click.Choice([word.value for word in L3]),
    default=L3.PREFER.value,
    show_default=True,
    help="prefer: as few L3 caches as possible; require: one, or whole ones and a part of one; ignore: spread takes "
    "many. numa-distributed has no preference.",
)
@click.option(
    "--order",
    type=click.Choice([word.value for word in Order]),
    default=Order.UNTOUCHED_FIRST.value,
    show_default=True,
    help="untouched-first: avoid cores whose other thread is taken; reference: fill such cores up first, as "
    "dra-driver-cpu does.",
)
@output_option
def command(
    *,
    root: Root,
    count: int,
    free: str | None,
    within: str,
    policy: str,
    group: int | None,
    threads: str,
    l3: str,
    order: str,
    output: str,
) -> None:
    """Show which CPUs a request would get. Nothing is allocated.

    \b
    Example:
      dranode pick --machine sockets=2,numa=2,l3=2,cores=4,threads=2 --count 6
      dranode pick --count 4 --free 0-7,16-23 --within numa:0 --threads full-core -o json
    """
    topology = read_topology(root)
    candidates = _free(topology, free) & region(topology, within)
    picked = pick(
        topology,
        candidates,
        count,
        policy=PickPolicy(policy),
        group=group,
        threads=Threads(threads),
        l3=L3(l3),
        order=Order(order),
    )
    if not emit({"cpus": str(picked.cpus), "held": str(picked.held)}, output):
        _show(picked)


def region(topology: Topology, within: str) -> CPUSet:
    """Return the CPUs of `machine`, `socket:ID`, `numa:ID` or `l3:ID`.

    The ID of an L3 cache is the kernel's cache id if those are unique on the machine, else its index in `Topology.l3`.
    If the kernel reports no sockets or NUMA nodes, all CPUs are in number 0.

    Raises:
        UsageError: the text has another form, or the machine has no such ID; the message lists the IDs that it has.
    """
    if within == "machine":
        return topology.online
    everything = {0: topology.online}
    kind, _, name = within.partition(":")
    places = {
        "socket": {package: cpus for package, cpus in topology.packages.items() if package >= 0} or everything,
        "numa": topology.numa or everything,
        "l3": _caches(topology),
    }.get(kind)
    if places is None:
        raise UsageError(f'--within "{within}" must be machine, socket:ID, numa:ID or l3:ID')
    described = {str(number): cpus for number, cpus in places.items()}.get(name)
    if described is None:
        known = CPUSet(places)
        have = f"its {kind} IDs are {known}" if known else f"it does not report any {kind}"
        raise UsageError(f'--within "{within}" is not on this machine: {have}')
    return described


def _caches(topology: Topology) -> Mapping[int, CPUSet]:
    ids = {topology.cpus[cpus.first()].l3_id: cpus for cpus in topology.l3}
    return ids if len(ids) == len(topology.l3) else dict(enumerate(topology.l3))


def _free(topology: Topology, free: str | None) -> CPUSet:
    if free is None:
        for problem in topology.pods.cpu_problems(topology.online):
            click.echo(f"note: {problem.what}", err=True)
        return topology.for_pods
    try:
        cpus = CPUSet.parse(free)
    except ValueError as error:
        raise UsageError(f"--free: {error}") from error
    if offline := cpus - topology.online:
        click.echo(f"note: --free names {offline}, not online on this machine; left out", err=True)
    if barred := cpus & topology.not_for_pods:
        click.echo(f"note: --free names {barred}, on which {topology.pods.folder} lets no pod run; left out", err=True)
    return cpus - topology.not_for_pods


def _show(picked: Pick) -> None:
    out = console()
    count = len(picked.cpus)
    out.print(f"{count} CPU{'s'[: count > 1]}: {picked.cpus}" if count else "no CPUs")
    if picked.held != picked.cpus:
        out.print(f"{len(picked.held)} held: {picked.held}")
