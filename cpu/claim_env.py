"""The variables that carry a claim's CPUs in its CDI spec: a contract with containers, NRI plug-ins, dra-driver-cpu.

`DRA_CPUSET_<claim UID>=<cpu-list>` is dra-driver-cpu's, so that either driver can take over a node from the other.
If a claim holds more CPUs than it runs on, `DRANODE_HELD_<claim UID>` lists the held CPUs. If they are isolated beyond
other containers, `DRANODE_ISOLATION_<claim UID>` says how far: `quiet` or `partition`. If containers
run on the shared pool besides, `DRANODE_SHARED_<claim UID>=true` says that only the CPUs of the first are their own.

Where a claim has several requests, each of its allocation results has a CDI device of its own besides, with
`DRANODE_CPUSET_<claim UID>_<number of the result>=<cpu-list>`, and `DRANODE_SHARED_` of that form: kubelet passes a
container those of the requests that it names. The claim's `DRANODE_SHARED_` is there if all of them asked for it.
"""

from __future__ import annotations

from typing import Final

from dranode.api.cpuset import CPUSet
from dranode.cdi.spec import ContainerEdits, Spec
from dranode.cpu.policies import Isolation
from dranode.driver.claims.grant import ClaimGrant

CDI_KIND: Final = "dra.k8s.io/cpu"
CPUSET_PREFIX: Final = "DRA_CPUSET_"
HELD_PREFIX: Final = "DRANODE_HELD_"
SHARED_PREFIX: Final = "DRANODE_SHARED_"
ISOLATION_PREFIX: Final = "DRANODE_ISOLATION_"
REQUEST_PREFIX: Final = "DRANODE_CPUSET_"


def claim_edits(
    uid: str, cpus: CPUSet, held: CPUSet, isolation: Isolation = Isolation.CPUSET, *, shared: bool = False
) -> ContainerEdits | None:
    """Return the edits that every container with the claim gets; None for a claim without CPUs."""
    if not cpus:
        return None
    env = [f"{CPUSET_PREFIX}{uid}={cpus}"]
    if held != cpus:
        env.append(f"{HELD_PREFIX}{uid}={held}")
    if isolation is not Isolation.CPUSET:
        env.append(f"{ISOLATION_PREFIX}{uid}={isolation}")
    if shared:
        env.append(f"{SHARED_PREFIX}{uid}=true")
    return _edits(*env)


def request_edits(uid: str, index: int, cpus: CPUSet, *, shared: bool = False) -> ContainerEdits:
    """Return the edits for containers that name the request of result number `index`; it may have no CPUs."""
    env = [f"{REQUEST_PREFIX}{uid}_{index}={cpus}"]
    if shared:
        env.append(f"{SHARED_PREFIX}{uid}_{index}=true")
    return _edits(*env)


def _edits(*env: str) -> ContainerEdits:
    return ContainerEdits(env=env)


def env_isolation(uid: str, edits: ContainerEdits | None) -> Isolation:
    """Return how far a claim's CPUs are isolated by what its containers get."""
    prefix = f"{ISOLATION_PREFIX}{uid}="
    levels = [entry.removeprefix(prefix) for entry in (edits.env if edits else ()) if entry.startswith(prefix)]
    return next((each for each in Isolation if each in levels), Isolation.CPUSET)


def spec_cpus(uid: str, spec: Spec) -> ClaimGrant | None:
    """Return the CPUs that a CDI spec grants a claim, or None if the spec has no valid entry of this claim."""
    edits = [device.container_edits for device in spec.devices]
    entries = dict(entry.partition("=")[::2] for edit in edits for entry in edit.env)
    try:
        cpus = CPUSet.parse(entries.get(f"{CPUSET_PREFIX}{uid}", ""))
        held = CPUSet.parse(entries.get(f"{HELD_PREFIX}{uid}", str(cpus)))
        isolation = Isolation(entries.get(f"{ISOLATION_PREFIX}{uid}", Isolation.CPUSET))
    except ValueError:
        return None
    held |= cpus
    if not cpus:
        return None
    given = claim_edits(uid, cpus, held, isolation, shared=entries.get(f"{SHARED_PREFIX}{uid}") == "true")
    return ClaimGrant(grants=(), edits=given, cpus=cpus, held=held)
