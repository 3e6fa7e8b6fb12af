"""One name is one thing, and a name says what a thing is."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("cdi", "cpu", "driver", "gpu", "kubectl", "memory", "sanity", "sim")

# Public names that two modules may define, and why.
DEFINED_TWICE = {
    "command": "every module of a command line adds its commands with it",
    "plugin": "every driver's entry point has this name",
}

# These say nothing of what they stand for.
EMPTY_NAMES = {"each", "found", "left", "one"}
# These are hard to read for people whose English is foreign, as a part of a name too.
EMPTY_WORDS = {"nobody", "tell", "tells", "told", "untold", "wanted", "whoever"}
# These are hard to read in the name of a test, which is a sentence; `nobody` is not, there.
HARD_TO_READ = EMPTY_WORDS - {"nobody"}
# The left side of an operator is called so by everybody.
SIDES = {"left", "right"}


class Definition(NamedTuple):
    module: str
    line: int
    name: str


def modules() -> Iterator[tuple[str, ast.Module]]:
    for part in PARTS:
        for path in sorted((ROOT / part).rglob("*.py")):
            yield path.relative_to(ROOT).with_suffix("").as_posix().replace("/", "."), ast.parse(path.read_text())


def defined(tree: ast.Module) -> Iterator[str]:
    """The public classes, type aliases and functions of a module, each once however often it is overloaded."""
    names = set()
    for node in tree.body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                names.add(name)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                # A name in CamelCase is a type.
                if name[0].isupper() and not name.isupper():
                    names.add(name)
            case _:
                pass
    yield from (name for name in names if not name.startswith("_"))


def defined_twice(trees: Iterator[tuple[str, ast.Module]]) -> dict[str, list[str]]:
    homes = defaultdict(list)
    for module, tree in trees:
        for name in defined(tree):
            homes[name].append(module)
    return {name: places for name, places in homes.items() if len(places) > 1}


def is_empty(name: str) -> bool:
    words = name.strip("_").lower()
    return words in EMPTY_NAMES or not EMPTY_WORDS.isdisjoint(words.split("_"))


def arguments(node: ast.FunctionDef) -> list[str]:
    given = node.args
    every = (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg)
    names = [argument.arg for argument in every if argument]
    return [name for name in names if name not in SIDES] if set(names) >= SIDES else names


def empty_names(module: str, tree: ast.Module) -> Iterator[Definition]:
    """Names in signatures, attributes, functions and classes that say nothing; locals are not looked at."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(lineno=line):
                names = [node.name, *arguments(node)]
            case ast.ClassDef(lineno=line):
                fields = (field.target for field in node.body if isinstance(field, ast.AnnAssign))
                names = [node.name, *(field.id for field in fields if isinstance(field, ast.Name))]
            case ast.Attribute(ctx=ast.Store(), lineno=line):
                names = [node.attr]
            case _:
                continue
        yield from (Definition(module, line, name) for name in names if is_empty(name))


def test_a_public_name_is_one_thing() -> None:
    twice = defined_twice(modules())
    assert {name: places for name, places in twice.items() if name not in DEFINED_TWICE} == {}


def test_every_name_that_may_be_two_things_still_is() -> None:
    assert sorted(DEFINED_TWICE.keys() - defined_twice(modules()).keys()) == []


def test_names_say_what_a_thing_is() -> None:
    assert [name for module, tree in modules() for name in empty_names(module, tree)] == []


def test_modules_have_names_that_say_what_they_are() -> None:
    assert [module for module, _ in modules() if is_empty(module.rpartition(".")[2])] == []


def test_names_of_tests_are_plain_english() -> None:
    names = [
        name
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for name in re.findall(r"^ *def (test_\w+)", path.read_text(), re.MULTILINE)
    ]
    assert len(names) > 1000
    assert [name for name in names if not HARD_TO_READ.isdisjoint(name.split("_"))] == []


@pytest.mark.parametrize(
    "source",
    [
        "def nobody_to_ask(): ...",
        "class Told: ...",
        "def look(wanted): ...",
        "def look(*, found=None): ...",
        "class Look:\n    def __init__(self): self._left = 1",
        "class Look:\n    each: int",
        "def look(left): ...",
    ],
)
def test_an_empty_name_is_seen(source: str) -> None:
    assert len(list(empty_names("module", ast.parse(source)))) == 1


@pytest.mark.parametrize(
    "source", ["def less(left, right): ...", "def one_line(text): ...", "def look():\n    found = 1\n    return found"]
)
def test_the_sides_of_an_operator_and_locals_are_no_empty_names(source: str) -> None:
    assert list(empty_names("module", ast.parse(source))) == []


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("class Node: ...", "class Node: ..."),
        ("Part = tuple[int, int]", "class Part: ..."),
        ("def show(): ...", "def show(): ..."),
    ],
)
def test_a_name_of_two_modules_is_seen(first: str, second: str) -> None:
    twice = defined_twice(iter((("one", ast.parse(first)), ("two", ast.parse(second)))))
    assert list(twice.values()) == [["one", "two"]]
