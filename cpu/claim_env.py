"""How a claim's CPUs are written into its CDI spec: the contract with containers, NRI plug-ins and dra-driver-cpu.

`DRA_CPUSET_<claim UID>=<cpu-list>` is dra-driver-cpu's, so that either driver can take over a node from the other.
Where a claim holds more CPUs than it runs on, `DRANODE_HELD_<claim UID>` says which.
"""

from __future__ import annotations

from typing import Final

from dranode.cdi.spec import ContainerEdits, Spec
from dranode.driver.core.cpuset import CPUSet
from dranode.driver.core.plugin import ClaimGrant

CDI_KIND: Final = "dra.k8s.io/cpu"
CPUSET_PREFIX: Final = "DRA_CPUSET_"
HELD_PREFIX: Final = "DRANODE_HELD_"


def claim_edits(uid: str, cpus: CPUSet, held: CPUSet) -> ContainerEdits | None:
    """What every container with the claim gets; None for a claim without CPUs."""
    if not cpus:
        return None
    env = [f"{CPUSET_PREFIX}{uid}={cpus}"]
    if held != cpus:
        env.append(f"{HELD_PREFIX}{uid}={held}")
    return ContainerEdits(env=tuple(env))


def read_spec(uid: str, spec: Spec) -> ClaimGrant | None:
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
