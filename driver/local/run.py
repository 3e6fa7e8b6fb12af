"""The local run: the real service, with stand-ins for the API server, the scheduler and kubelet.

A store of YAML files takes the API server's place, the allocator that of kube-scheduler, and a kubelet that registers,
prepares and unprepares over the real sockets with real gRPC that of kubelet. What is between them is what `serve` runs.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from dranode.driver.core.allocation import drivers_of
from dranode.driver.core.errors import DranodeError, UsageError
from dranode.driver.core.held import ClaimRef
from dranode.driver.core.plugin import Plugin
from dranode.driver.core.record import PreparedDevice, Record
from dranode.driver.core.resource import (
    AllocationResult,
    DeviceClass,
    Node,
    ObjectMeta,
    ResourceClaim,
    ResourceSlice,
)
from dranode.driver.kubelet.sockets import socket_paths
from dranode.driver.listener import Listener
from dranode.driver.local.allocator.allocate import Allocator
from dranode.driver.local.allocator.features import Features
from dranode.driver.local.allocator.outcome import Outcome
from dranode.driver.local.allocator.state import Allocated
from dranode.driver.local.kubelet import KubeletError, StandInKubelet
from dranode.driver.local.publisher import StorePublisher
from dranode.driver.local.store import Store
from dranode.driver.local.workload import PodClaims, Workload
from dranode.driver.service import DriverService, Edges

# Every unix has it, and no path is shorter; $TMPDIR may well be too long for a socket.
_SHORT: Final = "/tmp"  # noqa: S108 - mkdtemp makes a private folder in it
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """What became of one claim.

    Attributes:
        namespace: the claim's.
        name: the claim's.
        uid: the claim's; empty if there is no such claim.
        node: the node on which it was allocated; None if it was not.
        allocation: `status.allocation`.
        devices: what kubelet was told.
        cdi_files: the CDI specs that were written for it.
        cpus: its CPUs as a cpu-list; None if it was granted no CPU device.
        error: why it was not allocated or prepared, in one sentence.
        notes: what is odd about it, in one sentence each.
    """

    namespace: str
    name: str
    uid: str = ""
    node: str | None = None
    allocation: AllocationResult | None = None
    devices: tuple[PreparedDevice, ...] = ()
    cdi_files: tuple[str, ...] = ()
    cpus: str | None = None
    error: str | None = None
    notes: tuple[str, ...] = ()


@dataclass
class LocalRun:
    """A node that runs.

    Attributes:
        node_name: its name.
        state: the folder with `store/`, `kubelet/` and `cdi/`.
        services: the drivers, by name.
        kubelet: the stand-in.
        features: the allocator's feature gates.
    """

    node_name: str
    state: Path
    features: Features
    services: dict[str, DriverService] = field(default_factory=dict)
    kubelet: StandInKubelet = field(init=False)
    store: Store = field(init=False)
    _pods: list[Mapping[ClaimRef, frozenset[str]]] = field(default_factory=list)
    _published: tuple[ResourceSlice, ...] = ()
    _claims: dict[ClaimRef, ResourceClaim] = field(default_factory=dict)

    def slices(self) -> tuple[ResourceSlice, ...]:
        """What the drivers have published."""
        return self.store.list(ResourceSlice)

    def records(self) -> tuple[Record, ...]:
        """Every claim on record, of all drivers."""
        return tuple(record for service in self.services.values() for record in service.node.records())

    def run(self, workload: Workload, progress: Progress) -> tuple[ClaimResult, ...]:
        """Allocate and prepare pod by pod, in the order given."""
        # Nobody else writes this store meanwhile, and reading it all again for every pod takes the longest by far.
        self._published = self.slices()
        self._claims = {_ref(claim): claim for claim in self.store.list(ResourceClaim)}
        results: list[ClaimResult] = []
        for number, pod in enumerate(workload.pods, start=1):
            progress(f"pod {number} of {len(workload.pods)}: {pod.name}")
            results += self._pod(pod, workload.classes)
        return tuple(results)

    def _pod(self, pod: PodClaims, classes: tuple[DeviceClass, ...]) -> Iterable[ClaimResult]:
        namespace = pod.name.partition("/")[0]
        if pod.missing:
            lacking = ", ".join(pod.missing)
            for name in pod.missing:
                yield ClaimResult(namespace, name, error=f'pod {pod.name} refers to "{name}", which no file has')
            for claim in pod.claims:
                yield _failed(claim, f"pod {pod.name} lacks {lacking}, so none of its claims is allocated")
            return
        claims = tuple(map(self._known, pod.claims))
        wanted = tuple(claim for claim in claims if claim.status.allocation is None)
        outcomes = {id(outcome.claim): outcome for outcome in self._allocate(wanted, classes)}
        settled: list[ResourceClaim] = []
        notes: dict[str, tuple[str, ...]] = {}
        for claim in claims:
            outcome = outcomes.get(id(claim))
            if outcome is not None and outcome.allocation is None:
                yield _failed(claim, outcome.error or "the claim does not fit", outcome.notes)
                continue
            allocation = outcome.allocation if outcome is not None else claim.status.allocation
            notes[claim.metadata.uid] = outcome.notes if outcome is not None else ()
            status = msgspec.structs.replace(claim.status, allocation=allocation)
            settled.append(msgspec.structs.replace(claim, status=status))
        yield from self._prepare(settled, notes)

    def _known(self, claim: ResourceClaim) -> ResourceClaim:
        """The claim as the store has it from an earlier run or pod, if it is the same; reserved for all its pods."""
        stored = self.store.find(ResourceClaim, claim.metadata.namespace, claim.metadata.name)
        if stored is None or stored.metadata.uid != claim.metadata.uid:
            return claim
        reserved = (*stored.status.reserved_for, *claim.status.reserved_for)
        status = msgspec.structs.replace(
            claim.status,
            allocation=claim.status.allocation or stored.status.allocation,
            reserved_for=tuple({one.uid: one for one in reserved}.values()),
        )
        return msgspec.structs.replace(claim, status=status)

    def _allocate(self, claims: tuple[ResourceClaim, ...], classes: tuple[DeviceClass, ...]) -> tuple[Outcome, ...]:
        if not claims:
            return ()
        node = Node(metadata=ObjectMeta(name=self.node_name, labels={"kubernetes.io/hostname": self.node_name}))
        allocator = Allocator(self._published, classes, self.features, new_share_id=lambda: str(uuid.uuid4()))
        return allocator.allocate(claims, node, Allocated.of(self._claims.values()))

    def _prepare(self, claims: list[ResourceClaim], notes: Mapping[str, tuple[str, ...]]) -> Iterable[ClaimResult]:
        pod: dict[ClaimRef, frozenset[str]] = {}
        for claim in claims:
            self.store.put(claim)
            self._claims[_ref(claim)] = claim
            pod[_ref(claim)] = self._drivers(claim)
        answers = self.kubelet.prepare(pod)
        self._pods.append(pod)
        cpus = {record.uid: record.cpus for record in self.records() if record.cpus}
        for claim in claims:
            answer = answers[_ref(claim)]
            failed = isinstance(answer, KubeletError)
            yield ClaimResult(
                namespace=claim.metadata.namespace,
                name=claim.metadata.name,
                uid=claim.metadata.uid,
                node=self.node_name,
                allocation=claim.status.allocation,
                devices=() if isinstance(answer, KubeletError) else answer,
                cdi_files=() if failed else self._cdi_files(claim.metadata.uid),
                cpus=cpus.get(claim.metadata.uid) if not failed else None,
                error=str(answer) if failed else None,
                notes=(*notes[claim.metadata.uid], *self._strangers(claim)),
            )

    def _drivers(self, claim: ResourceClaim) -> frozenset[str]:
        """The drivers of a claim's results that run here; a claim of which nothing is theirs goes to none."""
        return frozenset(drivers_of(claim.status.allocation) & self.services.keys())

    def _strangers(self, claim: ResourceClaim) -> tuple[str, ...]:
        missing = sorted(drivers_of(claim.status.allocation) - self.services.keys())
        return (f"not prepared by {', '.join(missing)}: no such driver runs here",) if missing else ()

    def _cdi_files(self, uid: str) -> tuple[str, ...]:
        return tuple(str(path) for service in self.services.values() for path in service.node.spec_files(uid))

    def unprepare(self) -> bool:
        """Unprepare all pods, last first; whether nothing is left of their claims.

        Raises:
            KubeletError: a driver did not unprepare a claim.
        """
        for pod in reversed(self._pods):
            self.kubelet.unprepare(pod)
        for ref in {ref for pod in self._pods for ref in pod}:
            self.store.remove(ResourceClaim, ref.namespace, ref.name)
        self._pods.clear()
        return not self.records()


