"""Reads the facts about one claim from API server or store, ledger, CDI directory, kubelet and cgroups."""

from collections.abc import Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from dranode.api.cpuset import CPUSet
from dranode.api.errors import ClaimError, DranodeError, MachineError
from dranode.api.resource import ResourceClaim
from dranode.cdi.regular_file import read_regular
from dranode.driver.claims.answers import refused_by_error
from dranode.driver.claims.grant import results_of
from dranode.driver.claims.held import ClaimRef, Held
from dranode.driver.claims.plugin import Inventory, Plugin
from dranode.driver.claims.prepare import Circumstances, Relation, allocated_claim, decide_claim, relation_to
from dranode.driver.claims.record import LOST_RECORD, Record, holdings, missing_claims, unknown_claim
from dranode.driver.claims.users import ClaimUse, pods_among, with_users
from dranode.driver.kubelet.podresources import PodResources, PodResourcesError
from dranode.driver.machine.cgroups import Cgroups
from dranode.driver.machine.presence import is_there
from dranode.driver.machine.root import Root
from dranode.driver.node.ledger import Contents
from dranode.driver.node.ledger_recovery import SpecRecords
from dranode.driver.node.specs import Specs
from dranode.driver.pinning.containers import Effective, difference, memory_in_words
from dranode.driver.pinning.snapshot import PinnedClaim, Pins
from dranode.show.ledger_reading import read_ledger
from dranode.tools.diagnosis.claim import ClaimFacts, ContainerMemory
from dranode.tools.diagnosis.facts import Fault, PathState, ServeOptions
from dranode.tools.diagnosis.placement import (
    ContainerClaims,
    PlacedContainer,
    RecordedClaim,
    RecordedParts,
    claims_in,
    container_has_memory,
    expected_memory,
    pod_uids,
)
from dranode.tools.diagnosis.steps import StopCause
from dranode.tools.readers.host import HostError, NodeHost
from dranode.tools.readers.node import read_endpoints, registry, spec_problem
from dranode.tools.readers.processes import online_for_pods, pods_seen
from dranode.tools.readers.sources import ObjectSource


@dataclass(frozen=True, slots=True)
class ClaimReader:
    """Reads the facts about claims on one node.

    Attributes:
        host: the node.
        options: the paths of its folders.
        source: the source of claims and pods; None if there is none.
        pod_resources: kubelet's pod-resources socket.
        runtime: what is wrong with the container runtime's CDI and NRI.
        root: whether the command runs as root.
    """

    host: NodeHost
    options: ServeOptions
    source: ObjectSource | None
    pod_resources: str
    runtime: tuple[tuple[StopCause, Fault], ...] = ()
    root: bool = False

    def read(self, namespace: str, name: str, plugin: Plugin) -> ClaimFacts:
        """Read the facts about a claim, as far as they concern one driver.

        Raises:
            DranodeError: the claim or the ledger cannot be read.
        """
        claim = self.source.claim(namespace, name) if self.source is not None else None
        path = f"{self.options.kubelet_root.rstrip('/')}/plugins/{plugin.driver}/ledger.db"
        contents = read_ledger(self.host.place(path))
        record, other = _record(contents, namespace, name, claim)
        has_ledger = is_there(self.host.place(path))
        specs = Specs(self.host.place(self.options.cdi_dir), plugin.claim_kind)
        uses = self._uses(plugin.driver)
        dry = DryAnswer()
        if record is None and has_ledger and claim is not None and claim.status.allocation is not None:
            dry = dry_prepare(claim, contents, specs, plugin, self.options.node)
        containers, unseen = None, ""
        memory, memory_unseen = None, ""
        claim_uses = [use for use in uses or () if (use.namespace, use.claim) == (namespace, name)]
        if record is not None:
            ref = ClaimRef(namespace, name, record.uid)
            # Pods of a PodGroup, and pods that started after the Prepare, are not on record. kubelet knows them.
            used = with_users(record, (use.pod for use in claim_uses))
            containers, unseen = self._containers(used, ref, contents.records, uses)
            memory, memory_unseen = _memory(self.host.files, plugin, used, contents.records)
        return ClaimFacts(
            name=f"{namespace}/{name}",
            node=self.options.node,
            root=self.root,
            driver=plugin.driver,
            claim=claim,
            gone=self.source is not None and claim is None,
            serving=self._serving(plugin.driver),
            record=record,
            other_uid=other,
            damaged=_damage(contents, claim),
            ledger="" if has_ledger else path,
            same=_same(claim, record, plugin),
            refusal=dry.refusal,
            refusal_unseen=dry.unseen,
            spec=_spec(self.options, specs, record),
            spec_problem="" if record is None else spec_problem(specs, record),
            spec_unseen="" if record is None else _spec_unseen(specs, record),
            runtime=self.runtime,
            users=None if uses is None else tuple(dict.fromkeys(f"{use.pod}/{use.container}" for use in claim_uses)),
            containers=containers,
            containers_unseen=unseen,
            memory=memory,
            memory_unseen=memory_unseen,
        )

    def _containers(
        self, record: Record, claim: ClaimRef, records: tuple[Record, ...], uses: tuple[ClaimUse, ...] | None
    ) -> tuple[tuple[PlacedContainer, ...], str]:
        """Return the claim's running containers, and why they are unknown if they are."""
        names: dict[str, str] = {}
        # Containers' names are only needed to match them with kubelet's answer.
        if self.source is not None and uses is not None:
            for pod in pods_among(record.pods):
                names |= self.source.container_names(claim.namespace, pod.name)
        claims = ContainerClaims(records, uses, names)
        try:
            seen = pods_seen(self.host.files, pod_uids((record,)))
            return tuple(claims.running(record, claim, seen.containers, _online(self.host.files))), ""
        except MachineError as error:
            return (), str(error)

    def _serving(self, driver: str) -> bool | None:
        if self.host.folder_state(registry(self.options)) is PathState.MISSING:
            return None
        try:
            return any(
                endpoint.answers and endpoint.driver == driver for endpoint in read_endpoints(self.host, self.options)
            )
        except (PermissionError, HostError):
            return None

    def _uses(self, driver: str) -> tuple[ClaimUse, ...] | None:
        """Return which containers have which claims of the driver; None if kubelet does not say."""
        try:
            if self.host.socket_state(self.pod_resources) is not PathState.THERE:
                return None
        except PermissionError:
            return None
        try:
            return PodResources(self.host.place(self.pod_resources)).claims(driver)
        except PodResourcesError:
            return None


