"""Checks literals as Kubernetes does when it compiles (cel-go: cel/validator.go, ext/formatting.go)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dranode.sim.cel.checker import Checked
from dranode.sim.cel.conversions import to_duration, to_timestamp
from dranode.sim.cel.errors import CELCompileError
from dranode.sim.cel.formatting import check_format
from dranode.sim.cel.regex import compiled
from dranode.sim.cel.syntax import CallExpr, Expr, ListLiteral, Literal, MapEntry, MapLiteral, children, walk
from dranode.sim.cel.types import CELType, unwrapped

_READERS: dict[str, Any] = {"duration": to_duration, "timestamp": to_timestamp, "matches": compiled}


def check_literals(checked: Checked) -> None:
    """Look at the literals.

    Raises:
        CELCompileError: one cannot be what it is used as, or a list or map has literals of different types.
    """
    for node in walk(checked.tree):
        if isinstance(node, CallExpr):
            _check_literal(node)
            _check_format(checked, node)
    for node in _outside_of_format(checked.tree):
        if isinstance(node, ListLiteral):
            kinds = [_kind(checked, one, optional=at in node.optional) for at, one in enumerate(node.elements)]
            _check_alike(kinds)
        elif isinstance(node, MapLiteral):
            _check_alike([checked.types[one.key] for one in node.entries])
            _check_alike([_entry_kind(checked, one) for one in node.entries])


def _check_literal(call: CallExpr) -> None:
    read = _READERS.get(call.function)
    if read is None or not call.arguments or not isinstance(call.arguments[0], Literal):
        return
    value = call.arguments[0].value
    if call.function == "matches" and not isinstance(value, str):
        return
    try:
        read(value)
    except ValueError as error:
        raise CELCompileError(f"invalid {call.function} argument: {error}") from error


def _check_format(checked: Checked, call: CallExpr) -> None:
    if call.function != "format" or not isinstance(call.target, Literal) or not isinstance(call.target.value, str):
        return
    (arguments,) = call.arguments
    if not isinstance(arguments, ListLiteral):
        return
    try:
        check_format(call.target.value, arguments.elements, checked.types.__getitem__)
    except ValueError as error:
        raise CELCompileError(str(error)) from error


def _outside_of_format(node: Expr) -> Iterator[Expr]:
    """The nodes that are not part of a call of format(), which takes values of any types."""
    todo = [node]
    while todo:
        node = todo.pop()
        if isinstance(node, CallExpr) and node.function == "format":
            continue
        yield node
        todo += children(node)


def _kind(checked: Checked, node: Expr, *, optional: bool) -> CELType:
    kind = checked.types[node]
    if not optional:
        return kind
    inside, was_optional = unwrapped(kind)
    if not was_optional:
        raise CELCompileError(f"an optional element of type '{kind}', on which Kubernetes panics")
    return inside


def _entry_kind(checked: Checked, entry: MapEntry) -> CELType:
    return _kind(checked, entry.value, optional=entry.optional)


def _check_alike(kinds: Sequence[CELType]) -> None:
    for kind in kinds[1:]:
        if kind != kinds[0]:
            raise CELCompileError(f"expected type '{kinds[0]}' but found '{kind}'")
