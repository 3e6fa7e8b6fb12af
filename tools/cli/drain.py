"""`dranode drain`: unprepares the claims that are left before the driver is removed, on this node or on all nodes."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from dranode.api.errors import DranodeError, LedgerError, UsageError
from dranode.driver.claims.answers import Refused
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.hooks import Tunes
from dranode.driver.claims.plugin import Plugin
from dranode.driver.cli.options import DriverCommand, machine_option, plugin_options, serve_option
from dranode.driver.kube.client import APIRequest, Client
from dranode.driver.kube.connection import Connection
from dranode.driver.kube.errors import ApiError
from dranode.driver.kube.server import Credentials
from dranode.driver.kubelet.podresources import PodResources, PodResourcesError
from dranode.driver.machine.presence import is_folder
from dranode.driver.machine.root import Root, boot_id
from dranode.driver.node.ledger import Contents, decoded_notes
from dranode.driver.node.metadata_files import DeviceMetadata
from dranode.driver.node.node import NodeClaims
from dranode.driver.node.specs import Specs
from dranode.driver.plugins import load_plugins
from dranode.driver.process.locks import FileLock
from dranode.show.ledger_reading import read_ledger
from dranode.show.output import console, emit, fail, output_option
from dranode.show.terminal import columns
from dranode.tools.readers.checkpoint import (
    NAME,
    LeftClaim,
    has_rolled_out,
    have_failed,
    left_claims,
    read_checkpoint,
    undrained,
)
from dranode.tools.readers.node import unprepare, who_serves

_POLL_SECONDS: Final = 2.0
# kubelet restarts a failed init container after 10, 20 and 40 s. Claims that are left after so many runs are in use,
# not about to be unprepared.
_TRIES: Final = 3


class DrainingPods(msgspec.Struct, frozen=True):
    """The pods of a DaemonSet whose init container drains the node.

    Attributes:
        client: the API server.
        namespace: the DaemonSet's namespace.
        name: the DaemonSet's name.
        clock: returns seconds and never goes back.
        sleep: waits for the given seconds.
    """

    client: Client
    namespace: str
    name: str
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def wait(self, seconds: float) -> int:
        """Wait until every node is drained; returns the number of nodes.

        Raises:
            DranodeError: nodes are not drained after `seconds`, or every one of them has failed three times; the
                message has the reason for each.
            ApiError: the DaemonSet or its pods cannot be read.
        """
        deadline = self.clock() + seconds
        daemonset = self._daemonset()
        while not has_rolled_out(daemonset):
            try:
                pods = self._pods(daemonset)
                if self.clock() >= deadline or have_failed(pods, _TRIES):
                    raise DranodeError(
                        f"not drained: {'; '.join(undrained(pods)) or 'pods of the DaemonSet are missing'}"
                    )
                self.sleep(_POLL_SECONDS)
                daemonset = self._daemonset()
            except ApiError as error:
                # The API server may be restarting. That takes less time than draining the nodes.
                if not error.passes or self.clock() >= deadline:
                    raise
                self.sleep(_POLL_SECONDS)
        return int(daemonset["status"]["desiredNumberScheduled"])

    def _pods(self, daemonset: dict[str, Any]) -> list[dict[str, Any]]:
        selector = ",".join(f"{key}={value}" for key, value in daemonset["spec"]["selector"]["matchLabels"].items())
        place = f"/api/v1/namespaces/{self.namespace}/pods"
        request = APIRequest("GET", place, f"list pods in namespace {self.namespace}", {"labelSelector": selector})
        return list(self.client.send(request)["items"] or ())

    def _daemonset(self) -> dict[str, Any]:
        place = f"/apis/apps/v1/namespaces/{self.namespace}/daemonsets/{self.name}"
        request = APIRequest("GET", place, f"get daemonsets in namespace {self.namespace}")
        return dict(self.client.send(request))


@click.command(cls=DriverCommand, short_help="Unprepare what is left on this node before the driver is removed.")
@machine_option
@plugin_options
@serve_option("--kubelet-root")
@serve_option("--cdi-dir")
@click.option("--dry-run", is_flag=True, help="Only report what is left.")
@click.option(
    "--force", is_flag=True, help="Also undo claims that a container uses, or may use because kubelet does not answer."
)
@click.option("--through-driver", is_flag=True, help="Have the serving driver unprepare the claims, as kubelet would.")
@click.option(
    "--await-daemonset",
    metavar="NAMESPACE/NAME",
    help="Only wait for a DaemonSet that drains every node.",
)
@click.option("--timeout", default=240, metavar="SECONDS", help="How long --await-daemonset waits.", show_default=True)
@output_option
@click.pass_context
def command(ctx: click.Context, /, root: Root, drivers: tuple[str, ...], output: str, **options: Any) -> None:
    """Undo the claims that no container uses: restore hardware, remove CDI specs and records.

    First remove the pods with claims from the node, with kubectl drain or by deleting them. Claims that kubelet still
    has on record are listed as stranded: without the driver they cannot be unprepared, and their pods stay Terminating.
    The driver's pod cannot see kubelet's record, and says so. While a driver serves, --through-driver is required. The
    exit status is 1 if anything is left.

    With --await-daemonset nothing is undone here. The chart's hook before an uninstall uses it to wait for a DaemonSet
    that runs this command on every node, and to report the nodes that are not drained.

    \b
    Example:
      dranode drain --dry-run
      dranode drain --through-driver
    """
    if options["await_daemonset"]:
        _wait(options["await_daemonset"], options["timeout"])
        return
    kubelet_root = Path(options["kubelet_root"]).absolute()
    report: list[dict[str, Any]] = []
    for plugin in load_plugins(drivers, root, options):
        folder = kubelet_root / "plugins" / plugin.driver
        try:
            exists = is_folder(folder)
        except OSError as error:
            fail(f"{folder} cannot be read: {error.strerror}; try as root")
        if not exists:
            fail(f"{folder} does not exist, so {plugin.driver} has nothing to drain; check --kubelet-root")
        node = _DrainedNode(plugin, kubelet_root, Path(options["cdi_dir"]).absolute(), boot_id(root))
        report.append(node.drain(**{name: options[name] for name in ("dry_run", "force", "through_driver")}))
    if not emit(report, output):
        _draw(report)
    if any(claim["state"] != "unprepared" for row in report for claim in row["claims"]) or any(
        row["stranded"] or row["settings"] for row in report
    ):
        ctx.exit(1)


def _wait(daemonset: str, seconds: int) -> None:
    namespace, _, name = daemonset.partition("/")
    if not namespace or not name:
        raise UsageError(f"--await-daemonset {daemonset} is not NAMESPACE/NAME")
    source = Credentials("")
    source.check()
    nodes = DrainingPods(Client(Connection(source), agent="dranode-drain"), namespace, name).wait(seconds)
    click.echo(f"drained {nodes} nodes: nothing is left")


class _DrainedNode:
    """One driver's claims on this node."""

    def __init__(self, plugin: Plugin, kubelet_root: Path, cdi: Path, boot_id: str) -> None:
        self._plugin = plugin
        self._boot_id = boot_id
        self._kubelet_root = kubelet_root
        self._data = kubelet_root / "plugins" / plugin.driver
        self._cdi = cdi
        self._specs = Specs(cdi, plugin.claim_kind)
        self._contents = Contents((), ())
        self._untuned = ""

    def drain(self, *, dry_run: bool, force: bool, through_driver: bool) -> dict[str, Any]:
        with self._alone(needed=not dry_run and not through_driver):
            claims = self._left_claims()
            stranded = read_checkpoint(self._kubelet_root / NAME, self._plugin.driver)
            undone = [claim.ref for claim in claims if claim.idle or force]
            answers: Mapping[str, Refused | None] = {}
            if undone and through_driver and not dry_run:
                answers = self._through_driver(undone)
            elif not dry_run and not through_driver and (undone or self._contents.notes):
                answers = self._unprepare(undone)
            settings = self._settings()
        gone = {uid for uid, refusal in answers.items() if refusal is None}
        return {
            "driver": self._plugin.driver,
            "claims": [_claim(claim, answers, dry_run=dry_run) for claim in claims],
            "stranded": None
            if stranded is None
            else [
                {"namespace": kept.ref.namespace, "name": kept.ref.name, "uid": kept.ref.uid, "pods": list(kept.pods)}
                for kept in stranded
                # kubelet's record has the claim until kubelet calls Unprepare, which the driver answers at once.
                if not (through_driver and kept.ref.uid in gone)
            ],
            "settings": settings,
        }

    @contextlib.contextmanager
    def _alone(self, *, needed: bool) -> Iterator[None]:
        """Keep drivers from starting while claims are being undone."""
        lock = FileLock(self._data / "active.lock")
        if needed and not lock.acquire(seconds=0):
            raise DranodeError(
                f"a driver serves {self._plugin.driver} from {self._data}; stop it first (kubectl delete -k deploy/), "
                "or have it undo the claims itself with --through-driver"
            )
        try:
            yield
        finally:
            lock.release()

    def _left_claims(self) -> tuple[LeftClaim, ...]:
        contents = self._contents = read_ledger(self._data / "ledger.db")
        kubelet = PodResources(self._kubelet_root / "pod-resources" / "kubelet.sock")
        try:
            uses = kubelet.claims(self._plugin.driver)
        except PodResourcesError:
            uses = None
        named = {record.uid: record.ref for record in contents.records}
        unnamed = {row.uid for row in contents.damaged} | self._specs.uids()
        refs = (*named.values(), *(ClaimRef("", "", uid) for uid in sorted(unnamed - set(named))))
        return left_claims(refs, uses)

    def _unprepare(self, refs: list[ClaimRef]) -> Mapping[str, Refused | None]:
        metadata = DeviceMetadata.of(self._plugin.driver, self._data, self._cdi)
        node = NodeClaims(self._plugin, self._data, self._cdi, metadata=metadata, boot_id=self._boot_id)
        with contextlib.closing(node):
            answers = node.unprepare(tuple(refs))
            with contextlib.suppress(DranodeError):
                # Leftover files do no harm, and a driver that starts again removes them.
                node.sweep()
            # The machine's settings outlive their claims if they could not be restored at once.
            try:
                node.tune()
            except DranodeError as error:
                self._untuned = str(error)
        return answers

    def _settings(self) -> str | None:
        """Return why the machine's settings are not restored although no claim is left; None if they are."""
        left = read_ledger(self._data / "ledger.db")
        if left.records or left.damaged or not (left.notes or left.notes_damage):
            return None
        if self._untuned or not isinstance(self._plugin, Tunes):
            return self._untuned or _SETTINGS
        try:
            return self._plugin.unrestorable(decoded_notes(left)) or _SETTINGS
        except LedgerError as error:
            return f"{_SETTINGS}: {error}"

    def _through_driver(self, refs: list[ClaimRef]) -> Mapping[str, Refused | None]:
        for socket in sorted((self._kubelet_root / "plugins_registry").glob("*.sock")):
            served = who_serves(socket)
            if served is not None and served.name == self._plugin.driver:
                return unprepare(Path(served.endpoint), refs)
        raise DranodeError(f"no driver serves {self._plugin.driver} on this node; leave out --through-driver")


