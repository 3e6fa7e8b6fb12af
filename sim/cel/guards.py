"""Checks whether values are of the types that an overload takes, where only the evaluation can tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dranode.sim.cel.types import CELType, TypeKind
from dranode.sim.cel.values import key_value, type_name


def accepts(parameters: tuple[CELType, ...], values: Sequence[Any]) -> bool:
    """Return whether the overload takes these values; of lists and maps, the first element tells."""
    return len(parameters) == len(values) and all(map(_is, parameters, values))


def _is(kind: CELType, value: Any) -> bool:
    if kind.kind in (TypeKind.DYN, TypeKind.ANY, TypeKind.VARIABLE):
        return True
    if kind.name != type_name(value):
        return False
    if kind.kind is TypeKind.LIST:
        return not value or _is(kind.parameters[0], value[0])
    if kind.kind is TypeKind.MAP and value:
        key, first = next(iter(value.items()))
        return _is(kind.parameters[0], key_value(key)) and _is(kind.parameters[1], first)
    return True
