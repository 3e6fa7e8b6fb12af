"""`dranode doctor`: finds what would stop the driver on this node."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from dranode.driver.cli.options import driver_options, serve_options
from dranode.driver.cli.output import console, emit, output_option

if TYPE_CHECKING:
    from dranode.driver.core.diagnosis.facts import Facts, Finding
    from dranode.driver.doctor.cluster import Sender


@click.command(short_help="What would stop the driver on this node, and what to do.")
@click.option(
    "--root", "folder", default="/", metavar="DIR", help="Where the node's root lies (/host in a node's debugging pod)."
)
@click.option("--kubelet-config", default="", metavar="FILE", help="Default: the running kubelet's, else config.yaml.")
@click.option(
    "--containerd-config",
    default="",
    metavar="FILE",
    help="Default: the running containerd's, else /etc/containerd/config.toml.",
)
@click.option("--crio-config", default="/etc/crio", metavar="DIR", show_default=True)
@click.option(
    "--service-account",
    default="dranode:dranode",
    metavar="NAMESPACE:NAME",
    show_default=True,
    help="Whose rights to look at, with --kubeconfig.",
)
@driver_options
@serve_options
@output_option
@click.pass_context
def command(
    ctx: click.Context, /, drivers: tuple[str, ...], node_name: str, folder: str, output: str, **options: Any
) -> None:
    """Look at kubelet, the runtime, folders, sockets, records and the API server, and say what is wrong.

    Takes the options of `serve`, to judge by them. What cannot be looked at is named and not judged. Nothing is
    changed. The exit status is 1 if something stops the driver.

    \b
    Example:
      dranode doctor --nri-socket /run/nri/nri.sock
      kubectl exec -n dranode ds/dranode -- dranode doctor
      kubectl debug node/worker -it --image=dranode:0.1.0 --profile=sysadmin -- dranode doctor --root /host
    """
    from dranode.driver.core.diagnosis.facts import Severity
    from dranode.driver.core.diagnosis.rules import diagnose
    from dranode.driver.doctor.examine import NodeFiles, examine, judged_options
    from dranode.driver.doctor.host import NodeHost

    host = NodeHost.at(folder)
    judged, plugins = judged_options(drivers, host.files, node_name, options)
    facts = examine(
        host,
        judged,
        plugins,
        NodeFiles(options["kubelet_config"], options["containerd_config"], options["crio_config"]),
        pod_resources=options["pod_resources_socket"],
        api=_api(options["kubeconfig"]),
        account=options["service_account"] if options["kubeconfig"] else "",
    )
    findings = diagnose(facts)
    if not emit(_document(facts, findings), output):
        _draw(facts, findings)
    if any(finding.severity is Severity.STOPS for finding in findings):
        ctx.exit(1)


def _api(kubeconfig: str) -> Sender | None:
    """Return the API server, if a kubeconfig names one, or if this runs in a pod."""
    if not kubeconfig and not os.environ.get("KUBERNETES_SERVICE_HOST"):
        return None
    from dranode.driver.kube.client import Client
    from dranode.driver.kube.connection import Connection
    from dranode.driver.kube.source import Credentials

    source = Credentials(kubeconfig)
    source.check()
    return Client(Connection(source), agent="dranode-doctor")


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
    }


def _draw(facts: Facts, findings: tuple[Finding, ...]) -> None:
    from rich.markup import escape
    from rich.padding import Padding

    from dranode.driver.core.diagnosis.facts import Severity

    screen = console()
    for finding in findings:
        colour = "red" if finding.severity is Severity.STOPS else "yellow"
        screen.print(f"[{colour}]{finding.severity.value}[/]  {escape(finding.fault.what)} [dim]({finding.code})[/]")
        screen.print(Padding(escape(f"-> {finding.fault.fix}"), (0, 0, 0, 7)))
    for sentence in facts.unseen:
        screen.print(f"[dim]not seen  {escape(sentence)}[/]")
    stops = sum(finding.severity is Severity.STOPS for finding in findings)
    rest = len(findings) - stops
    drivers = ", ".join(facts.options.drivers) or "no driver"
    if findings:
        told = f"{stops} that stop{'s' if stops == 1 else ''} it, {rest} to look at"
        screen.print(f"\nnode {facts.options.node}, {drivers}: {told}")
    else:
        screen.print(f"node {facts.options.node}, {drivers}: nothing wrong in what was seen")
