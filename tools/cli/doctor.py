"""`dranode doctor`: finds what would keep the driver from working on this node, or on any node."""

import contextlib
import os
from typing import Any, Final

import click

from dranode.api.errors import UsageError, number_of
from dranode.driver.cli.options import (
    DriverCommand,
    driver_options,
    serve_options,
    unknown_prefixes,
    unknown_variables,
    variables,
)
from dranode.driver.kube.client import Client
from dranode.driver.kube.connection import Connection
from dranode.driver.kube.server import Credentials, UnreachableError
from dranode.show.cluster_option import show_waiting
from dranode.show.output import ProgressReporter, console, emit, output_option, reporting
from dranode.show.terminal import columns
from dranode.tools.diagnosis.cluster import with_class_problems
from dranode.tools.diagnosis.facts import Facts, Finding, Severity
from dranode.tools.diagnosis.rules import diagnose
from dranode.tools.readers.cluster import clock_skew
from dranode.tools.readers.examine import NodeFiles, examine, judged_options
from dranode.tools.readers.fleet import read_fleet
from dranode.tools.readers.host import NodeHost

# The options that are paths on the node.
_PATHS: Final = frozenset(
    (
        *("cdi_dir", "containerd_config", "crio_config", "kubelet_config", "kubelet_root"),
        *("nri_socket", "pod_resources_socket"),
    )
)


@click.command(cls=DriverCommand, short_help="Find what would stop the driver on this node, or on all, and what to do.")
@click.option(
    "--root", "folder", default="/", metavar="DIR", help="The node's root folder (/host in a node's debugging pod)."
)
@click.option(
    "--all-nodes", is_flag=True, help="Check every node through the API server, from anywhere, and print one table."
)
@click.option(
    "--kubelet-config",
    default="",
    metavar="FILE",
    help="kubelet's configuration (default: the running kubelet's, or config.yaml).",
)
@click.option(
    "--containerd-config",
    default="",
    metavar="FILE",
    help="containerd's configuration (default: the running containerd's, or /etc/containerd/config.toml).",
)
@click.option("--crio-config", default="/etc/crio", metavar="DIR", show_default=True, help="CRI-O's configuration.")
@click.option(
    "--service-account",
    default="dranode:dranode",
    metavar="NAMESPACE:NAME",
    show_default=True,
    help="With --kubeconfig: the account whose rights are checked.",
)
@driver_options
@serve_options
@output_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    drivers: tuple[str, ...],
    node_name: str,
    folder: str,
    output: str,
    *,
    all_nodes: bool,
    **options: Any,
) -> None:
    """Check kubelet, the runtime, folders, sockets, records, kernel and API server, and report what is wrong.

    Pass the options that `serve` runs with. Nothing is changed. What cannot be seen is listed as not seen; for example,
    the driver's pod does not see kubelet's configuration. A partial check says so first, with the command for a
    complete one. Exit status: 0 if nothing stops the driver as far as can be seen (there may be warnings), 1 if
    something stops it, 2 for wrong usage.

    \b
    Example:
      dranode doctor --nri-socket /run/nri/nri.sock
      kubectl exec -n dranode ds/dranode -- dranode doctor
      kubectl debug node/worker -it --image=dranode:0.1.0 --profile=sysadmin -- dranode doctor --root /host
      dranode doctor --all-nodes --kubeconfig ~/.kube/config
    """
    connection = _connection(options["kubeconfig"], required=all_nodes)
    if all_nodes:
        _all_nodes(ctx, drivers, connection, options, output)
        return
    host = NodeHost.at(folder)
    if folder == "/":
        # `serve` also resolves them against the working directory.
        options = {name: _absolute(value) if name in _PATHS else value for name, value in options.items()}
    judged, plugins = judged_options(drivers, host.files, node_name, options)
    with reporting() as progress:
        facts = examine(
            host,
            judged,
            plugins,
            NodeFiles(options["kubelet_config"], options["containerd_config"], options["crio_config"]),
            pod_resources=options["pod_resources_socket"],
            api=_client(connection, progress) if connection is not None else None,
            account=options["service_account"] if options["kubeconfig"] else "",
            skew=clock_skew(connection) if connection is not None else None,
            variables=tuple(unknown_variables(os.environ, variables(), unknown_prefixes())),
        )
    facts = with_class_problems(facts, plugins)
    findings = diagnose(facts)
    if not emit(_document(facts, findings), output):
        _draw(facts, findings, folder)
    if any(finding.severity is Severity.STOPS for finding in findings):
        ctx.exit(1)


def _absolute(path: str) -> str:
    return path if path in ("", "none") else os.path.abspath(path)  # noqa: PTH100 - links must stay as they are


