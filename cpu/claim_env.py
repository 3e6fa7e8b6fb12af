"""How a claim's CPUs are written into its CDI spec: the contract with containers, NRI plug-ins and dra-driver-cpu.

`DRA_CPUSET_<claim UID>=<cpu-list>` is dra-driver-cpu's, so that either driver can take over a node from the other.
Where a claim holds more CPUs than it runs on, `DRANODE_HELD_<claim UID>` says which.

Where a claim has several requests, each of its allocation results has a CDI device of its own besides, with
`DRANODE_CPUSET_<claim UID>_<number of the result>=<cpu-list>`: kubelet passes a container those of the requests that it
names.
"""

from __future__ import annotations

from typing import Final

from dranode.cdi.spec import ContainerEdits, Spec
from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.claims.grant import ClaimGrant

CDI_KIND: Final = "dra.k8s.io/cpu"
CPUSET_PREFIX: Final = "DRA_CPUSET_"
HELD_PREFIX: Final = "DRANODE_HELD_"
REQUEST_PREFIX: Final = "DRANODE_CPUSET_"


def claim_edits(uid: str, cpus: CPUSet, held: CPUSet) -> ContainerEdits | None:
    """What every container with the claim gets; None for a claim without CPUs."""
    if not cpus:
        return None
    env = [f"{CPUSET_PREFIX}{uid}={cpus}"]
    if held != cpus:
        env.append(f"{HELD_PREFIX}{uid}={held}")
    return ContainerEdits(env=tuple(env))


def request_edits(uid: str, index: int, cpus: CPUSet) -> ContainerEdits:
    """What a container gets that names the request of the claim's result number `index`; it may have no CPUs."""
    return ContainerEdits(env=(f"{REQUEST_PREFIX}{uid}_{index}={cpus}",))


def spec_cpus(uid: str, spec: Spec) -> ClaimGrant | None:
    """What a CDI spec says the claim was given; None if it says nothing of this claim that can be believed."""
    edits = [device.container_edits for device in spec.devices]
    entries = dict(entry.partition("=")[::2] for edit in edits for entry in edit.env)
    try:
        cpus = CPUSet.parse(entries.get(f"{CPUSET_PREFIX}{uid}", ""))
        held = CPUSet.parse(entries.get(f"{HELD_PREFIX}{uid}", str(cpus)))
    except ValueError:
        return None
    held |= cpus
    return ClaimGrant(grants=(), edits=claim_edits(uid, cpus, held), cpus=cpus, held=held) if cpus else None
