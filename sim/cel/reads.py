"""Finds the attributes of a device that an expression reads, so that devices that differ elsewhere need one answer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final, TypeAlias

from dranode.sim.cel.errors import CELCompileError
from dranode.sim.cel.known import KnownToCEL
from dranode.sim.cel.parser import parse
from dranode.sim.cel.syntax import CallExpr, Expr, Ident, Literal, Select, children

AttributeName: TypeAlias = tuple[str, str]
"""Domain and identifier; an empty domain stands for any."""

_INDEX: Final = ("_[_]", "_[?_]", "_?._")
_HARMLESS: Final = ("driver", "capacity", "allowMultipleAllocations")
# `device.attributes["domain"].name`, as a path.
_WHOLE: Final = 3


@lru_cache(maxsize=4096)
def attributes_read(expression: str, declared: KnownToCEL) -> frozenset[AttributeName] | None:
    """The attributes that an evaluation may read; None if it may be any, since they are not named one by one."""
    try:
        todo: list[Expr] = [parse(expression, escapes=declared.cel_go_29)]
    except CELCompileError:
        return frozenset()  # it is never evaluated
    read: set[AttributeName] = set()
    while todo:
        node = todo.pop()
        path = _path(node)
        if path is None:
            path = _membership(node)
        if path is None:
            todo += children(node)
        elif path[:1] == ("attributes",) and len(path) >= _WHOLE:
            read.add((path[1], path[2]))
        elif not path or path[0] not in _HARMLESS:
            return None
    return frozenset(read)


def names_read(expression: str) -> Iterator[tuple[str, str, str]]:
    """Yield what an expression takes by constant names: `attributes` or `capacity`, the domain and the identifier."""
    try:
        todo: list[Expr] = [parse(expression, escapes=True)]
    except CELCompileError:
        return
    while todo:
        node = todo.pop()
        path = _path(node) or _membership(node)
        if path is not None and len(path) >= _WHOLE and path[0] in ("attributes", "capacity"):
            yield path[0], path[1], path[2]
        else:
            todo += children(node)


def _path(node: Expr) -> tuple[str, ...] | None:
    """The names by which a node takes something of the device; None if it takes nothing, or not by constant names."""
    match node:
        case Ident(name="device"):
            return ()
        case Select(operand=operand, field=field):
            before = _path(operand)
            return None if before is None else (*before, field)
        case CallExpr(function=function, arguments=[operand, Literal(value=str(key))]) if function in _INDEX:
            before = _path(operand)
            return None if before is None else (*before, key)
    return None


def _membership(node: Expr) -> tuple[str, ...] | None:
    """The path of `"name" in device.attributes["domain"]`."""
    match node:
        case CallExpr(function="@in", arguments=[Literal(value=str(key)), operand]):
            before = _path(operand)
            return (*before, key) if before is not None and len(before) == _WHOLE - 1 else None
    return None
