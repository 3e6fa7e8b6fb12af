"""`dranode forget-lost`: hand out again what a lost ledger keeps back, because somebody who knows says so."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dranode.driver.cli.machine_option import machine_option
from dranode.driver.cli.output import console, emit, fail, output_option
from dranode.driver.core.api.errors import UsageError
from dranode.driver.machine.root import Root

if TYPE_CHECKING:
    from dranode.driver.core.claims.plugin import Plugin


@click.command(short_help="Hand out again what is kept back since a ledger was lost.")
@machine_option
@click.option("--driver", "drivers", multiple=True, default=("dra.cpu",), metavar="NAME", help="Default: dra.cpu.")
@click.option("--kubelet-root", default="/var/lib/kubelet", metavar="DIR", envvar="DRANODE_KUBELET_ROOT")
@click.option("--cdi-dir", default="/var/run/cdi", metavar="DIR", envvar="DRANODE_CDI_DIR")
@click.option("--dry-run", is_flag=True, help="Only say what is missing.")
@output_option
def command(
    root: Root, drivers: tuple[str, ...], kubelet_root: str, cdi_dir: str, output: str, *, dry_run: bool
) -> None:
    """Forget the claims that nothing on this node tells of any more, so that new claims are prepared again.

    A driver prepares nothing new while a claim may hold anything and its record is lost with its copy and its CDI spec.
    First delete the pods on this node whose claims `dranode claims` does not list, or drain the node: what they hold
    may be handed out again from then on. Works beside a driver that serves.

    \b
    Example:
      dranode forget-lost --dry-run
      dranode forget-lost --driver dra.cpu
    """
    from dranode.driver.node.node import NodeClaims

    report: list[dict[str, Any]] = []
    for plugin in (_plugin(name, root) for name in dict.fromkeys(drivers)):
        folder = Path(kubelet_root).absolute() / "plugins" / plugin.driver
        if not (folder / "ledger.db").exists():
            fail(f"{folder} has no ledger, so {plugin.driver} keeps nothing back; is --kubelet-root right?")
        node = NodeClaims(plugin, folder, Path(cdi_dir).absolute())
        try:
            missing = node.missing() if dry_run else node.forget_missing()
        finally:
            node.close()
        report.append({"driver": plugin.driver, "missing": list(missing), "forgotten": bool(missing) and not dry_run})
    if emit(report, output):
        return
    for row in report:
        for sentence in row["missing"]:
            console().print(f"{row['driver']}: {sentence}", markup=False, soft_wrap=True)
        done = "forgotten: new claims are prepared" if row["forgotten"] else "new claims wait until it is forgotten"
        console().print(f"{row['driver']}: {done if row['missing'] else 'nothing is missing'}", markup=False)


def _plugin(driver: str, root: Root) -> Plugin:
    """The installed driver of this name, as `dranode claims` shows it."""
    from dranode.driver.plugins import installed, load_plugins

    found = {plugin.driver: plugin for plugin in load_plugins(installed(), root, {})}
    if driver not in found:
        raise UsageError(f"no driver {driver} is installed; there is {', '.join(sorted(found)) or 'none'}")
    return found[driver]
