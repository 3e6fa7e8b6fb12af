"""The manual has a row for each cause that keeps a pod from starting, and for each finding of `doctor`."""

from __future__ import annotations

import re
from pathlib import Path

from dranode.tools.diagnosis.steps import StopCause
from tests.unit.tools.kubectl.test_causes import SEEDS

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "pod-does-not-start.md").read_text()
FINDINGS = (ROOT / "docs" / "troubleshooting.md").read_text().partition("## What `doctor` names")[2]
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


def test_the_page_has_a_row_for_each_cause_in_the_order_of_the_stations() -> None:
    assert re.findall(r"^\| `([a-z-]+)` \|", PAGE, re.MULTILINE) == [cause.value for cause in StopCause]


def test_every_cause_is_seeded() -> None:
    assert {seed.cause for seed in SEEDS} | ON_NODE | ELSEWHERE == set(StopCause)


def test_the_troubleshooting_page_names_the_findings_of_our_drivers() -> None:
    folders = ("cpu", "gpu", "memory", "driver/pinning")
    sources = (path.read_text() for folder in folders for path in (ROOT / folder).rglob("*.py"))
    added = [code for source in sources for code in re.findall(r'HardwareProblem\(\s*"([a-z0-9-]+)"', source)]
    named = re.findall(r"^\| `([a-z0-9-]+)` \| [^|]+ \|$", FINDINGS, re.MULTILINE)
    assert added
    assert sorted(added) == sorted(named)
