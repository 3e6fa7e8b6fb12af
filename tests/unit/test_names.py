"""One name is one thing."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("cdi", "cpu", "driver", "gpu", "sim")

# Public names that two modules may define, and why.
DEFINED_TWICE = {
    "command": "every module of a command line adds its commands with it",
    "plugin": "every driver's entry point has this name",
}


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


def test_a_public_name_is_one_thing() -> None:
    twice = defined_twice(modules())
    assert {name: places for name, places in twice.items() if name not in DEFINED_TWICE} == {}


def test_every_name_that_may_be_two_things_still_is() -> None:
    assert sorted(DEFINED_TWICE.keys() - defined_twice(modules()).keys()) == []


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
