"""CEL selectors: compiled once per expression, evaluated on a device.

The variable `device` has `driver`, `attributes`, `capacity` and `allowMultipleAllocations` (KEP-4381, KEP-5075). A name
without a domain stands under the driver's; a domain that no name has is an empty map; a missing name is an error.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeAlias

from dranode.api.resource import Device, DeviceAttribute
from dranode.sim.cel.checker import check_literals, checked_tree
from dranode.sim.cel.costs import LIMIT
from dranode.sim.cel.declarations import ANY, BOOL, DYN, INT, SEMVER, STRING, CELType, KnownToCEL, TypeKind
from dranode.sim.cel.estimate import greatest_cost
from dranode.sim.cel.kubernetes import quantity_from, semver_from
from dranode.sim.cel.parser import parse
from dranode.sim.cel.plan import planned
from dranode.sim.cel.run import AnyDomain, Frame, Run
from dranode.sim.cel.syntax import (
    CallExpr,
    CELCancelledError,
    CELCompileError,
    CELRuntimeError,
    Expr,
    Ident,
    Literal,
    Select,
    children,
)
from dranode.sim.cel.values import SemverValue, UInt, begin, type_name

AttributeName: TypeAlias = tuple[str, str]
"""Domain and identifier; an empty domain means any."""

_INDEX: Final = ("_[_]", "_[?_]", "_?._")
_HARMLESS: Final = ("driver", "capacity", "allowMultipleAllocations")
# `device.attributes["domain"].name`, as a path.
_WHOLE: Final = 3


@lru_cache(maxsize=4096)
def attributes_read(expression: str, declared: KnownToCEL) -> frozenset[AttributeName] | None:
    """Return the attributes that an evaluation can read; None for any, because some names are not constant."""
    try:
        todo: list[Expr] = [parse(expression, escapes=declared.cel_go_29)]
    except CELCompileError:
        return frozenset()  # an invalid expression is never evaluated
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
    """Return the constant names by which a node selects a part of the device; None if it does not do so."""
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
    """Return the path of `"name" in device.attributes["domain"]`."""
    match node:
        case CallExpr(function="@in", arguments=[Literal(value=str(key)), operand]):
            before = _path(operand)
            return (*before, key) if before is not None and len(before) == _WHOLE - 1 else None
    return None


MAX_EXPRESSION_BYTES: Final = 10 * 1024

# Kubernetes takes 250 levels of everything, for each of which several functions call one another, to compile and to
# evaluate. The limit is that of the process, so it is raised once and not around each device.
sys.setrecursionlimit(max(sys.getrecursionlimit(), 20_000))
_DEFAULT: Final = KnownToCEL()


@dataclass(frozen=True, slots=True)
class CELProgram:
    """A compiled expression.

    Attributes:
        result: the type of what it evaluates to.
        max_cost: what an evaluation costs at most.
    """

    result: CELType
    max_cost: int
    _run: Run
    _variables: int

    def evaluate(self, device: dict[str, Any]) -> tuple[Any, int]:
        """Return the value for the variable `device`, and the cost of the evaluation.

        Raises:
            CELRuntimeError: there is none.
        """
        begin()
        frame = Frame(device, [None] * self._variables)
        try:
            value = self._run(frame)
        except ValueError as error:
            if frame.cost > LIMIT:
                raise CELCancelledError("operation cancelled: actual cost limit exceeded") from error
            raise CELRuntimeError(str(error)) from error
        if frame.cost > LIMIT:
            raise CELCancelledError("operation cancelled: actual cost limit exceeded")
        return value, frame.cost


class Selector:
    """A compiled expression.

    Attributes:
        expression: the source.
        declared: what it may use.
    """

    def __init__(self, expression: str, declared: KnownToCEL = _DEFAULT) -> None:
        """Compile the expression.

        Raises:
            CELCompileError: Kubernetes would refuse it.
        """
        self.expression = expression
        self.declared = declared
        self.program = compile_expression(expression, declared)
        result = self.program.result
        # Before 1.37 a wrapper is another type than what it wraps.
        same = declared.cel_go_29 or not result.nullable
        if not same or result not in (BOOL, DYN if declared.lists else ANY):
            raise CELCompileError(f"must evaluate to bool or the unknown type, not {result}")

    @property
    def max_cost(self) -> int:
        """Return what an evaluation costs at most; the API server refuses more than `LIMIT`."""
        return self.program.max_cost

    def matches(self, driver: str, device: Device, *, lists_seen: bool = False) -> bool:
        """Return whether the expression holds for the device; with `lists_seen` list attributes have values too.

        Raises:
            CELRuntimeError: it cannot be evaluated on this device.
        """
        variables = device_variables(driver, device, lists=self.declared.lists or lists_seen)
        value, _ = self.program.evaluate(variables)
        if not isinstance(value, bool):
            raise CELRuntimeError(f"the result is of type {type_name(value)}, not bool")
        return value


@lru_cache(maxsize=4096)
def compile_selector(expression: str, declared: KnownToCEL = _DEFAULT) -> Selector:
    """Return the compiled expression, from a cache.

    Raises:
        CELCompileError: Kubernetes would refuse it.
    """
    return Selector(expression, declared)


def compile_expression(expression: str, declared: KnownToCEL) -> CELProgram:
    """Return a compiled expression whose result may have any type.

    Raises:
        CELCompileError: Kubernetes would refuse it.
    """
    if len(expression.encode()) > MAX_EXPRESSION_BYTES:
        raise CELCompileError(f"the expression is longer than {MAX_EXPRESSION_BYTES} bytes")
    try:
        checked = checked_tree(parse(expression, escapes=declared.cel_go_29), declared)
        check_literals(checked)
    except CELCompileError as error:
        raise CELCompileError(f"compilation failed: {error}") from error
    run, variables = planned(checked, declared)
    return CELProgram(checked.result, greatest_cost(checked, declared), run, variables)


def device_variables(driver: str, device: Device, *, lists: bool) -> dict[str, Any]:
    """Return what an expression sees of a device.

    Raises:
        CELRuntimeError: the device has a list attribute while there are none, or a version that is not one.
    """
    attributes, capacity = AnyDomain(), AnyDomain()
    for name, attribute in device.attributes.items():
        domain, identifier = split_name(name, driver)
        attributes.setdefault(domain, {})[identifier] = _attribute_value(name, attribute, lists=lists)
    for name, entry in device.capacity.items():
        domain, identifier = split_name(name, driver)
        capacity.setdefault(domain, {})[identifier] = quantity_from(entry.value.text)
    return {
        "driver": driver,
        "attributes": attributes,
        "capacity": capacity,
        "allowMultipleAllocations": bool(device.allow_multiple_allocations),
    }


def split_name(name: str, driver: str) -> tuple[str, str]:
    """Return domain and identifier of a qualified name; the driver is the default domain."""
    domain, slash, identifier = name.partition("/")
    return (domain, identifier) if slash else (driver, name)


def _attribute_value(name: str, attribute: DeviceAttribute, *, lists: bool) -> Any:
    if lists:
        for values in (attribute.ints, attribute.bools, attribute.strings):
            if values is not None:
                return list(values)
        if attribute.versions is not None:
            return [_semver(name, version) for version in attribute.versions]
    for value in (attribute.int_, attribute.bool_, attribute.string):
        if value is not None:
            return value
    if attribute.version is not None:
        return _semver(name, attribute.version)
    raise CELRuntimeError(
        f"attribute {name}: unsupported attribute value; lists need the feature gate DRAListTypeAttributes"
    )


def _semver(name: str, version: str) -> SemverValue:
    try:
        return semver_from(version)
    except ValueError as error:
        raise CELRuntimeError(f"attribute {name}: {error}") from error


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
        """Return the attribute of the device.

        Raises:
            CELRuntimeError: the expression cannot be evaluated on this device, or its value is no attribute.
        """
        value, _ = self._program.evaluate(device_variables(driver, device, lists=True))
        return _list_attribute(value) if isinstance(value, list) else _scalar_attribute(value)


@lru_cache(maxsize=1024)
def compile_attribute(expression: str, declared: KnownToCEL) -> DerivedAttribute:
    """Return the compiled expression, from a cache.

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
    """Return a list of the type of its first value; an empty one is a list of strings."""
    attributes = [_scalar_attribute(value) for value in values]
    kinds = {type(value) for value in values}
    if len(kinds) > 1:
        raise CELRuntimeError("the result is a list of different types, which no attribute can have")
    return DeviceAttribute(
        ints=tuple(attribute.int_ for attribute in attributes if attribute.int_ is not None) or None,
        bools=tuple(attribute.bool_ for attribute in attributes if attribute.bool_ is not None) or None,
        versions=tuple(attribute.version for attribute in attributes if attribute.version is not None) or None,
        strings=tuple(attribute.string for attribute in attributes if attribute.string is not None)
        if kinds <= {str}
        else None,
    )
