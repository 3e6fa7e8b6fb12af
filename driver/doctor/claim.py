"""What there is to know of one claim: API server or store, ledger, CDI directory, kubelet, cgroups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dranode.cdi.validate import validate
from dranode.driver.core.claim_uses import ClaimUse
from dranode.driver.core.cpuset import CPUSet
from dranode.driver.core.diagnosis import State, Wanted
from dranode.driver.core.diagnosis_claim import ClaimFacts, RunningContainer
from dranode.driver.core.errors import DranodeError
from dranode.driver.core.held import ClaimRef
from dranode.driver.core.plugin import Plugin
from dranode.driver.core.prepare import Known, allocated, known
from dranode.driver.core.record import Record, claim_spec, prepared_devices
from dranode.driver.core.resource import ResourceClaim
from dranode.driver.doctor.cgroups import containers_of
from dranode.driver.doctor.host import Host
from dranode.driver.doctor.node import read_endpoints
from dranode.driver.doctor.sources import Source
from dranode.driver.kubelet.podresources import PodResources, PodResourcesError
from dranode.driver.ledger import Contents, read_ledger
from dranode.driver.specs import Specs


@dataclass(frozen=True, slots=True)
class ClaimReader:
    """Reads what there is of a claim on one node.

    Attributes:
        host: the node.
        wanted: where its folders are.
        source: where claims and pods come from; None for none.
        pod_resources: kubelet's socket.
    """

    host: Host
    wanted: Wanted
    source: Source | None
    pod_resources: str

    def read(self, namespace: str, name: str, plugin: Plugin) -> ClaimFacts:
        """What there is of the claim, as far as it concerns one driver.

        Raises:
            DranodeError: the claim or the ledger cannot be read.
        """
        claim = self.source.claim(namespace, name) if self.source is not None else None
        path = f"{self.wanted.kubelet_root.rstrip('/')}/plugins/{plugin.driver}/ledger.db"
        contents = read_ledger(self.host.place(path))
        record, other = _record(contents, namespace, name, claim)
        specs = Specs(self.host.place(self.wanted.cdi_dir), plugin.cdi_kind or f"{plugin.driver}/claim")
        given = self._given(plugin.driver)
        mine = [one for one in given or () if (one.namespace, one.claim) == (namespace, name)]
        return ClaimFacts(
            name=f"{namespace}/{name}",
            node=self.wanted.node,
            driver=plugin.driver,
            claim=claim,
            gone=self.source is not None and claim is None,
            serving=self._serving(plugin.driver),
            record=record,
            other_uid=other,
            damaged=_damage(contents, claim),
            same=_same(claim, record, plugin),
            spec=_spec(self.wanted, specs, record),
            spec_problem="" if record is None else _spec_problem(specs, record),
            users=None if given is None else tuple(dict.fromkeys(f"{one.pod}/{one.container}" for one in mine)),
            containers=None if record is None else tuple(self._running(record, contents, given)),
        )

    def _serving(self, driver: str) -> bool | None:
        try:
            return any(one.answers and one.driver == driver for one in read_endpoints(self.host, self.wanted))
        except PermissionError:
            return None

    def _given(self, driver: str) -> tuple[ClaimUse, ...] | None:
        try:
            if self.host.socket_state(self.pod_resources) is not State.THERE:
                return None
        except PermissionError:
            return None
        asked = PodResources(self.host.place(self.pod_resources))
        try:
            return asked.claims(driver)
        except PodResourcesError:
            return None
        finally:
            asked.close()

    def _running(
        self, record: Record, contents: Contents, given: tuple[ClaimUse, ...] | None
    ) -> Iterator[RunningContainer]:
        cpus = {(one.namespace, one.name): CPUSet.parse(one.cpus) for one in contents.records}
        for pod in record.pods:
            names = self.source.container_names(record.namespace, pod.name) if self.source is not None else {}
            for folder, id_, effective in containers_of(self.host, pod.uid):
                name = names.get(id_, "")
                theirs = [
                    one
                    for one in given or ()
                    if (one.namespace, one.pod, one.container) == (record.namespace, pod.name, name)
                ]
                if name and given is not None and not theirs:
                    continue  # a container of the pod without a claim
                expected = CPUSet.union(cpus.get((one.namespace, one.claim), CPUSet()) for one in theirs)
                yield RunningContainer(name, folder, effective, expected or CPUSet.parse(record.cpus))


def _record(contents: Contents, namespace: str, name: str, claim: ResourceClaim | None) -> tuple[Record | None, str]:
    """The claim's record, and the UID of another claim of its name that is on record."""
    named = [one for one in contents.records if (one.namespace, one.name) == (namespace, name)]
    uid = claim.metadata.uid if claim is not None else named[0].uid if named else ""
    mine = next((one for one in contents.records if one.uid == uid), None)
    return mine, next((one.uid for one in named if one.uid != uid), "")


def _damage(contents: Contents, claim: ResourceClaim | None) -> str:
    uid = claim.metadata.uid if claim is not None else ""
    return next((row.reason for row in contents.damaged if row.uid == uid), "")


def _same(claim: ResourceClaim | None, record: Record | None, plugin: Plugin) -> bool | None:
    if claim is None or record is None or claim.status.allocation is None:
        return None
    ref = ClaimRef(claim.metadata.namespace, claim.metadata.name, claim.metadata.uid)
    try:
        return known(allocated(ref, claim, plugin), record) is not Known.CHANGED
    except DranodeError:
        return None


def _spec(wanted: Wanted, specs: Specs, record: Record | None) -> str:
    """The claim's spec file on the node; empty if it needs none."""
    if record is None or claim_spec(specs.kind, record) is None:
        return ""
    return f"{wanted.cdi_dir}/{specs.path(record.uid).name}"


def _spec_problem(specs: Specs, record: Record) -> str:
    """Why a runtime would not find the claim's CDI devices."""
    if claim_spec(specs.kind, record) is None:
        return ""
    try:
        data = specs.path(record.uid).read_bytes()
    except OSError as error:
        return f"it is not there ({error.strerror}), so its containers fail with unresolvable CDI devices"
    verdict = validate(data)
    if verdict.problems:
        return f"no runtime loads it: {verdict.problems[0]}"
    spec = specs.read(record.uid)
    there = {f"{spec.kind}={device.name}" for device in spec.devices} if spec is not None else set()
    missing = {cdi for device in prepared_devices(specs.kind, record) for cdi in device.cdi} - there
    return f"it lacks the devices {', '.join(sorted(missing))}" if missing else ""
