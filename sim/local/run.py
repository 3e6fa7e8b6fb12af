"""The local run: allocates and prepares the claims of pods one after another, as in a cluster.

A store of YAML files replaces the API server, the allocator replaces kube-scheduler, and a stand-in for kubelet
registers drivers and prepares claims over real sockets and gRPC. The drivers run as in `serve`.
"""

import contextlib
import hashlib
import logging
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec

from dranode.api.cpuset import CPUSet
from dranode.api.errors import DranodeError, UsageError
from dranode.api.resource import AllocationResult, Node, ObjectMeta, ResourceClaim, ResourceSlice
from dranode.driver.claims.answers import Prepared, Refused
from dranode.driver.claims.grant import drivers_of
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.plugin import Plugin
from dranode.driver.claims.record import PreparedDevice, Record
from dranode.driver.claims.users import pods_among
from dranode.driver.kubelet import service as kubelet_service
from dranode.driver.kubelet.listener import Listener
from dranode.driver.kubelet.sockets import socket_paths
from dranode.driver.local.cluster import FolderCluster
from dranode.driver.local.store import Store
from dranode.driver.machine.root import Root
from dranode.driver.pinning.given_cpus import cpus_of_requests
from dranode.driver.pinning.snapshot import Pins
from dranode.driver.serve.service import DriverService
from dranode.sim.allocator.allocate import Allocator
from dranode.sim.allocator.explain import driver_of
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.requests import Outcome
from dranode.sim.allocator.state import Allocated
from dranode.sim.cluster.holdings import ClaimKey
from dranode.sim.cluster.pods import not_scheduled
from dranode.sim.cluster.sharing import claims_in_use, container_conflicts, exclusive_use, pods_conflict
from dranode.sim.cluster.workload import PodWithClaims, WorkloadDocuments, with_special
from dranode.sim.local.kubelet import KubeletError, StandInKubelet
from dranode.sim.machines.scratch import RehearsedMachine

_PODS: Final = "sys/fs/cgroup/kubepods.slice"

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """The result of one claim.

    Attributes:
        namespace: the namespace of the claim.
        name: the name of the claim.
        uid: the UID of the claim; empty if the claim does not exist.
        node: the node where it was allocated; None if it was not.
        allocation: `status.allocation`.
        devices: the devices in the NodePrepareResourceResponse.
        cdi_files: the CDI specs that were written for it.
        cpus: its CPUs as a cpu-list; None if it has no CPU device.
        request_cpus: the CPUs of each request as a cpu-list, if known.
        amounts: its amounts of devices that claims share, by device.
        error: why it was not allocated or prepared, in one sentence.
        notes: one sentence for each surprising thing about it.
    """

    namespace: str
    name: str
    uid: str = ""
    node: str | None = None
    allocation: AllocationResult | None = None
    devices: tuple[PreparedDevice, ...] = ()
    cdi_files: tuple[str, ...] = ()
    cpus: str | None = None
    request_cpus: Mapping[str, str] = field(default_factory=dict)
    amounts: Mapping[str, int] = field(default_factory=dict)
    error: str | None = None
    notes: tuple[str, ...] = ()


