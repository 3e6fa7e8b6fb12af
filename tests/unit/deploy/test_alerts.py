"""Alert rules and dashboards use only metrics that exist, and every form in which the rules are shipped is the same."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from release.reference import metric_rows

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
RULES = yaml.safe_load((DEPLOY / "alerts" / "rules.yaml").read_text())
RULE = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"]}
(DASHBOARD,) = [json.loads(path.read_text()) for path in (DEPLOY / "dashboards").glob("*.json")]
PANELS = {panel["title"]: [target["expr"] for target in panel["targets"]] for panel in DASHBOARD["panels"]}
LISTED = {name: (kind, {"driver", "instance", *labels}) for name, (kind, labels, _) in metric_rows().items()}
EXPRESSIONS = [*(rule["expr"] for rule in RULE.values()), *(text for texts in PANELS.values() for text in texts)]


def unknown(expression: str) -> list[str]:
    """The names in an expression that are not metrics as Prometheus names them."""
    series = {name + "_total" if kind == "counter" else name for name, (kind, _) in LISTED.items()}
    series |= {name + "_count" for name, (kind, _) in LISTED.items() if kind == "histogram"}
    return [name for name in re.findall(r"\bdranode_\w+", expression) if name not in series]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_expression_uses_documented_metrics_and_labels(expression: str) -> None:
    names = re.findall(r"\bdranode_\w+", expression)
    assert names
    assert unknown(expression) == []
    grouped = {label for labels in re.findall(r"by \(([^)]*)\)", expression) for label in labels.split(", ")}
    for name in names:
        assert grouped <= LISTED[re.sub(r"_(total|count)$", "", name)][1], name


def test_an_unknown_metric_is_noticed() -> None:
    assert unknown("rate(dranode_claim_cpu_usage_seconds[5m])") == ["dranode_claim_cpu_usage_seconds"]
    assert unknown("dranode_claim_idle_total") == ["dranode_claim_idle_total"]


def test_the_prometheusrule_has_the_rules_of_the_file() -> None:
    manifest: dict[str, Any] = yaml.safe_load((DEPLOY / "components" / "alerts" / "prometheusrule.yaml").read_text())
    assert manifest["spec"] == RULES


def test_the_chart_has_the_rules_of_the_file() -> None:
    template = (DEPLOY / "chart" / "templates" / "alerts.yaml").read_text()
    (raw,) = re.findall(r"\{\{ `(.*?)` \}\}", template, re.DOTALL)
    assert yaml.safe_load(raw) == RULES


def test_panels_do_not_overlap_and_use_the_dashboards_source() -> None:
    places: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & places, panel["title"]
        assert max(x for x, _ in cells) < 24
        places |= cells
        assert panel["datasource"]["uid"] == "${datasource}"
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"]) == len(PANELS)
