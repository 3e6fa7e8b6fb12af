"""The containers that run with a claim, with the CPUs that the kernel gives them and those that they should have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.api.errors import MachineError
from dranode.driver.core.claims.expected_cpus import expected_cpus, given_cpus
from dranode.driver.core.claims.record import Record
from dranode.driver.core.claims.uses import ClaimUse
from dranode.driver.core.diagnosis.claim import RunningContainer
from dranode.driver.core.diagnosis.placement import InjectedVariables, Process, in_container
from dranode.driver.machine.cgroups import Cgroups
from dranode.driver.machine.pod_cgroups import containers_of
from dranode.driver.machine.processes import online, processes
from dranode.driver.machine.root import Root
from dranode.kubectl.readers.sources import ObjectSource


@dataclass(frozen=True, slots=True)
class ContainerReader:
    """Reads which containers of a node run with a claim.

    Attributes:
        files: the node's files.
        records: the claims that one driver has on record.
        uses: which containers kubelet gave that driver's claims; None if kubelet does not say.
        source: where the names of containers come from; None for nowhere.
    """

    files: Root
    records: tuple[Record, ...]
    uses: tuple[ClaimUse, ...] | None
    source: ObjectSource | None

    def read(self, record: Record, namespace: str, name: str) -> Iterator[RunningContainer]:
        """Yield the running containers of the claim's pods, without those that are known not to have the claim.

        Raises:
            PermissionError: the cgroups may not be looked into.
        """
        cgroups = Cgroups(self.files)
        cpus_online = _online(self.files)
        variables = InjectedVariables.of(self.records)
        # Which requests of a claim a container has is in its environment alone: kubelet names all of the claim's.
        seen = tuple(processes(self.files)) if variables.parts else ()
        for pod in record.pods:
            # A container's name only tells its claims together with kubelet's answer.
            source = self.source if self.uses is not None else None
            names = source.container_names(namespace, pod.name) if source is not None else {}
            claims = self._by_kubelet(record, (namespace, name), pod.name) or self._possible(record, pod.uid)
            for each in containers_of(self.files, cgroups, pod.uid):
                container = names.get(each.id, "")
                if container and container not in claims:
                    continue  # a container of the pod without the claim
                parts = variables.parts_in(_env(seen, each.id))
                possible = [claims[container]] if container else claims.values()
                mine = [cpus for theirs in possible if (cpus := _expected(theirs, parts, cpus_online)) is not None]
                # Without CPUs by its claims it belongs to the shared pool, like a container without a claim.
                if mine:
                    expected = next((cpus for cpus in mine if each.cpus <= cpus), mine[0])
                    yield RunningContainer(container, each.path, each.cpus, expected)

    def _by_kubelet(self, record: Record, claim: tuple[str, str], pod: str) -> Mapping[str, tuple[Record, ...]]:
        """Return the claims on record of the pod's containers that have the claim, by the container's name."""
        # A recovered record has no name of its own, but the name of this claim is known.
        named = {**{(one.namespace, one.name): one for one in self.records}, claim: record}
        containers: dict[str, list[Record]] = {}
        for use in self.uses or ():
            used = named.get((use.namespace, use.claim))
            if (use.namespace, use.pod) == (claim[0], pod) and used is not None:
                containers.setdefault(use.container, []).append(used)
        return {name: tuple(theirs) for name, theirs in containers.items() if record in theirs}

    def _possible(self, record: Record, pod: str) -> Mapping[str, tuple[Record, ...]]:
        """Return what a container may have without kubelet's answer: the claim alone, or all claims of its pod."""
        theirs = (one for one in self.records if any(each.uid == pod for each in one.pods))
        return {"": (record,), "*": tuple(theirs)}


def _expected(records: Iterable[Record], parts: frozenset[tuple[str, int]], online: CPUSet | None) -> CPUSet | None:
    """Return where a container should run that has these claims, or these parts of them."""
    given = [given_cpus(one).of_parts([index for uid, index in parts if uid == one.uid]) for one in records]
    return expected_cpus(given, CPUSet.union(given) if online is None else online)


def _env(processes_seen: Iterable[Process], container: str) -> frozenset[str]:
    """Return the names of the environment variables of a container's processes."""
    return frozenset(name for one in processes_seen if in_container(one, container) for name in one.env or ())


def _online(files: Root) -> CPUSet | None:
    """Return the CPUs that are online; None if the node's files do not say, and then no CPU counts as offline."""
    try:
        return online(files)
    except MachineError:
        return None