@dataclass
class LocalRun:
    """A running node.

    Attributes:
        node_name: its name.
        features: the allocator's feature gates.
        store: stands for the API server.
        kubelet: stands for kubelet; the drivers are registered with it.
        services: the drivers by name.
    """

    node_name: str
    features: Features
    store: Store
    kubelet: StandInKubelet
    services: Mapping[str, DriverService]
    _pods: list[Mapping[ClaimRef, frozenset[str]]] = field(default_factory=list)
    _published: tuple[ResourceSlice, ...] = ()
    _claims: dict[ClaimRef, ResourceClaim] = field(default_factory=dict)
    _users: dict[ClaimKey, str] = field(default_factory=dict)  # the first pod whose containers have the claim

    def slices(self) -> tuple[ResourceSlice, ...]:
        """Return the ResourceSlices that the drivers have published."""
        return self.store.list(ResourceSlice)

    def records(self) -> tuple[Record, ...]:
        """Return every claim on record, of all drivers."""
        return tuple(record for service in self.services.values() for record in service.node.records())

    def run(self, workload: WorkloadDocuments, progress: Progress) -> tuple[ClaimResult, ...]:
        """Allocate and prepare the claims pod by pod, in the given order; failures are in the results."""
        # Nothing else writes to this store during the run, and reading it again for every pod would take most of the
        # time.
        self._published = self.slices()
        self._claims = {ClaimRef.of(claim): claim for claim in self.store.list(ResourceClaim)}
        results: list[ClaimResult] = []
        for number, pod in enumerate(workload.pods, start=1):
            progress(f"pod {number} of {len(workload.pods)}: {pod.name}")
            if pod.pod is None or not pod.pod.finished:
                results += self._pod(with_special(pod, workload.classes, self.features), workload)
        return tuple(results)

    def _pod(self, pod: PodWithClaims, workload: WorkloadDocuments) -> Iterable[ClaimResult]:
        namespace = pod.name.partition("/")[0]
        if pod.missing:
            lacking = ", ".join(map(str, pod.missing))
            for kind, name in pod.missing:
                error = f"pod {pod.name} refers to {kind} {namespace}/{name}, which is not in the files"
                yield ClaimResult(namespace, name, error=error)
            for claim in pod.claims:
                yield _failed(claim, f"pod {pod.name} lacks {lacking}, so none of its claims is allocated")
            return
        claims = tuple(map(self._with_stored, pod.claims))
        unallocated = tuple(claim for claim in claims if claim.status.allocation is None)
        impossible = pod.problem or self._elsewhere(pod) or self._without_driver(unallocated, workload)
        if impossible:
            yield from (_failed(claim, impossible) for claim in pod.claims)
            return
        outcomes = {id(outcome.claim): outcome for outcome in self._allocate(unallocated, workload)}
        allocated: list[ResourceClaim] = []
        notes: dict[str, tuple[str, ...]] = {}
        for claim in claims:
            outcome = outcomes.get(id(claim))
            if outcome is not None and outcome.allocation is None:
                yield _failed(claim, outcome.error or "the claim does not fit", outcome.notes)
                continue
            allocation = outcome.allocation if outcome is not None else claim.status.allocation
            notes[claim.metadata.uid] = outcome.notes if outcome is not None else ()
            status = msgspec.structs.replace(claim.status, allocation=allocation)
            allocated.append(msgspec.structs.replace(claim, status=status))
        refusals = self._refusals(pod, unallocated, workload)
        for result in self._prepare(allocated, notes):
            refusal = refusals.get(ClaimKey(result.namespace, result.name))
            yield replace(result, error=refusal) if refusal and result.error is None else result

    def _elsewhere(self, pod: PodWithClaims) -> str:
        if pod.node in ("", self.node_name):
            return ""
        bound = f"pod {pod.name} is bound to node {pod.node} (spec.nodeName), but this node is {self.node_name}"
        return f"{bound}; remove nodeName, or run with --node-name {pod.node}"

    def _without_driver(self, claims: Iterable[ResourceClaim], workload: WorkloadDocuments) -> str:
        """Return why a class of the claims has no devices because its driver does not run; empty otherwise."""
        classes = {device_class.metadata.name: device_class for device_class in workload.classes}
        publish = {slice_.spec.driver for slice_ in self._published} | self.services.keys()
        for claim in claims:
            for request in claim.spec.devices.requests:
                options = request.options.values()
                chosen = [
                    classes[option.device_class_name] for option in options if option.device_class_name in classes
                ]
                drivers = [driver_of(device_class) for device_class in chosen]
                if len(chosen) == len(options) and all(driver and driver not in publish for driver in drivers):
                    return (
                        f"request {request.name} of claim {ClaimKey.of(claim)}: no device of class "
                        f"{chosen[0].metadata.name}: driver {drivers[0]} does not run here; {', '.join(self.services)} "
                        f"{'do' if len(self.services) > 1 else 'does'} (--drivers)"
                    )
        return ""

    def _refusals(
        self, pod: PodWithClaims, unallocated_claims: Iterable[ResourceClaim], workload: WorkloadDocuments
    ) -> dict[ClaimKey, str]:
        """Return by claim why a cluster would not start the pod, even though its claims can be prepared."""
        if pod.pod is None:
            return {}
        classes = {device_class.metadata.name: device_class for device_class in workload.classes}
        pinning = [driver for driver, service in self.services.items() if isinstance(service.plugin, Pins)]
        specs = {ClaimKey.of(claim): claim.spec.devices for claim in pod.claims}
        named = {name: key for name, key in pod.entries.items() if key in specs and name in claims_in_use(pod.pod)}
        uses = {name: exclusive_use(specs[key], classes, pinning) for name, key in named.items()}
        exclusive = {name: use for name, use in uses.items() if use is not None}
        refusals = {
            named[name]: f"pod {pod.name}: {conflict.path}: {conflict.message}"
            for name, conflict in container_conflicts(pod.pod, exclusive)
        }
        for name in exclusive:
            first = self._users.setdefault(named[name], pod.name)
            if first != pod.name:
                refusals[named[name]] = pods_conflict(f"pod {first}", f"pod {pod.name}")
        if pod.node:
            unallocated = [ClaimKey.of(claim) for claim in unallocated_claims]
            refusals |= dict.fromkeys(unallocated, not_scheduled(pod.name, pod.node, map(str, unallocated)))
        return refusals

    def _with_stored(self, claim: ResourceClaim) -> ResourceClaim:
        """Add the allocation and consumers that an earlier run or pod stored for the same claim."""
        stored = self.store.find(ResourceClaim, claim.metadata.namespace, claim.metadata.name)
        if stored is None or stored.metadata.uid != claim.metadata.uid:
            return claim
        reserved = (*stored.status.reserved_for, *claim.status.reserved_for)
        status = msgspec.structs.replace(
            claim.status,
            allocation=claim.status.allocation or stored.status.allocation,
            reserved_for=tuple({consumer.uid: consumer for consumer in reserved}.values()),
        )
        return msgspec.structs.replace(claim, status=status)

    def _allocate(self, claims: tuple[ResourceClaim, ...], workload: WorkloadDocuments) -> tuple[Outcome, ...]:
        if not claims:
            return ()
        node = node_named(self.node_name)
        allocator = Allocator(
            self._published,
            workload.classes,
            self.features,
            new_share_id=lambda: str(uuid.uuid4()),
            rules=workload.rules,
        )
        return allocator.allocate(claims, node, Allocated.of(self._claims.values()))

    def _prepare(self, claims: list[ResourceClaim], notes: Mapping[str, tuple[str, ...]]) -> Iterable[ClaimResult]:
        pod: dict[ClaimRef, frozenset[str]] = {}
        for claim in claims:
            self.store.put(claim)
            self._claims[ClaimRef.of(claim)] = claim
            pod[ClaimRef.of(claim)] = self._drivers(claim)
        answers = self.kubelet.prepare(pod)
        self._pods.append(pod)
        cpus = {record.uid: str(record.cpus) for record in self.records() if record.cpus}
        amounts: dict[str, dict[str, int]] = {}
        requests: dict[str, dict[str, str]] = {}
        for record in self.records():
            by_request = {name: str(cpus) for name, cpus in cpus_of_requests(record).items()}
            requests.setdefault(record.uid, {}).update(by_request)
            amounts.setdefault(record.uid, {}).update(record.amounts)
        for claim in claims:
            answer = answers[ClaimRef.of(claim)]
            prepared = isinstance(answer, Prepared)
            yield ClaimResult(
                namespace=claim.metadata.namespace,
                name=claim.metadata.name,
                uid=claim.metadata.uid,
                node=self.node_name,
                allocation=claim.status.allocation,
                devices=answer.devices if isinstance(answer, Prepared) else (),
                cdi_files=self._cdi_files(claim.metadata.uid) if prepared else (),
                cpus=cpus.get(claim.metadata.uid) if prepared else None,
                request_cpus=requests.get(claim.metadata.uid, {}) if prepared else {},
                amounts=amounts.get(claim.metadata.uid, {}) if prepared else {},
                error=answer.reason if isinstance(answer, Refused) else None,
                notes=(*notes[claim.metadata.uid], *self._strangers(claim)),
            )

    @contextlib.contextmanager
    def containers(self, machine: Root) -> Iterator[None]:
        """Run a container with each pod's CPUs meanwhile, on a synthetic machine only; the drivers tune it."""
        cpus: dict[str, CPUSet] = {}
        for record in self.records() if isinstance(machine, RehearsedMachine) else ():
            pod = next((consumer.uid for consumer in pods_among(record.pods)), record.uid)
            cpus[pod] = cpus.get(pod, CPUSet()) | record.cpus
        if not isinstance(machine, RehearsedMachine) or not any(cpus.values()):
            yield
            return
        machine.make(f"{_PODS}/cpuset.cpus.exclusive", "")
        for pod, pod_cpus in cpus.items():
            folder = f"{_PODS}/kubepods-pod{pod.replace('-', '_')}.slice"
            machine.make(f"{folder}/cpuset.cpus.exclusive", "")
            container = f"{folder}/cri-containerd-{hashlib.sha256(pod.encode()).hexdigest()}.scope"
            for name, content in (
                ("", pod_cpus),
                (".effective", pod_cpus),
                (".exclusive", ""),
                (".partition", "member"),
            ):
                machine.make(f"{container}/cpuset.cpus{name}", str(content))
        for service in self.services.values():
            service.node.tune()
        yield
        machine.remove(_PODS)

    def _drivers(self, claim: ResourceClaim) -> frozenset[str]:
        """Return the running drivers that have devices of the claim."""
        return frozenset(drivers_of(claim.status.allocation) & self.services.keys())

    def _strangers(self, claim: ResourceClaim) -> tuple[str, ...]:
        missing = sorted(drivers_of(claim.status.allocation) - self.services.keys())
        return (f"not prepared by {', '.join(missing)}, which does not run here",) if missing else ()

    def _cdi_files(self, uid: str) -> tuple[str, ...]:
        paths = (service.node.files.path(uid) for service in self.services.values())
        return tuple(str(path) for path in paths if path is not None)

    def unprepare(self) -> tuple[str, ...]:
        """Unprepare all pods, the last first, and return a sentence for each reason why claims are left."""
        failures: list[str] = []
        for pod in reversed(self._pods):
            try:
                self.kubelet.unprepare(pod)
            except KubeletError as error:
                failures.append(str(error))
        remaining = {record.uid for record in self.records()}
        refs = {ref for pod in self._pods for ref in pod}
        for ref in refs:
            if ref.uid not in remaining:
                self.store.remove(ResourceClaim, ref.namespace, ref.name)
        self._pods.clear()
        still_recorded = sorted(str(ref) for ref in refs if ref.uid in remaining)
        return tuple(failures) or (
            (f"claims are left on record: {', '.join(still_recorded)}",) if still_recorded else ()
        )


