"""Every cause that keeps a pod from starting is seeded by a test."""

from __future__ import annotations

from dranode.tools.diagnosis.steps import StopCause
from tests.unit.tools.kubectl.test_causes import SEEDS

# Seeded on a node, since they are about records, specs, a runtime's configuration or cgroups.
ON_NODE = {
    StopCause.NOT_PREPARED,
    StopCause.RECORD_UNUSABLE,
    StopCause.CDI_SPEC_UNUSABLE,
    StopCause.NRI_OFF,
    StopCause.WRONG_CPUS,
    StopCause.WRONG_MEMORY,
}
# Seeded where they stop nothing, or concern only a claim.
ELSEWHERE = {StopCause.CLAIM_UNNAMED, StopCause.CLAIM_UNUSED, StopCause.CLAIM_NOT_RELEASED}


def test_every_cause_is_seeded() -> None:
    assert {seed.cause for seed in SEEDS} | ON_NODE | ELSEWHERE == set(StopCause)
