"""The manual's page on pods that do not start has a row for each cause, and tests seed what it says."""

from __future__ import annotations

import re
from pathlib import Path

from dranode.driver.core.diagnosis.causes import StopCause
from tests.unit.kubectl.test_causes import SEEDS

PAGE = (Path(__file__).parents[3] / "docs" / "pod-does-not-start.md").read_text()
# Seeded on a node, where there are records, specs, a runtime's configuration and cgroups.
ON_NODE = {
    StopCause.NOT_PREPARED,
    StopCause.RECORD_UNUSABLE,
    StopCause.CDI_SPEC_UNUSABLE,
    StopCause.NRI_OFF,
    StopCause.WRONG_CPUS,
    StopCause.WRONG_MEMORY,
}
# Seeded where they stop nothing, or concern a claim alone.
ELSEWHERE = {StopCause.CLAIM_UNNAMED, StopCause.CLAIM_UNUSED}


def test_the_page_has_a_row_for_each_cause_in_the_order_of_the_way() -> None:
    assert re.findall(r"^\| `([a-z-]+)` \|", PAGE, re.MULTILINE) == [cause.value for cause in StopCause]


def test_every_row_says_what_to_do() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    assert all(len([cell for cell in row.strip("|").split(" | ") if cell.strip()]) == 3 for row in rows)


def test_every_cause_is_seeded() -> None:
    assert {seed.cause for seed in SEEDS} | ON_NODE | ELSEWHERE == set(StopCause)
