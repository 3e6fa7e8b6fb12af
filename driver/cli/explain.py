"""`dranode explain`: show how far a claim has come, and where and why it stopped."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from dranode.driver.cli.options import default_node_name, which_drivers
from dranode.driver.cli.output import console, emit, output_option
from dranode.driver.core.api.errors import UsageError

if TYPE_CHECKING:
    from dranode.driver.core.diagnosis.claim import Station
    from dranode.driver.doctor.sources import ObjectSource

_STYLES = {"passed": "green", "stopped": "red", "unseen": "yellow"}


@click.command(short_help="Where one claim stopped on its way to a container, and why.")
@click.argument("claim", metavar="NAMESPACE/CLAIM")
@which_drivers
@click.option("--store", metavar="DIR", help="Look for the claim in a folder of YAML files.")
@click.option("--kubeconfig", default="", metavar="FILE", help="Default: in-cluster.")
@click.option("--node-name", default=default_node_name, metavar="NAME", help="Default: NODE_NAME, else this host.")
@click.option("--root", "folder", default="/", metavar="DIR", help="Where the node's root lies.")
@click.option("--kubelet-root", default="/var/lib/kubelet", metavar="DIR", envvar="DRANODE_KUBELET_ROOT")
@click.option("--cdi-dir", default="/var/run/cdi", metavar="DIR", envvar="DRANODE_CDI_DIR")
@output_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    claim: str,
    drivers: tuple[str, ...],
    folder: str,
    output: str,
    **options: Any,
) -> None:
    """Follow NAMESPACE/CLAIM from its allocation to the cgroup of its containers.

    Asks the API server (or a folder), the driver's ledger, the CDI directory, kubelet's pod-resources and the kernel,
    on the node where the claim was allocated. The exit status is 1 if the claim stopped on its way.

    \b
    Example:
      dranode explain default/near-memory
      kubectl exec -n dranode ds/dranode -- dranode explain default/near-memory
      dranode explain default/a --store state/store --kubelet-root state/kubelet --cdi-dir state/cdi
    """
    from dranode.driver.core.diagnosis.claim import Passed, follow
    from dranode.driver.core.diagnosis.facts import ServeOptions
    from dranode.driver.doctor.claim import ClaimReader
    from dranode.driver.doctor.host import NodeHost
    from dranode.driver.plugins import load_plugins

    namespace, slash, name = claim.partition("/")
    if not (slash and namespace and name) or "/" in name:
        raise UsageError(f'"{claim}" is no NAMESPACE/CLAIM')
    host = NodeHost.at(folder)
    root = _absolute(options["kubelet_root"])
    plugins = load_plugins(drivers, host.files, {})
    judged = ServeOptions(
        node=options["node_name"],
        drivers=tuple(plugin.driver for plugin in plugins),
        kubelet_root=root,
        cdi_dir=_absolute(options["cdi_dir"]),
    )
    source = _source(options["store"], options["kubeconfig"])
    reader = ClaimReader(host, judged, source, f"{root}/pod-resources/kubelet.sock")
    ways = {plugin.driver: tuple(follow(reader.read(namespace, name, plugin))) for plugin in plugins}
    if not emit([_document(claim, driver, way) for driver, way in ways.items()], output):
        _draw(ways)
    if any(way[-1].passed is Passed.STOPPED for way in ways.values()):
        ctx.exit(1)


def _absolute(path: str) -> str:
    return os.path.abspath(path)  # noqa: PTH100 - a path of the node, whose links are followed there


def _source(store: str | None, kubeconfig: str) -> ObjectSource | None:
    from dranode.driver.doctor.sources import FromCluster, FromStore

    if store is not None:
        from pathlib import Path

        from dranode.driver.local.store import Store

        return FromStore(Store(Path(store)))
    if not kubeconfig and not os.environ.get("KUBERNETES_SERVICE_HOST"):
        return None
    from dranode.driver.kube.client import Client
    from dranode.driver.kube.connection import Connection
    from dranode.driver.kube.source import Credentials

    credentials = Credentials(kubeconfig)
    credentials.check()
    return FromCluster(Client(Connection(credentials), agent="dranode-explain"))


def _document(claim: str, driver: str, way: tuple[Station, ...]) -> dict[str, Any]:
    stopped = next((station.name for station in way if station.passed.value == "stopped"), None)
    return {
        "claim": claim,
        "driver": driver,
        "stopped": stopped,
        "stations": [
            {
                "name": station.name,
                "passed": station.passed.value,
                "what": station.what,
                "fix": station.fix or None,
            }
            for station in way
        ],
    }


def _draw(ways: dict[str, tuple[Station, ...]]) -> None:
    from rich.markup import escape
    from rich.padding import Padding

    screen = console()
    for driver, way in ways.items():
        screen.print(driver)
        for station in way:
            style = _STYLES[station.passed.value]
            screen.print(f"  [{style}]{station.passed.value:8}[/] {station.name}: {escape(station.what)}")
            if station.fix:
                screen.print(Padding(escape(f"-> {station.fix}"), (0, 0, 0, 11)))