def _connection(kubeconfig: str, *, required: bool) -> Connection | None:
    """Return a connection to the API server of the kubeconfig, or of the cluster whose pod this runs in."""
    if required and not kubeconfig and not os.environ.get("KUBERNETES_SERVICE_HOST"):
        kubeconfig = os.environ.get("KUBECONFIG", "")
        if not kubeconfig:
            raise UsageError("--all-nodes needs an API server: pass --kubeconfig or set KUBECONFIG")
    if not kubeconfig and not os.environ.get("KUBERNETES_SERVICE_HOST"):
        return None
    source = Credentials(kubeconfig)
    source.check()
    connection = Connection(source)
    # A credential plug-in may have to ask its user, which is possible only now. If it fails, the first request reports
    # that.
    with contextlib.suppress(UnreachableError):
        connection.log_in()
    return connection


def _client(connection: Connection | None, progress: ProgressReporter) -> Client:
    assert connection is not None  # noqa: S101 - checked by the caller
    client = Client(connection, agent="dranode-doctor")
    show_waiting(client, "the API server", progress)
    return client


def _document(facts: Facts, findings: tuple[Finding, ...]) -> dict[str, Any]:
    return {
        "node": facts.options.node,
        "drivers": list(facts.options.drivers),
        "findings": [
            {
                "code": finding.code,
                "severity": finding.severity.value,
                "what": finding.fault.what,
                "fix": finding.fault.fix,
            }
            for finding in findings
        ],
        "unseen": list(facts.unseen),
        "partial": bool(facts.unseen),
    }


def _complete_check(node: str, folder: str) -> str:
    """Return the command that sees more of a node than this run, with the node's root at `folder`; empty if none."""
    if os.environ.get("KUBERNETES_SERVICE_HOST") and folder == "/":
        return f"kubectl debug node/{node} -it --image=IMAGE --profile=sysadmin -- dranode doctor --root /host"
    return "" if os.geteuid() == 0 else f"dranode doctor as root, on node {node}"


def _draw(facts: Facts, findings: tuple[Finding, ...], folder: str) -> None:
    from rich.table import Table
    from rich.text import Text

    screen = console()
    if facts.unseen:
        # First, so that nobody takes what follows for a complete check.
        complete, count = _complete_check(facts.options.node, folder), number_of(len(facts.unseen), "thing")
        image = ", with the driver's image" if "IMAGE" in complete else ""
        screen.print(
            f"This is a partial check of node {facts.options.node}: {count} could not be checked"
            + (f". For a complete check{image}, run: {complete}" if complete else ""),
            style="bold",
        )
        screen.print()
    # In a grid, long sentences wrap beside the severity, not under it.
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for finding in findings:
        color = "red" if finding.severity is Severity.STOPS else "yellow"
        what = Text.assemble(f"{finding.fault.what} ", (f"({finding.code})", "dim"))
        grid.add_row(Text(finding.severity.value, style=color), what)
        grid.add_row("", Text(f"-> {finding.fault.fix}"))
    for sentence in facts.unseen:
        grid.add_row(Text("not seen", style="dim"), Text(sentence, style="dim"))
    if grid.row_count:
        screen.print(grid)
    drivers = ", ".join(facts.options.drivers) or "no driver"
    verdict = verdict_line(findings) if findings else "nothing wrong in what was seen"
    if findings and facts.unseen:
        verdict += " in what was seen"
    if findings:
        screen.print()
    screen.print(f"node {facts.options.node}, {drivers}: {verdict}")


def verdict_line(findings: tuple[Finding, ...]) -> str:
    """Return how many findings stop the driver, and how many are warnings: `2 faults stop it, 1 warning`."""
    stops = sum(finding.severity is Severity.STOPS for finding in findings)
    warnings = len(findings) - stops
    faults = "nothing stops it" if not stops else f"{stops} fault{' stops' if stops == 1 else 's stop'} it"
    return f"{faults}, {number_of(warnings, 'warning')}"


def _all_nodes(
    ctx: click.Context, drivers: tuple[str, ...], connection: Connection | None, options: dict[str, Any], output: str
) -> None:
    with reporting() as progress:
        fleet = read_fleet(_client(connection, progress), drivers, options)
        nodes = [(facts, diagnose(facts)) for facts in fleet]
    if not emit([_document(facts, findings) for facts, findings in nodes], output):
        table = columns("node", "verdict", "first", "what to do")
        for facts, findings in nodes:
            first = findings[0].fault if findings else None
            table.add_row(
                facts.options.node,
                verdict_line(findings) if findings else "nothing wrong in what was seen",
                f"{first.what} ({findings[0].code})" if first else "",
                first.fix if first else "",
            )
        screen = console()
        screen.print(table)
        screen.print(
            "Folders, sockets, the runtime's configuration and records are visible only on the node and were not "
            "checked; run kubectl exec -n dranode POD -- dranode doctor with the driver's pod of a node."
        )
    if any(finding.severity is Severity.STOPS for _, findings in nodes for finding in findings):
        ctx.exit(1)
