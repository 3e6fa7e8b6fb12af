"""Every test that the page of field reports names exists, and each kind of bug has one."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "field.md").read_text()


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(tests/[\w/.]+\.py)(?:::(\w+))?`", PAGE))
    assert len(named) > 100
    missing = [
        f"{file}::{test}"
        for file, test in named
        if not (ROOT / file).exists() or f"def {test}" not in (ROOT / file).read_text()
    ]
    assert missing == []


def test_every_kind_of_bug_has_a_test() -> None:
    kinds = re.findall(r"^\| \[.*\]\(#.*\) \|.*\| (.*) \|$", PAGE, re.MULTILINE)
    assert len(kinds) >= 20
    assert all(test.startswith("`tests/") for test in kinds)
