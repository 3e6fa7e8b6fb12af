"""What there is to know of one claim: API server or store, ledger, CDI directory, kubelet, cgroups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dranode.cdi.loader.validate import validate
from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.api.errors import DranodeError
from dranode.driver.core.api.resource import ResourceClaim
from dranode.driver.core.claims.held import ClaimRef
from dranode.driver.core.claims.plugin import Plugin
from dranode.driver.core.claims.prepare import Known, allocated, known
from dranode.driver.core.claims.record import Record, claim_spec, prepared_devices
from dranode.driver.core.claims.uses import ClaimUse
from dranode.driver.core.diagnosis.claim import ClaimFacts, RunningContainer
from dranode.driver.core.diagnosis.facts import PathState, ServeOptions
from dranode.driver.doctor.host import NodeHost
from dranode.driver.doctor.node import read_endpoints, registry
from dranode.driver.doctor.sources import ObjectSource
from dranode.driver.kubelet.podresources import PodResources, PodResourcesError
from dranode.driver.machine.cgroups import Cgroups
from dranode.driver.machine.pod_cgroups import containers_of
from dranode.driver.node.ledger import Contents, read_ledger
from dranode.driver.node.specs import Specs


@dataclass(frozen=True, slots=True)
class ClaimReader:
    """Reads what there is of a claim on one node.

    Attributes:
        host: the node.
        wanted: where its folders are.
        source: where claims and pods come from; None for none.
        pod_resources: kubelet's socket.
    """

    host: NodeHost
    wanted: ServeOptions
    source: ObjectSource | None
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
        seen = self.host.place(path).exists()
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
            ledger="" if seen else path,
            same=_same(claim, record, plugin),
            spec=_spec(self.wanted, specs, record),
            spec_problem="" if record is None else _spec_problem(specs, record),
            spec_unseen="" if record is None else _spec_unseen(specs, record),
            users=None if given is None else tuple(dict.fromkeys(f"{one.pod}/{one.container}" for one in mine)),
            containers=None if record is None else tuple(self._running(record, contents, given, (namespace, name))),
        )

    def _serving(self, driver: str) -> bool | None:
        if self.host.folder_state(registry(self.wanted)) is PathState.MISSING:
            return None
        try:
            return any(one.answers and one.driver == driver for one in read_endpoints(self.host, self.wanted))
        except PermissionError:
            return None

    def _given(self, driver: str) -> tuple[ClaimUse, ...] | None:
        try:
            if self.host.socket_state(self.pod_resources) is not PathState.THERE:
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
        self, record: Record, contents: Contents, given: tuple[ClaimUse, ...] | None, claim: tuple[str, str]
    ) -> Iterator[RunningContainer]:
        cgroups = Cgroups(self.host.files)
        for pod in record.pods:
            # A name tells a container's claims together with kubelet's answer, and alone nothing.
            source = self.source if given is not None else None
            names = source.container_names(claim[0], pod.name) if source is not None else {}
            wanted = _wanted(given, (claim[0], pod.name), claim, _cpus(contents, record, claim))
            wanted = wanted or _possible(contents, record, pod.uid)
            for each in containers_of(self.host.files, cgroups, pod.uid):
                name = names.get(each.id, "")
                if name and name not in wanted:
                    continue  # a container of the pod without the claim
                mine = (wanted[name],) if name else tuple(wanted.values())
                expected = next((cpus for cpus in mine if each.cpus <= cpus), mine[0])
                yield RunningContainer(name, each.path, each.cpus, expected)


def _wanted(
    given: tuple[ClaimUse, ...] | None,
    pod: tuple[str, str],
    claim: tuple[str, str],
    cpus: Mapping[tuple[str, str], CPUSet],
) -> Mapping[str, CPUSet]:
    """Where the pod's containers that have the claim should run, by name: on the CPUs of all their claims."""
    claims: dict[str, list[tuple[str, str]]] = {}
    for one in given or ():
        if (one.namespace, one.pod) == pod:
            claims.setdefault(one.container, []).append((one.namespace, one.claim))
    return {
        name: CPUSet.union(cpus.get(one, CPUSet()) for one in theirs)
        for name, theirs in claims.items()
        if claim in theirs
    }


def _cpus(contents: Contents, record: Record, claim: tuple[str, str]) -> Mapping[tuple[str, str], CPUSet]:
    """The CPUs of every claim on record; a record that came back from its spec has no name, but `claim` is known."""
    named = {(one.namespace, one.name): CPUSet.parse(one.cpus) for one in contents.records}
    return {**named, claim: CPUSet.parse(record.cpus)}


def _possible(contents: Contents, record: Record, pod: str) -> Mapping[str, CPUSet]:
    """Where kubelet does not tell: a container may have the claim alone, or all of its pod's."""
    theirs = (one for one in contents.records if any(each.uid == pod for each in one.pods))
    return {"": CPUSet.parse(record.cpus), "*": CPUSet.union(CPUSet.parse(one.cpus) for one in theirs)}


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


def _spec(wanted: ServeOptions, specs: Specs, record: Record | None) -> str:
    """The claim's spec file on the node; empty if it needs none."""
    if record is None or claim_spec(specs.kind, record) is None:
        return ""
    return f"{wanted.cdi_dir}/{specs.path(record.uid).name}"


def _spec_unseen(specs: Specs, record: Record) -> str:
    """Why the claim's spec cannot be judged."""
    try:
        specs.path(record.uid).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _spec_problem(specs: Specs, record: Record) -> str:
    """Why a runtime would not find the claim's CDI devices."""
    if claim_spec(specs.kind, record) is None:
        return ""
    try:
        data = specs.path(record.uid).read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        return f"it is not there ({error.strerror}), so its containers fail with unresolvable CDI devices"
    except OSError:
        return ""
    verdict = validate(data)
    if verdict.problems:
        return f"no runtime loads it: {verdict.problems[0]}"
    spec = specs.read(record.uid)
    there = {f"{spec.kind}={device.name}" for device in spec.devices} if spec is not None else set()
    missing = {cdi for device in prepared_devices(specs.kind, record) for cdi in device.cdi} - there
    return f"it lacks the devices {', '.join(sorted(missing))}" if missing else ""
