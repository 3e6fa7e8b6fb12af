"""Derived attributes: expressions that make an attribute of a device (KEP-6080)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from dranode.api.resource import Device, DeviceAttribute
from dranode.sim.cel.errors import CELCompileError, CELRuntimeError
from dranode.sim.cel.expression import compile_expression, device_variables
from dranode.sim.cel.known import KnownToCEL
from dranode.sim.cel.types import ANY, BOOL, DYN, INT, SEMVER, STRING, CELType, TypeKind
from dranode.sim.cel.values import SemverValue, UInt, type_name

_SCALARS = (BOOL, INT, STRING, ANY, DYN, SEMVER)


class DerivedAttribute:
    """A compiled expression.

    Attributes:
        expression: the source.
        declared: what it may use.
    """

    def __init__(self, expression: str, declared: KnownToCEL) -> None:
        """Compile the expression.

        Raises:
            CELCompileError: Kubernetes would refuse it.
        """
        self.expression = expression
        self.declared = declared
        self._program = compile_expression(expression, declared)
        if not _is_attribute(self._program.result):
            raise CELCompileError(
                "must evaluate to a primitive scalar (string, integer, boolean, semver) or a list of these scalars, "
                f"not {self._program.result}"
            )

    def of(self, driver: str, device: Device) -> DeviceAttribute:
        """The attribute of the device.

        Raises:
            CELRuntimeError: the expression cannot be evaluated on this device, or its value is no attribute.
        """
        value, _ = self._program.evaluate(device_variables(driver, device, lists=True))
        return _list_attribute(value) if isinstance(value, list) else _scalar_attribute(value)


@lru_cache(maxsize=1024)
def compile_attribute(expression: str, declared: KnownToCEL) -> DerivedAttribute:
    """The compiled expression, from a cache.

    Raises:
        CELCompileError: Kubernetes would refuse it.
    """
    return DerivedAttribute(expression, declared)


def _is_attribute(kind: CELType) -> bool:
    return kind in _SCALARS or (kind.kind is TypeKind.LIST and kind.parameters[0] in _SCALARS)


def _scalar_attribute(value: Any) -> DeviceAttribute:
    match value:
        case bool():
            return DeviceAttribute(bool_=value)
        case int() if not isinstance(value, UInt):
            return DeviceAttribute(int_=value)
        case str():
            return DeviceAttribute(string=value)
        case SemverValue():
            return DeviceAttribute(version=value.text)
        case _:
            raise CELRuntimeError(f"the result is of type {type_name(value)}, which no attribute can have")


def _list_attribute(values: list[Any]) -> DeviceAttribute:
    """A list is of the type of its first value; an empty one is a list of strings."""
    attributes = [_scalar_attribute(value) for value in values]
    kinds = {type(value) for value in values}
    if len(kinds) > 1:
        raise CELRuntimeError("the result is a list of different types, which no attribute can have")
    return DeviceAttribute(
        ints=tuple(one.int_ for one in attributes if one.int_ is not None) or None,
        bools=tuple(one.bool_ for one in attributes if one.bool_ is not None) or None,
        versions=tuple(one.version for one in attributes if one.version is not None) or None,
        strings=tuple(one.string for one in attributes if one.string is not None) if kinds <= {str} else None,
    )
