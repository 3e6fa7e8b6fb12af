"""`dranode forget-lost`: lets the driver prepare new claims again after records were lost."""

import contextlib
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from dranode.api.errors import UsageError
from dranode.cdi.regular_file import LARGEST, read_regular
from dranode.driver.claims.plugin import Plugin
from dranode.driver.cli.options import machine_option, names_of_drivers, serve_option
from dranode.driver.machine.root import Root, boot_id
from dranode.driver.node.decision_lock import PATIENCE
from dranode.driver.node.node import NodeClaims
from dranode.driver.plugins import default_drivers, load_installed, load_plugins, published_names
from dranode.driver.process.locks import FileLock
from dranode.show.ledger_reading import had_ledger
from dranode.show.output import console, emit, fail, output_option

_LEDGER: Final = ("ledger.db", "ledger.db-wal", "ledger.db-shm", "ledger.db-copy")


@click.command(short_help="Allow new claims again after a ledger was lost.")
@machine_option
@names_of_drivers("The drivers, by short name or as they publish (default: those that serve by default).")
@serve_option("--kubelet-root")
@serve_option("--cdi-dir")
@click.option("--dry-run", is_flag=True, help="Only report what is missing.")
@output_option
def command(
    root: Root, drivers: tuple[str, ...], kubelet_root: str, cdi_dir: str, output: str, *, dry_run: bool
) -> None:
    """Forget the claims that have left no trace on this node, so that new claims are prepared again.

    If the record of a claim is lost together with its copy and its CDI spec, the claim may hold anything, and the
    driver prepares nothing new. First delete the pods on this node whose claims `dranode claims` does not list, or
    drain the node. After this command, what they hold may be handed out again. It works while a driver serves.

    \b
    Example:
      dranode forget-lost --dry-run
      dranode forget-lost --kubelet-root /var/lib/kubelet
    """
    report: list[dict[str, Any]] = []
    for plugin in _plugins(drivers, root):
        folder = Path(kubelet_root).absolute() / "plugins" / plugin.driver
        try:
            has_ledger = had_ledger(folder / "ledger.db")
        except OSError as error:
            fail(f"{folder} cannot be read: {error.strerror}; try as root")
        if not has_ledger:
            fail(f"{folder} has no ledger, so {plugin.driver} has nothing to forget; check --kubelet-root")
        with _duplicate(folder) if dry_run else contextlib.nullcontext(folder) as data:
            node = NodeClaims(plugin, data, Path(cdi_dir).absolute(), boot_id=boot_id(root))
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


@contextlib.contextmanager
def _duplicate(folder: Path) -> Iterator[Path]:
    """Yield a copy of the ledger's folder: opening a damaged ledger rebuilds it, which --dry-run must not do."""
    with tempfile.TemporaryDirectory(prefix="dranode-") as copy:
        # The lock keeps the files of the ledger consistent with each other while they are copied.
        with FileLock(folder / "serialize.lock").held(PATIENCE):
            for name in _LEDGER:
                try:
                    (Path(copy) / name).write_bytes(read_regular(folder / name, LARGEST))
                except FileNotFoundError:
                    continue
                except OSError as error:
                    fail(f"{folder / name} cannot be read: {error.strerror}")
        # Log lines would name files of the copy, which is removed at once.
        logging.disable()
        try:
            yield Path(copy)
        finally:
            logging.disable(logging.NOTSET)


def _plugins(drivers: tuple[str, ...], root: Root) -> list[Plugin]:
    """Return the installed drivers with these names, or those that `serve` runs by default if there are no names."""
    if not drivers:
        return load_plugins(default_drivers(), root, {})
    known = {plugin.driver: plugin for plugin in load_installed(root)}
    names = published_names(drivers, root)
    for driver in names:
        if driver not in known:
            raise UsageError(f"no driver {driver} is installed; installed: {', '.join(sorted(known)) or 'none'}")
    return [known[driver] for driver in dict.fromkeys(names)]
