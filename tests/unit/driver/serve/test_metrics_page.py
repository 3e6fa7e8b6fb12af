"""The metrics in the expressions on the page of metrics exist; `make tables` writes its tables."""

import re
from pathlib import Path

from release.reference import metric_rows

PAGE = (Path(__file__).parents[4] / "docs" / "metrics.md").read_text()


def test_every_expression_uses_existing_metrics() -> None:
    expressions = re.findall(r"^\| [^|]+\? \| `([^|]+)` \|$", PAGE, re.MULTILINE)
    assert len(expressions) >= 7
    named = {re.sub(r"_(total|count)$", "", name) for name in re.findall(r"dranode_[a-z_]+", " ".join(expressions))}
    assert named <= metric_rows().keys()
