"""Follows a claim on its own node: record, CDI spec, runtime, containers, CPUs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dranode.api.errors import DranodeError
from dranode.driver.claims.plugin import Plugin
from dranode.driver.claims.record import Record
from dranode.driver.machine.root import Root
from dranode.driver.pinning.snapshot import Pins
from dranode.driver.plugins import installed, load_plugins
from dranode.show.ledger_reading import read_ledger
from dranode.tools.diagnosis import node, runtime
from dranode.tools.diagnosis.claim import follow
from dranode.tools.diagnosis.facts import Facts, Fault, NodeFacts, Place, ServeOptions
from dranode.tools.diagnosis.steps import StopCause, Trace
from dranode.tools.readers.claim import ClaimReader
from dranode.tools.readers.host import NodeHost
from dranode.tools.readers.runtime import read_runtime
from dranode.tools.readers.sources import ObjectSource

_RULES: Final = (
    (StopCause.CDI_OFF, runtime.cdi_off),
    (StopCause.CDI_UNRESOLVABLE, runtime.cdi_dir_not_read),
    (StopCause.NRI_OFF, runtime.nri_off),
    (StopCause.NRI_OFF, runtime.nri_connections_off),
    (StopCause.NRI_OFF, runtime.nri_socket_differs),
    (StopCause.NRI_OFF, node.place_missing),
    (StopCause.NRI_OFF, node.place_unusable),
)


@dataclass(frozen=True, slots=True)
class ThisNode:
    """The node that this command runs on.

    Attributes:
        host: the node's files.
        options: the node's name and folders.
        plugins: the drivers that may serve it, by name.
        pod_resources: kubelet's pod-resources socket.
        real: whether kubelet and a container runtime run here; a local run has neither.
        root: whether the command runs as root.
    """

    host: NodeHost
    options: ServeOptions
    plugins: Mapping[str, Plugin]
    pod_resources: str
    real: bool = True
    root: bool = False

    def trace(self, driver: str, namespace: str, name: str, source: ObjectSource | None) -> Trace:
        """Return the steps of a claim on this node, as far as it concerns one driver.

        Raises:
            DranodeError: the claim or the ledger cannot be read.
        """
        plugin = self.plugins[driver]
        reader = ClaimReader(self.host, self.options, source, self.pod_resources, self._runtime(plugin), root=self.root)
        steps = tuple(follow(reader.read(namespace, name, plugin)))
        claim = f"{namespace}/{name}"
        return Trace(f"claim {claim} on node {self.options.node}", steps, driver, claim)

    def recorded(self, unread: list[str]) -> Iterator[tuple[str, Record]]:
        """Yield each claim on record with its driver; `unread` gets a sentence for each ledger that cannot be read."""
        for driver in self.plugins:
            path = f"{self.options.kubelet_root.rstrip('/')}/plugins/{driver}/ledger.db"
            try:
                contents = read_ledger(self.host.place(path))
            except DranodeError as error:
                unread.append(str(error))
                continue
            yield from ((driver, record) for record in contents.records)

    def _runtime(self, plugin: Plugin) -> tuple[tuple[StopCause, Fault], ...]:
        """Return what is wrong with the runtime for a driver; nothing if the runtime's configuration cannot be read."""
        if not self.real:
            return ()
        try:
            container_runtime, _ = read_runtime(self.host, "")
            state = self.host.socket_state(self.options.nri_socket)
        except (DranodeError, OSError):
            return ()
        pinning = (plugin.driver,) if isinstance(plugin, Pins) else ()
        judged = ServeOptions(
            node=self.options.node,
            drivers=(plugin.driver,),
            pinning=pinning,
            cdi_dir=self.options.cdi_dir,
            nri_socket=self.options.nri_socket,
        )
        places = (Place(self.options.nri_socket, state, "NRI"),)
        facts = Facts(judged, runtime=container_runtime, node=NodeFacts(places=places))
        return tuple((cause, fault) for cause, rule in _RULES for fault in rule(facts))


def plugins_here(names: tuple[str, ...], root: Root, options: Mapping[str, Any]) -> dict[str, Plugin]:
    """Return the drivers with these short names, or all installed drivers if there are no names, by their full names.

    If there are no names, a driver that refuses its options is left out.

    Raises:
        UsageError: a named driver is not installed, or refuses its options.
    """
    if names:
        return {plugin.driver: plugin for plugin in load_plugins(names, root, options)}
    plugins: dict[str, Plugin] = {}
    for name in installed():
        try:
            (plugin,) = load_plugins((name,), root, options)
        except DranodeError:
            continue
        plugins[plugin.driver] = plugin
    return plugins