def _claim(claim: LeftClaim, answers: Mapping[str, Refused | None], *, dry_run: bool) -> dict[str, Any]:
    uid = claim.ref.uid
    refusal = answers.get(uid)
    if uid in answers:
        state = "failed" if refusal is not None else "unprepared"
    elif dry_run and claim.idle:
        state = "left"
    else:
        state = "in use" if claim.users else "unknown"
    return {
        "namespace": claim.ref.namespace,
        "name": claim.ref.name,
        "uid": uid,
        "users": None if claim.users is None else list(claim.users),
        "state": state,
        "error": None if refusal is None else refusal.reason,
    }


_SETTINGS = (
    "settings of the machine that claims changed have not been restored; run this again, or reboot the node, "
    "which resets them"
)
_RECORD_UNSEEN = (
    "kubelet's own record of claims (dra_manager_state in --kubelet-root) cannot be seen from here, so claims that "
    "would be stranded are not listed; run dranode drain --dry-run on the node, or in kubectl debug node/... "
    "with --kubelet-root /host/var/lib/kubelet"
)
_HINTS = {
    "left": "no container uses it",
    "in use": "delete its pods, or pass --force",
    "unknown": "kubelet does not report whether a container uses it; check that kubelet runs, or pass --force",
}


def _draw(report: list[dict[str, Any]]) -> None:
    screen = console()
    for row in report:
        if row["settings"]:
            screen.print(f"{row['driver']}: {row['settings']}", markup=False)
        if row["stranded"] is None:
            screen.print(f"{row['driver']}: {_RECORD_UNSEEN}", markup=False)
        if not row["claims"] and not row["stranded"]:
            if not row["settings"]:
                recorded = " on the driver's own record" if row["stranded"] is None else ""
                screen.print(f"{row['driver']}: nothing is left{recorded}")
            continue
        screen.print(row["driver"], style="bold")
        table = columns("claim", "state", "containers", "")
        for claim in row["claims"]:
            name = f"{claim['namespace']}/{claim['name']}" if claim["name"] else claim["uid"]
            hint = claim["error"] or _HINTS.get(claim["state"], "")
            table.add_row(name, claim["state"], ", ".join(claim["users"] or ()), hint)
        screen.print(table)
        for kept in row["stranded"] or ():
            pods = f" of pod {', '.join(kept['pods'])}" if kept["pods"] else ""
            screen.print(
                f"stranded without the driver: {kept['namespace']}/{kept['name']}{pods}, "
                "which kubelet has on record; delete the pod while the driver still runs",
                markup=False,
            )
