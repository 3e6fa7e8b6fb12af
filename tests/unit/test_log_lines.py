"""Every line of the log that an operator sees says what it is about, in pairs that `grep` and log stores find."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("driver", "cpu", "gpu", "kubectl", "sim")
LEVELS = {"info", "warning", "error", "exception", "critical"}
# A verb at the most, then pairs: `prepare driver=%s claim=%s uid=%s`, `claim=%s uid=%s: the sentence`.
PAIRS_FIRST = re.compile(r"([a-z]+ )?[a-z]+=%")

EXCEPTIONS = {
    # About the process or the machine, not about a claim, a driver or a pod.
    ("driver/machine/udev.py", "_NO_EVENTS"),
    ("cpu/plugin.py", "no CPU is reserved, so the claim that would take the last shared CPU will be refused"),
    # What is logged is a sentence of a decision, which names container and pod itself.
    ("driver/nri/enforcer.py", "%s"),
    ("driver/nri/inquiry.py", "containers are compared with what was last known of claims: %s"),
}


class Call(NamedTuple):
    """A log call: the file, the line, and the text, or the name of the text, that it logs."""

    path: str
    line: int
    text: str
    literal: bool


def calls(source: str, path: str) -> Iterator[Call]:
    """The calls of `log.info` and above in a source text."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="log"), attr=level), args=[first, *_]) if (
                level in LEVELS
            ):
                match first:
                    case ast.Constant(value=str(text)):
                        yield Call(path, node.lineno, text, literal=True)
                    case _:
                        yield Call(path, node.lineno, ast.unparse(first), literal=False)


def all_calls() -> list[Call]:
    files = [file for part in PARTS for file in sorted((ROOT / part).rglob("*.py"))]
    return [call for file in files for call in calls(file.read_text(), str(file.relative_to(ROOT)))]


def excepted(call: Call) -> bool:
    return any(call.path == path and call.text.startswith(text) for path, text in EXCEPTIONS)


def good(call: Call) -> bool:
    return call.literal and PAIRS_FIRST.match(call.text) is not None


def test_a_line_of_the_log_begins_with_what_it_is_about() -> None:
    found = all_calls()
    assert len(found) > 50
    assert [f"{call.path}:{call.line} {call.text}" for call in found if not good(call) and not excepted(call)] == []


def test_every_exception_is_one_still() -> None:
    bad = [call for call in all_calls() if not good(call)]
    unused = {each for each in EXCEPTIONS if not any(c.path == each[0] and c.text.startswith(each[1]) for c in bad)}
    assert unused == set()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('log.info("prepare driver=%s claim=%s", driver, ref)', True),
        ('log.warning("claim=%s uid=%s: not reported", ref, ref.uid)', True),
        ('log.error("%s", error)', False),
        ('log.exception(f"driver={driver}: it failed")', False),
        ('log.warning("the claim %s is gone", ref)', False),
    ],
)
def test_a_sentence_without_pairs_is_seen(line: str, *, expected: bool) -> None:
    assert [good(call) for call in calls(line, "x.py")] == [expected]