def _memory(
    files: Root, plugin: Plugin, record: Record, records: tuple[Record, ...]
) -> tuple[tuple[ContainerMemory, ...] | None, str]:
    """Return the memory of the claim's containers (see `claim_memory`), and why it is unknown if it is."""
    try:
        return claim_memory(files, plugin, record, records), ""
    except DranodeError as error:
        return (), str(error)


def _online(files: Root) -> CPUSet | None:
    """Return the online CPUs that pods may use; None if unknown, and then no CPU counts as offline."""
    try:
        return online_for_pods(files)
    except MachineError:
        return None


def _record(contents: Contents, namespace: str, name: str, claim: ResourceClaim | None) -> tuple[Record | None, str]:
    """Return the claim's record, and the UID of another claim of the same name that is on record."""
    named = [record for record in contents.records if (record.namespace, record.name) == (namespace, name)]
    uid = claim.metadata.uid if claim is not None else named[0].uid if named else ""
    claim_record = next((record for record in contents.records if record.uid == uid), None)
    return claim_record, next((record.uid for record in named if record.uid != uid), "")


def _damage(contents: Contents, claim: ResourceClaim | None) -> str:
    uid = claim.metadata.uid if claim is not None else ""
    return next((row.reason for row in contents.damaged if row.uid == uid), "")


def _same(claim: ResourceClaim | None, record: Record | None, plugin: Plugin) -> bool | None:
    if claim is None or record is None or claim.status.allocation is None:
        return None
    ref = ClaimRef.of(claim)
    try:
        return relation_to(allocated_claim(ref, claim, plugin), record) is not Relation.CHANGED
    except DranodeError:
        return None


def _spec(options: ServeOptions, specs: Specs, record: Record | None) -> str:
    """Return the path of the claim's CDI spec; empty if there is no record from which it could be written."""
    if record is None or record.lost:
        return ""
    return f"{options.cdi_dir}/{specs.path(record.uid).name}"


def _spec_unseen(specs: Specs, record: Record) -> str:
    """Return why the claim's CDI spec cannot be read by this process; empty if it can, or does not exist."""
    try:
        read_regular(specs.path(record.uid))
    except PermissionError as error:
        return error.strerror or str(error)
    except OSError:
        return ""
    return ""


