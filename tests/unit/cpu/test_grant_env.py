"""The claim's CPUs in its CDI spec, written and read back, in dra-driver-cpu's form."""

import pytest

from dranode.api.cpuset import CPUSet
from dranode.cdi.spec import CDIDevice, ContainerEdits, Spec
from dranode.cpu.options import Isolation
from dranode.cpu.treatment import claim_edits, spec_cpus
from dranode.driver.claims.grant import ClaimGrant
from tests.fakes.cpu import cpus


def spec(*env: str) -> Spec:
    device = CDIDevice(name="claim-u", container_edits=ContainerEdits(env=env))
    return Spec(cdi_version="0.8.0", kind="dra.k8s.io/cpu", devices=(device,))


def test_a_claim_that_runs_on_all_it_holds_has_one_variable() -> None:
    assert claim_edits("u", cpus("8,0-3"), cpus("0-3,8")) == ContainerEdits(env=("DRA_CPUSET_u=0-3,8",))


def test_a_claim_without_cpus_has_no_edits() -> None:
    assert claim_edits("u", CPUSet(), CPUSet()) is None


@pytest.mark.parametrize(("on", "held"), [("0-3,8", "0-3,8"), ("0-1", "0-1,8-9")])
def test_written_edits_are_read_back(on: str, held: str) -> None:
    edits = claim_edits("u", cpus(on), cpus(held))
    assert edits is not None
    assert spec_cpus("u", spec(*edits.env)) == ClaimGrant(grants=(), edits=edits, cpus=cpus(on), held=cpus(held))


def test_isolation_and_the_shared_pool_are_written_and_read_back() -> None:
    edits = claim_edits("u", cpus("2"), cpus("2"), Isolation.QUIET, shared=True)
    assert edits is not None
    assert edits.env == ("DRA_CPUSET_u=2", "DRANODE_ISOLATION_u=quiet", "DRANODE_SHARED_u=true")
    assert spec_cpus("u", spec(*edits.env)) == ClaimGrant(grants=(), edits=edits, cpus=cpus("2"), held=cpus("2"))
    assert spec_cpus("u", spec("DRA_CPUSET_u=2", "DRANODE_ISOLATION_u=silent")) is None


@pytest.mark.parametrize(
    "env",
    [(), ("DRA_CPUSET_v=0-1",), ("DRA_CPUSET_u=",), ("DRA_CPUSET_u=a-b",), ("DRA_CPUSET_u",), ("DRANODE_HELD_u=1",)],
)
def test_a_spec_without_the_claims_variable_recovers_nothing(env: tuple[str, ...]) -> None:
    assert spec_cpus("u", spec(*env)) is None


def test_the_cpus_that_a_claim_runs_on_are_always_held() -> None:
    got = spec_cpus("u", spec("DRA_CPUSET_u=0-1", "DRANODE_HELD_u=8"))
    assert got is not None
    assert got.held == cpus("0-1,8")