@contextlib.contextmanager
def local_run(
    plugins: Iterable[Plugin], node_name: str, state: Path | None, features: Features, progress: Progress
) -> Iterator[LocalRun]:
    """A node with these drivers, registered and with their slices published; stopped at the end.

    Args:
        plugins: the drivers.
        node_name: the node.
        state: where everything is kept; None for a temporary folder that is removed.
        features: the allocator's feature gates.
        progress: is told what happens next.

    Raises:
        DranodeError: a folder cannot be written, or a driver does not start.
    """
    reasons: list[str] = []
    with contextlib.ExitStack() as stack:
        folder = state if state is not None else _temporary(stack)
        _make(folder / "store", folder / "kubelet" / "plugins_registry", folder / "cdi")
        run = LocalRun(node_name=node_name, state=folder.absolute(), features=features)
        run.store = Store(run.state / "store")
        edges = Edges(claims=run.store, publisher=StorePublisher(run.store, node_name))
        root = run.state / "kubelet"
        drivers = tuple(plugins)
        sockets = _socket_root(root, drivers, stack)
        for plugin in drivers:
            progress(f"starting {plugin.driver}")
            _make(sockets / "plugins" / plugin.driver)
            service = DriverService(
                plugin,
                edges,
                Listener(
                    plugin.driver,
                    node_name,
                    socket_paths(sockets, plugin.driver),
                    root / "plugins" / plugin.driver,
                    reasons.append,
                ),
                cdi=run.state / "cdi",
            )
            service.start()
            stack.callback(service.stop)
            run.services[plugin.driver] = service
        run.kubelet = StandInKubelet(sockets / "plugins_registry")
        stack.callback(run.kubelet.close)
        run.kubelet.register(run.services)
        yield run
    if reasons:
        raise DranodeError(reasons[0])


