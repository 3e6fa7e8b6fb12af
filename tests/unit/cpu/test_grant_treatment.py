"""How the containers of a claim are treated, from its configurations through the ledger's JSON."""

from __future__ import annotations

from typing import Any

import pytest

from dranode.cpu.config import CFSQuota, CPUPolicy, CPUSharing, Memory
from dranode.cpu.treatment import Treatment, claim_treatment, treatment_state
from dranode.driver.core.api.errors import DocumentError
from dranode.driver.core.claims.grant import Grant


def grants(*states: Any, admin: bool = False) -> list[Grant]:
    return [Grant(request="r", pool="p", device="d", state=state, admin=admin) for state in states]


def test_what_is_not_by_default_comes_back_from_the_state() -> None:
    state = treatment_state(CPUPolicy(sharing=CPUSharing.POD, memory=Memory.LOCAL), "0-1")
    assert state == {"sharing": "pod", "memory": "local", "mems": "0-1"}
    assert claim_treatment(grants(state)) == Treatment(sharing=CPUSharing.POD, memory=Memory.LOCAL, mems="0-1")


def test_defaults_leave_no_state() -> None:
    assert treatment_state(CPUPolicy(), "") is None
    assert claim_treatment(grants(None)) == Treatment()
    assert claim_treatment([]) == Treatment()


def test_a_claim_is_shared_only_if_every_result_is() -> None:
    assert claim_treatment(grants({"sharing": "pod"}, None)).sharing is CPUSharing.CONTAINER
    assert claim_treatment([*grants({"sharing": "pod"}), *grants(None, admin=True)]).sharing is CPUSharing.POD


def test_one_result_lifts_the_quota_of_the_claim() -> None:
    assert claim_treatment(grants(None, {"cfsQuota": "unlimited"})).cfs_quota is CFSQuota.UNLIMITED


def test_memory_is_local_to_all_cpus_of_the_claim_or_to_none() -> None:
    local, other = {"memory": "local", "mems": "0"}, {"memory": "local", "mems": "2"}
    assert claim_treatment(grants(local, other)).mems == "0,2"
    assert claim_treatment(grants(local, None)) == Treatment()


def test_a_state_that_is_not_ours_is_an_error() -> None:
    with pytest.raises(DocumentError, match="sharing"):
        claim_treatment(grants({"sharing": "everybody"}))
