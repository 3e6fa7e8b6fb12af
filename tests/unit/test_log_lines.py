"""Every line of the log that an operator sees says what it is about, in pairs that `grep` and log stores find."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("api", "driver", "cpu", "gpu", "memory", "show", "sim", "tools")
LEVELS = {"info", "warning", "error", "exception", "critical"}
# A verb at the most, then pairs: `prepare driver=%s claim=%s uid=%s`, `claim=%s uid=%s: the sentence`.
PAIRS_FIRST = re.compile(r"([a-z]+ )?[a-z]+=%")

EXCEPTIONS = {
    # About the process or the machine, not about a claim, a driver or a pod.
    ("driver/machine/udev.py", "_NO_EVENTS"),
    ("cpu/plugin.py", "no CPU is reserved, so one CPU is not published and left to containers without a claim"),
    ("cpu/plugin.py", "no CPU is reserved, so one CPU is not published and left to interrupts, since claims"),
    # What is logged is a sentence of a decision, which names container and pod itself.
    ("driver/nri/unsolicited.py", "%s"),
    ("driver/nri/inquiry.py", "containers are compared with what was last known of claims: %s"),
}


# What a line has to say of the names that its call can see: parameters, variables, and attributes of its object.
PAIRS_OF = {
    "claim": {"claim", "uid"},
    "container": {"pod"},
    "driver": {"driver"},
    "plugin": {"driver"},
    "pod": {"pod"},
    "record": {"claim", "uid"},
    "ref": {"claim", "uid"},
    "uid": {"uid"},
}
ATTRIBUTES = {"claim", "driver", "plugin", "pod"}


class Call(NamedTuple):
    """A log call: file and line, the text that it logs, or the name of that, and the names that the call can see."""

    path: str
    line: int
    text: str
    literal: bool
    names: frozenset[str]


def bound(node: ast.AST) -> frozenset[str]:
    """The names that a function, a loop or an assignment binds, and the attributes that a class has."""
    match node:
        case ast.FunctionDef(args=given):
            return frozenset(each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs))
        case ast.For(target=target) | ast.Assign(targets=[target]):
            return frozenset(each.id for each in ast.walk(target) if isinstance(each, ast.Name))
        case ast.ClassDef():
            fields = {ast.unparse(each.target) for each in node.body if isinstance(each, ast.AnnAssign)}
            uses = (each for each in ast.walk(node) if isinstance(each, ast.Attribute) and is_of_self(each.value))
            return frozenset(name.strip("_") for name in (*fields, *(each.attr for each in uses))) & ATTRIBUTES
        case _:
            return frozenset()


def is_of_self(node: ast.AST) -> bool:
    """Whether it is `self`, or an attribute of an attribute of it: `self`, `self.node`, `self.node.plugin`."""
    match node:
        case ast.Name(id="self"):
            return True
        case ast.Attribute(value=inner):
            return is_of_self(inner)
        case _:
            return False


def bound_within(node: ast.AST) -> frozenset[str]:
    """The names that are bound once a statement is over, or when it has failed halfway: those of its blocks as well."""
    match node:
        case ast.Assign():
            return bound(node)
        case ast.With() | ast.Try() | ast.If():
            return frozenset().union(*map(bound_within, ast.iter_child_nodes(node)))
        case _:
            return frozenset()


def calls(source: str, path: str) -> Iterator[Call]:
    """The calls of `log.info` and above in a source text."""
    yield from calls_below(ast.parse(source), path, frozenset())


def calls_below(node: ast.AST, path: str, names: frozenset[str]) -> Iterator[Call]:
    names |= bound(node)
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="log"), attr=level), args=[first, *_]) if level in LEVELS:
            match first:
                case ast.Constant(value=str(text)):
                    yield Call(path, node.lineno, text, literal=True, names=names)
                case _:
                    yield Call(path, node.lineno, ast.unparse(first), literal=False, names=names)
        case _:
            pass
    for child in ast.iter_child_nodes(node):
        yield from calls_below(child, path, names)
        names |= bound_within(child)


def missing(call: Call) -> list[str]:
    """The pairs that the line has to have, by what its call can see, and has not."""
    needed = {pair for name in call.names for pair in PAIRS_OF.get(name, ())}
    return sorted(pair for pair in needed if f"{pair}=%" not in call.text)


@cache
def all_calls() -> tuple[Call, ...]:
    files = [file for part in PARTS for file in sorted((ROOT / part).rglob("*.py"))]
    texts = [(file.read_text(), str(file.relative_to(ROOT))) for file in files]
    return tuple(call for text, path in texts if "log." in text for call in calls(text, path))


def excepted(call: Call) -> bool:
    return any(call.path == path and call.text.startswith(text) for path, text in EXCEPTIONS)


def good(call: Call) -> bool:
    return call.literal and PAIRS_FIRST.match(call.text) is not None


def test_a_line_of_the_log_begins_with_what_it_is_about() -> None:
    found = all_calls()
    assert len(found) > 50
    assert [f"{call.path}:{call.line} {call.text}" for call in found if not good(call) and not excepted(call)] == []


def test_a_line_of_the_log_says_which_claim_driver_and_pod_it_is_about() -> None:
    lines = [call for call in all_calls() if not excepted(call)]
    assert [f"{call.path}:{call.line} {missing(call)} {call.text}" for call in lines if missing(call)] == []


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ('def look(ref): log.info("driver=%s: gone", 1)', ["claim", "uid"]),
        ('def look(ref): log.info("claim=%s uid=%s: gone", ref, ref.uid)', []),
        ('def look(self):\n for uid in self.uids: log.error("driver=%s: gone", 1)', ["uid"]),
        ('def look(self):\n for uid in self.uids: ...\n record = self.one\n log.error("uid=%s: gone", 1)', ["claim"]),
        ('class Look:\n plugin: int\n def look(self): log.error("uid=%s: gone", 1)', ["driver"]),
        ('class Look:\n def look(self): log.error("uid=%s: gone", self._driver)', ["driver"]),
        ('def look(self, container): log.warning("driver=%s: gone", 1)', ["pod"]),
        ('class Look:\n def look(self): log.error("uid=%s: gone", self.node.plugin.kind)', ["driver"]),
        (
            'def look():\n try:\n  with here():\n   ref = some()\n except OSError:\n  log.error("uid=%s: no", 1)',
            ["claim"],
        ),
        ('def look():\n try: ref = some()\n except OSError: raise\n log.error("uid=%s: no", 1)', ["claim"]),
    ],
)
def test_a_pair_that_is_missing_is_seen(function: str, expected: list[str]) -> None:
    (call,) = calls(function, "x.py")
    assert missing(call) == expected


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