def node_named(name: str) -> Node:
    """Return the Node of a local run, with only its name."""
    return Node(metadata=ObjectMeta(name=name, labels={"kubernetes.io/hostname": name}))


def _failed(claim: ResourceClaim, error: str, notes: tuple[str, ...] = ()) -> ClaimResult:
    metadata = claim.metadata
    return ClaimResult(metadata.namespace, metadata.name, metadata.uid, error=error, notes=notes)


# The shortest folder for temporary files; $TMPDIR may be too long for the path of a socket.
_SHORT: Final = "/tmp"  # noqa: S108 - mkdtemp makes a private folder in it


@contextlib.contextmanager
def local_run(
    plugins: Iterable[Plugin],
    node_name: str,
    state: Path | None,
    features: Features,
    progress: Progress,
    *,
    taints: bool = False,
) -> Iterator[LocalRun]:
    """Run a node with these drivers, registered and with published slices; stop it at the end.

    Args:
        plugins: the drivers.
        node_name: the name of the node.
        state: the folder for `store`, `kubelet` and `cdi`; None for a temporary folder that is removed.
        features: the allocator's feature gates.
        progress: called with a sentence about the next step.
        taints: whether unhealthy devices are tainted.

    Raises:
        DranodeError: a folder cannot be written, or a driver does not start.
    """
    reasons: list[str] = []
    with contextlib.ExitStack() as stack:
        folder = (state if state is not None else _temporary(stack)).absolute()
        root = folder / "kubelet"
        _make(folder / "store", root / "plugins_registry", folder / "cdi")
        drivers = tuple(plugins)
        sockets = _socket_root(root, drivers, stack)
        store = Store(folder / "store")
        cluster = FolderCluster(store, node_name)
        stack.enter_context(_answers_unlogged())
        services: dict[str, DriverService] = {}
        for plugin in drivers:
            progress(f"starting {plugin.driver}")
            _make(sockets / "plugins" / plugin.driver)
            paths, data = socket_paths(sockets, plugin.driver), root / "plugins" / plugin.driver
            listener = Listener(plugin.driver, node_name, paths, data, reasons.append)
            service = services[plugin.driver] = DriverService(
                plugin, cluster, listener, cdi=folder / "cdi", taints=taints
            )
            # The stand-in kubelet never unprepares while it waits for a Prepare, so waiting would not help.
            service.node.conflict_wait = 0.0
            service.start()
            stack.callback(service.stop)
        kubelet = StandInKubelet(sockets / "plugins_registry")
        stack.callback(kubelet.close)
        kubelet.register(services)
        yield LocalRun(node_name, features, store, kubelet, services)
    if reasons:
        raise DranodeError(reasons[0])


@contextlib.contextmanager
def _answers_unlogged() -> Iterator[None]:
    """Keep kubelet's answers out of the log, because the run shows them."""
    log = logging.getLogger(kubelet_service.__name__)
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _temporary(stack: contextlib.ExitStack, parent: str | None = None) -> Path:
    try:
        folder = Path(tempfile.mkdtemp(prefix="dranode-", dir=parent))
    except OSError as error:
        where, remedy = (
            ("", "set TMPDIR to a writable folder")
            if parent is None
            else (f" in {parent}", "pass a folder with a short path with --state")
        )
        raise DranodeError(f"a temporary folder cannot be created{where}: {error.strerror}; {remedy}") from error
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _make(*folders: Path) -> None:
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DranodeError(f"{folder} cannot be created: {error.strerror}; choose another --state") from error


def _socket_root(root: Path, plugins: Iterable[Plugin], stack: contextlib.ExitStack) -> Path:
    """Return kubelet's root for the sockets: that of the state, or a temporary one if a path would be too long."""
    try:
        for plugin in plugins:
            socket_paths(root, plugin.driver)
    except UsageError:
        short = _temporary(stack, _SHORT)
        _make(short / "plugins_registry")
        return short
    return root
