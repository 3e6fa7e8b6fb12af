"""Writes the tables of the manual that the code declares: metrics, and the findings of `doctor`.

`make tables` replaces everything in docs/ between `<!-- table: NAME -->` and `<!-- end of table -->`.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from dranode.driver.serve.state_metrics import prefix_of
from dranode.tools.diagnosis.rules import RULES
from release.project import ROOT
from release.reference import OWN_DRIVER, codes, metric_rows, plain

MANUAL: Final = ROOT / "docs"
_TABLE: Final = re.compile(r"(?<=<!-- table: )(?P<name>[a-z -]+) -->\n.*?(?=<!-- end of table -->)", re.DOTALL)


def main() -> None:
    """Write the tables of every page."""
    for page in MANUAL.glob("*.md"):
        page.write_text(with_tables(page.read_text()))


def with_tables(page: str) -> str:
    """Return a page with its tables as the code declares them."""
    return _TABLE.sub(lambda found: f"{found['name']} -->\n\n{TABLES[found['name']]()}\n\n", page)


def _table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    titles = list(headings)
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _metrics(wanted: Callable[[str], bool]) -> str:
    """Return the table of these metrics, by the names that Prometheus stores."""
    rows = [
        (codes([f"{name}_total" if kind == "counter" else name]), kind, codes(labels), plain(text))
        for name, (kind, labels, text) in metric_rows().items()
        if wanted(name)
    ]
    return _table(("metric", "type", "labels", "what"), rows)


def _is_own(name: str) -> bool:
    return name.startswith(f"{prefix_of(OWN_DRIVER)}_")


def _is_of_claims(name: str) -> bool:
    return name.startswith("dranode_claim_")


def _findings() -> str:
    rows = [(codes([rule.code]), rule.severity.value, plain(rule.check.__doc__ or "")) for rule in RULES]
    return _table(("finding", "severity", "what it means"), rows)


TABLES: Final[Mapping[str, Callable[[], str]]] = {
    "metrics of a driver": lambda: _metrics(lambda name: not _is_own(name) and not _is_of_claims(name)),
    "metrics of claims": lambda: _metrics(_is_of_claims),
    "metrics with the name of the driver": lambda: _metrics(_is_own),
    "findings": _findings,
}

if __name__ == "__main__":
    main()