def _temporary(stack: contextlib.ExitStack) -> Path:
    try:
        folder = Path(tempfile.mkdtemp(prefix="dranode-"))
    except OSError as error:
        raise DranodeError(f"a temporary folder cannot be made: {error.strerror}; name one with --state") from error
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _make(*folders: Path) -> None:
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DranodeError(f"{folder} cannot be made: {error.strerror}; choose another --state") from error


def _socket_root(root: Path, plugins: Iterable[Plugin], stack: contextlib.ExitStack) -> Path:
    """Kubelet's root for the sockets: the state's own, or a short temporary one where a path would be too long."""
    try:
        for plugin in plugins:
            socket_paths(root, plugin.driver)
    except UsageError:
        short = Path(tempfile.mkdtemp(prefix="dranode-", dir=_SHORT))
        stack.callback(shutil.rmtree, short, ignore_errors=True)
        _make(short / "plugins_registry")
        return short
    return root


def _ref(claim: ResourceClaim) -> ClaimRef:
    return ClaimRef(claim.metadata.namespace, claim.metadata.name, claim.metadata.uid)


def _failed(claim: ResourceClaim, error: str, notes: tuple[str, ...] = ()) -> ClaimResult:
    metadata = claim.metadata
    return ClaimResult(metadata.namespace, metadata.name, metadata.uid, error=error, notes=notes)
