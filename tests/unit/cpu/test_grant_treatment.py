"""How the containers of a claim are treated: from its configurations through the ledger's JSON."""

from typing import Any

import pytest

from dranode.api.errors import DocumentError
from dranode.cpu.config import CFSQuota, CPUPolicy, CPUSharing, Memory
from dranode.cpu.options import Isolation
from dranode.cpu.treatment import Treatment, claim_treatment, isolated_cpus, treatment_state
from dranode.driver.claims.grant import Grant
from dranode.driver.claims.record import Record
from tests.fakes.cpu import cpus


def grants(*states: Any, admin: bool = False) -> list[Grant]:
    return [Grant(request="r", pool="p", device="d", state=state, admin=admin) for state in states]


def test_everything_but_defaults_is_read_back_from_the_state() -> None:
    state = treatment_state(CPUPolicy(sharing=CPUSharing.POD, memory=Memory.LOCAL), cpus("0-1"))
    assert state == {"sharing": "pod", "memory": "local", "mems": "0-1"}
    assert claim_treatment(grants(state)) == Treatment(sharing=CPUSharing.POD, memory=Memory.LOCAL, mems=cpus("0-1"))


def test_defaults_leave_no_state() -> None:
    assert treatment_state(CPUPolicy(), cpus("")) is None
    assert claim_treatment(grants(None)) == Treatment()
    assert claim_treatment([]) == Treatment()


def test_a_claim_is_shared_only_if_every_result_is() -> None:
    assert claim_treatment(grants({"sharing": "pod"}, None)).sharing is CPUSharing.CONTAINER
    assert claim_treatment([*grants({"sharing": "pod"}), *grants(None, admin=True)]).sharing is CPUSharing.POD


def test_one_result_can_lift_the_claims_quota() -> None:
    assert claim_treatment(grants(None, {"cfsQuota": "unlimited"})).cfs_quota is CFSQuota.UNLIMITED


def test_memory_is_local_to_all_cpus_of_the_claim_or_to_none() -> None:
    local, other = {"memory": "local", "mems": "0"}, {"memory": "local", "mems": "2"}
    assert claim_treatment(grants(local, other)).mems == cpus("0,2")
    assert claim_treatment(grants(local, None)) == Treatment()


def test_a_claims_isolation_is_the_strongest_of_its_results() -> None:
    assert claim_treatment(grants({"isolation": "quiet"}, None)).isolation is Isolation.QUIET
    assert claim_treatment(grants({"isolation": "quiet"}, {"isolation": "partition"})).isolation is Isolation.PARTITION
    assert claim_treatment(grants({"isolation": "quiet"}, None, admin=True)).isolation is Isolation.CPUSET


def test_results_with_their_own_cpus_have_their_own_isolation() -> None:
    quiet, plain = (
        Grant(request=name, pool="p", device="d", state=state, cpus=cpus(listed), held=cpus(listed))
        for name, state, listed in (("a", {"isolation": "quiet"}, "0-1"), ("b", None, "2"))
    )
    record = Record(uid="u", grants=(quiet, plain), cpus=cpus("0-2"), held=cpus("0-2"))
    assert isolated_cpus(record, Isolation.QUIET) == cpus("0-1")
    assert isolated_cpus(record, Isolation.PARTITION) == cpus("")
    whole = Record(uid="u", grants=tuple(grants({"isolation": "quiet"}, None)), cpus=cpus("0-2"), held=cpus("0-2"))
    assert isolated_cpus(whole, Isolation.QUIET) == cpus("0-2")


def test_a_state_that_is_not_ours_is_an_error() -> None:
    with pytest.raises(DocumentError, match="sharing"):
        claim_treatment(grants({"sharing": "everybody"}))