def claim_memory(
    files: Root, plugin: Plugin, record: Record, records: Iterable[Record]
) -> tuple[ContainerMemory, ...] | None:
    """Return the memory of the claim's running containers; None if the claim does not determine their memory.

    Args:
        files: the node's files.
        plugin: the claim's driver.
        record: the claim's record.
        records: all records of the driver, because a container may have several claims.

    Raises:
        DranodeError: the record, the cgroups or the processes cannot be read.
    """
    if not isinstance(plugin, Pins):
        return None
    if not expected_memory([plugin.pinned(record)]):
        return None
    claims = [RecordedClaim.of(plugin.driver, other, _held(plugin, other)) for other in records]
    cgroups = Cgroups(files)
    memory = []
    for container in pods_seen(files, pod_uids([record])).containers:
        parts = claims_in(claims, container.env)
        if any(claim.record.uid == record.uid for claim, _ in parts):
            expected = expected_memory(held for _, held in parts)
            actual = cgroups.memory(container.cgroup, expected)
            memory.append(_container_memory(container.id[:12] or container.folder, parts, expected, actual))
    return tuple(memory)


def _container_memory(container: str, parts: RecordedParts, expected: Effective, actual: Effective) -> ContainerMemory:
    # A claim of another driver may restrict the container to some of these nodes.
    if expected.nodes is not None and actual.nodes is not None and actual.nodes <= expected.nodes:
        expected = replace(expected, nodes=actual.nodes)
    ok = container_has_memory(parts, expected, actual)
    if ok is not False:
        return ContainerMemory(container, ok, memory_in_words(actual))
    limits = dict(actual.hugepages)
    short = tuple((size, amount) for size, amount in expected.hugepages if limits.get(size, amount) < amount)
    return ContainerMemory(container, ok, difference(*replace(expected, hugepages=short).beside(actual)))


def _held(pins: Pins, record: Record) -> PinnedClaim | None:
    """Return what a claim's containers are pinned to; None if the record, perhaps another claim's, is not usable."""
    try:
        return pins.pinned(record)
    except DranodeError:
        return None


@dataclass(frozen=True, slots=True)
class DryAnswer:
    """The outcome of a Prepare that is only decided.

    Attributes:
        refusal: why it would be refused; empty if it would not be.
        unseen: why it cannot be decided; empty if it can.
    """

    refusal: str = ""
    unseen: str = ""


def dry_prepare(claim: ResourceClaim, contents: Contents, specs: Specs, plugin: Plugin, pool: str) -> DryAnswer:
    """Decide a Prepare of a claim that is not on record.

    Args:
        claim: the claim; it is allocated.
        contents: the driver's ledger.
        specs: its CDI specs.
        plugin: the driver, with the options that it runs with.
        pool: the name of the pool in which the node's devices are published.
    """
    try:
        inventory = plugin.discover()
        spec_uids = specs.uids()
    except DranodeError as error:
        return DryAnswer(unseen=str(error))
    other = _other_options(claim, plugin, inventory)
    if other:
        return DryAnswer(unseen=other)
    ref = ClaimRef.of(claim)
    records, blocked = _known(contents, spec_uids, specs, plugin)
    held = Held.of(holdings((record for record in records if record.uid != ref.uid), plugin.sources))
    try:
        decide_claim(ref, claim, None, Circumstances(plugin, inventory, held, pool, blocked))
    except ClaimError as error:
        return DryAnswer(refusal=str(error))
    except Exception as error:  # noqa: BLE001 - the driver would refuse the claim with the same sentence
        return DryAnswer(refusal=str(refused_by_error(ref, plugin.driver, error)))
    return DryAnswer()


def _other_options(claim: ResourceClaim, plugin: Plugin, inventory: Inventory) -> str:
    """Return why this driver differs from the one that serves: it does not have the allocated devices."""
    try:
        results = results_of(claim.status.allocation, plugin.driver)
    except DranodeError:
        return ""
    missing = [result.device for result in results if inventory.device(result.device) is None]
    if not missing:
        return ""
    return (
        f"with these options {plugin.driver} has no device {', '.join(missing)} here; pass the options of serve, or "
        "check with dranode slices whether the hardware is gone"
    )


def _known(
    contents: Contents, spec_uids: frozenset[str], specs: Specs, plugin: Plugin
) -> tuple[list[Record], str | None]:
    """Return the records, recovered from CDI specs if necessary, and why no new claim may be prepared, if so."""
    blocked = [missing_claims(contents.loss, plugin.driver)] if contents.loss else []
    damaged = {
        row.uid: f"its row is damaged ({row.reason}) and no CDI spec says what it holds" for row in contents.damaged
    }
    on_file = {record.uid: record for record in contents.records}
    records: list[Record] = []
    for uid in sorted({*on_file, *damaged, *spec_uids}):
        record = on_file.get(uid)
        if record is None or record.lost:
            record = SpecRecords(plugin, specs).record(uid)
        records.append(record)
        if record.lost:
            blocked.append(unknown_claim(uid, damaged.get(uid, LOST_RECORD), plugin.driver))
    return records, blocked[0] if blocked else None
