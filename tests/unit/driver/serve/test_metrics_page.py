"""The expressions and Events on the manual's page of metrics exist; `make tables` writes its tables."""

from __future__ import annotations

import re
from pathlib import Path

from dranode.cpu.devices import NOT_FOR_PODS, OFFLINE
from dranode.driver.claims import events
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.users import PodSandbox
from release.reference import metric_rows

PAGE = (Path(__file__).parents[4] / "docs" / "metrics.md").read_text()


def test_every_expression_uses_existing_metrics() -> None:
    expressions = re.findall(r"^\| [^|]+\? \| `([^|]+)` \|$", PAGE, re.MULTILINE)
    assert len(expressions) >= 7
    named = {re.sub(r"_(total|count)$", "", name) for name in re.findall(r"dranode_[a-z_]+", " ".join(expressions))}
    assert named <= metric_rows().keys()


def test_every_event_is_on_the_page() -> None:
    claim, pod = ClaimRef("ns", "c", "u"), PodSandbox(id="s", name="p", namespace="ns", uid="pu")
    happened: list[events.Occurrence] = [
        events.PrepareFailed(claim, (), "no"),
        events.DriftRepaired(pod, (), "no"),
        events.Unpinned(pod, (), "no"),
        events.QuotaStillCaps(pod, (), "no"),
        events.HugePagesStillCapped(pod, (), "no"),
        events.RecordQuarantined("u", "no"),
        events.ClaimImpaired(claim, (), OFFLINE, "no"),
        events.MetadataMissing(claim, "no"),
        events.ClaimImpaired(claim, (), NOT_FOR_PODS, "no"),
        events.OrphanUnprepared(claim, "no"),
        events.EnforcementLost("no"),
    ]
    silent = {events.ClaimRestored}
    assert {type(each) for each in happened} | silent == set(events.Occurrence.__args__)
    reasons = {event.reason for each in happened for event in events.events_of(each, "node")}
    table = PAGE[PAGE.index("## Events") : PAGE.index("## Conditions")]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == reasons
