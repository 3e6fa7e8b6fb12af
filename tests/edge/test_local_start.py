"""How the local run reports that it cannot start, and what it does when it cannot clean up."""

from pathlib import Path

import pytest

from dranode.api.errors import ClaimError, DranodeError
from dranode.api.resource import ResourceClaim
from dranode.driver.claims.grant import Grant
from dranode.driver.claims.held import ClaimRef
from dranode.sim.allocator.features import Features
from dranode.sim.cluster.workload import PodWithClaims, WorkloadDocuments
from dranode.sim.local import run as local_run_module
from tests.fakes.drivers import Board, Lamps, WiredLamps, allocated_claim


def test_a_missing_short_folder_for_sockets_is_reported_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_run_module, "_SHORT", str(tmp_path / "missing"))
    begun = local_run_module.local_run([Lamps()], "node", tmp_path / ("deep" * 30), Features(), lambda _: None)
    with pytest.raises(DranodeError, match=r"created in .*missing: No such file or directory; pass a folder"), begun:
        pass


def test_a_claim_that_cannot_be_unprepared_does_not_keep_others_prepared(tmp_path: Path) -> None:
    class Stuck(WiredLamps):
        def restore(self, claim: ClaimRef, grants: tuple[Grant, ...]) -> None:
            if claim.name == "b":
                raise ClaimError("the lamp cannot be put out")
            super().restore(claim, grants)

    claims = [allocated_claim(name, Stuck.driver, [f"lamp-{number}"]) for number, name in enumerate("abc")]
    pods = (PodWithClaims("default/p", tuple(claims[:1])), PodWithClaims("default/q", tuple(claims[1:])))
    with local_run_module.local_run([Stuck(Board())], "node", tmp_path, Features(), lambda _: None) as run:
        assert [result.error for result in run.run(WorkloadDocuments(pods, ()), lambda _: None)] == [None] * 3
        assert [sentence for sentence in run.unprepare() if "the lamp cannot be put out" in sentence]
        assert [record.name for record in run.records()] == ["b"]
        assert [claim.metadata.name for claim in run.store.list(ResourceClaim)] == ["b"]
