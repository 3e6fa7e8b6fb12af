"""Claims, containers and the results of decisions about them, for tests of enforcement."""

from dranode.api.cpuset import CPUSet
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.users import PodSandbox
from dranode.driver.pinning.container_index import ContainerChange, Containers
from dranode.driver.pinning.containers import Container, ContainerUpdate
from dranode.driver.pinning.enforcement import Allowed, CreationRefused, create, synchronize
from dranode.driver.pinning.identity import Evidence
from dranode.driver.pinning.snapshot import PinnedClaim, PinnedClaims, PinSnapshot

VARIABLE = "DRA_CPUSET_"
KIND = "dra.k8s.io/cpu"
NONE = Containers()


def pod(uid: str) -> PodSandbox:
    return PodSandbox(f"sandbox-{uid}", uid, "default", uid)


def container(
    name: str, of: str = "p1", env: tuple[str, ...] = (), cpus: str = "", *, identity: str = "", started: bool = False
) -> Container:
    return Container(identity or f"{of}-{name}", name, pod(of), env=env, cpus=CPUSet.parse(cpus), started=started)


def env(uid: str, cpus: str) -> tuple[str, ...]:
    return (f"{VARIABLE}{uid}={cpus}",)


def claim(
    uid: str,
    cpus: str,
    *pods: str,
    held: str = "",
    mems: str = "",
    shared_in_pod: bool = False,
    lift_quota: bool = False,
) -> PinnedClaim:
    return PinnedClaim(
        ClaimRef("default", f"claim-{uid}", uid),
        CPUSet.parse(cpus),
        CPUSet.parse(held or cpus),
        frozenset(pods or ("p1",)),
        shared_in_pod=shared_in_pod,
        mems=CPUSet.parse(mems),
        lift_quota=lift_quota,
    )


def snapshot(*claims: PinnedClaim, online: str = "0-7", reserved: str = "", mems: str = "") -> PinSnapshot:
    return PinSnapshot(
        PinnedClaims.of(claims),
        CPUSet.parse(online),
        CPUSet.parse(reserved),
        CPUSet.parse(mems),
        variable=VARIABLE,
        cdi_kind=KIND,
    )


def made(containers: Containers, on_record: PinSnapshot, one: Container, evidence: Evidence | None = None) -> Allowed:
    decision = create(containers, on_record, one, evidence or Evidence())
    assert isinstance(decision, Allowed), decision
    return decision


def refusal(containers: Containers, on_record: PinSnapshot, one: Container, evidence: Evidence | None = None) -> str:
    decision = create(containers, on_record, one, evidence or Evidence(reread=True))
    assert isinstance(decision, CreationRefused), decision
    return decision.reason


def masks(updates: tuple[ContainerUpdate, ...]) -> dict[str, str]:
    return {each.container_id: str(each.resources.cpus) for each in updates}


def after(before: Containers, decision: Allowed | ContainerChange) -> Containers:
    """The state after a decision."""
    known = Containers(before)
    known.apply(decision.change if isinstance(decision, Allowed) else decision)
    return known


def ids(containers: Containers) -> list[str]:
    return sorted(each.container.id for each in containers)


def running(on_record: PinSnapshot, *listed: Container) -> Containers:
    decision = synchronize(on_record, listed, Evidence(reread=True))
    assert isinstance(decision, Allowed)
    return after(NONE, decision)


# --- CreateContainer, A.11: 8 CPUs 0-7, none reserved ---


A, B = claim("a", "0-1"), claim("b", "2-3", "p1", "p2")
