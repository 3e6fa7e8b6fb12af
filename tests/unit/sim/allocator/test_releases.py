"""The table of releases, and that the manual shows the same table."""

from pathlib import Path

import pytest

from dranode.sim.allocator.releases import DEFECTS, GATES, RELEASES, Change, Release

PAGE = Path(__file__).parents[4] / "docs" / "fleet.md"


def tables() -> str:
    """The tables of the manual."""
    releases = list(RELEASES.values())
    lines = [
        f"| gate | {' | '.join(f'{each.name} ({each.version})' for each in releases)} |",
        f"| --- |{' --- |' * len(releases)}",
        *(f"| `{name}` | {' | '.join(default(each, name) for each in releases)} |" for name in GATES),
        "",
        "| since | what is different | pull request |",
        "| --- | --- | --- |",
    ]
    for change in Change:
        record = change.value
        number = f"kubernetes#{record.pull_request}" if record.pull_request else ""
        lines.append(f"| {', '.join(record.since)} | {record.text} | {number} |")
    lines += [
        "",
        "| since | until | what is not simulated | pull request |",
        "| --- | --- | --- | --- |",
    ]
    for defect in DEFECTS:
        number = f"kubernetes#{defect.pull_request}" if defect.pull_request else ""
        lines.append(f"| {defect.since} | {', '.join(defect.fixed)} | {defect.text} | {number} |")
    return "\n".join(lines)


def default(kubernetes: Release, name: str) -> str:
    value = kubernetes.gate(name)
    if value is None:
        return ""
    return f"{'on' if value else 'off'}{', locked' if kubernetes.locks(name) else ''}"


def test_the_manual_shows_the_table_of_releases() -> None:
    shown = PAGE.read_text("utf-8").partition("<!-- releases:")[2].partition("-->\n")[2].partition("<!-- end -->")[0]
    assert shown.strip() == tables()


@pytest.mark.parametrize("change", Change, ids=lambda change: change.name)
def test_a_change_applies_from_its_release_on(change: Change) -> None:
    having = {name: change in release.changes for name, release in RELEASES.items()}
    # What was backported to patch releases comes and goes with the versions of the table.
    minor = next(since for since in change.value.since if since.count(".") == 1)
    later = list(having)[list(having).index(next(name for name in having if name.startswith(minor))) :]
    assert all(having[name] for name in later)
    assert not any(having[name] for name in having if name not in later and len(change.value.since) == 1)
