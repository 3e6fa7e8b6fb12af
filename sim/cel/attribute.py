"""Derived attributes: expressions that make an attribute of a device (KEP-6080)."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from dranode.driver.core.api.resource import Device, DeviceAttribute
from dranode.proto import cel_values_pb2 as messages
from dranode.sim.cel.errors import CELCompileError, CELRuntimeError
from dranode.sim.cel.expression import MAX_EXPRESSION_BYTES, compile_expression, evaluate
from dranode.sim.cel.known import KnownToCEL

_TYPES: Final = ("STRING", "INT", "BOOL", "LIST", "kubernetes.Semver")


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
            CELUnsupportedError: it uses what only Kubernetes has.
        """
        if len(expression.encode()) > MAX_EXPRESSION_BYTES:
            raise CELCompileError(f"the expression is longer than {MAX_EXPRESSION_BYTES} bytes")
        self.expression = expression
        self.declared = declared
        self._program = compile_expression(expression, _TYPES, declared)

    def of(self, driver: str, device: Device) -> DeviceAttribute:
        """The attribute of the device.

        Raises:
            CELRuntimeError: the expression cannot be evaluated on this device, or its value is no attribute.
        """
        value = evaluate(self._program, driver, device, lists=True).plain_value()
        return _list_attribute(value) if isinstance(value, list) else _scalar_attribute(value)


@lru_cache(maxsize=1024)
def compile_attribute(expression: str, declared: KnownToCEL) -> DerivedAttribute:
    """The compiled expression, from a cache.

    Raises:
        CELCompileError: Kubernetes would refuse it, or it uses what only Kubernetes has.
    """
    return DerivedAttribute(expression, declared)


def _scalar_attribute(value: object) -> DeviceAttribute:
    match value:
        case bool():
            return DeviceAttribute(bool_=value)
        case int():
            return DeviceAttribute(int_=value)
        case str():
            return DeviceAttribute(string=value)
        case messages.Semver():
            return DeviceAttribute(version=value.canonical_text)
        case _:
            raise CELRuntimeError(f"the result is of type {type(value).__name__}, which no attribute can have")


def _list_attribute(values: list[object]) -> DeviceAttribute:
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
