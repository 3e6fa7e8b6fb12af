"""CEL selectors: compiled once per expression, evaluated on a device.

The variable `device` has `driver`, `attributes`, `capacity` and `allowMultipleAllocations` (KEP-4381, KEP-5075). A name
without a domain stands under the driver's; a domain that no name has is an empty map; a missing name is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any, Final

from cel_expr_python import cel
from google.protobuf.any_pb2 import Any as ProtoAny
from google.protobuf.message import DecodeError

from dranode.driver.core.api.resource import Device, DeviceAttribute
from dranode.proto.cel_expr_pb2 import CheckedExpr
from dranode.sim.cel.bounds import bound
from dranode.sim.cel.budget import PAYMENTS, begin
from dranode.sim.cel.errors import CELCompileError, CELRuntimeError, CELUnsupportedError
from dranode.sim.cel.known import KnownToCEL
from dranode.sim.cel.library import MISSING, OVERLOADS, QUANTITY
from dranode.sim.cel.overloads import Overload, function_declarations, implementations
from dranode.sim.cel.rewrite import (
    BOUNDED,
    COMPARABLE,
    RefusedExpressionError,
    UnsupportedExpressionError,
    literals,
    rewrite,
)
from dranode.sim.cel.values import quantity_message, semver_message

MAX_EXPRESSION_BYTES: Final = 10 * 1024
# The evaluator stops at this many turns of comprehensions; Kubernetes stops at a cost of 1,000,000, which is a few
# times as many. No selector in earnest comes near either.
MAX_TURNS: Final = 10_000

_ENVIRONMENT: Final = """
extensions:
- {name: strings, version: 2}
- {name: lists, version: 2}
- {name: sets}
- {name: two-var-comprehensions}
- {name: optional}
- {name: bindings}
"""
_UNDECLARED: Final = re.compile(r"undeclared reference to '([^']+)'")
# How cel-expr-python says it; cel-go, in kube-scheduler, parses 250 levels.
_TOO_DEEP: Final = re.compile(r"(?i)recursion (?:depth|limit)")
# The checker drops this has(), so that it cannot be seen later.
_HAS_FIELD: Final = re.compile(r"\bhas\s*\(\s*device\s*\.\s*\w+\s*\)")
_COMPARED_ONLY_WITH_THEIR_LIKE: Final = frozenset({"kubernetes.Quantity", "kubernetes.Semver"})
_DEFAULT: Final = KnownToCEL()


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
            CELUnsupportedError: it uses what only Kubernetes has.
        """
        self.expression = expression
        self.declared = declared
        if len(expression.encode()) > MAX_EXPRESSION_BYTES:
            raise CELCompileError(f"the expression is longer than {MAX_EXPRESSION_BYTES} bytes")
        self._program = compile_expression(expression, ("BOOL",), declared)

    def matches(self, driver: str, device: Device, *, lists_seen: bool = False) -> bool:
        """Whether the expression holds for the device; `lists_seen` says that list attributes have values all the same.

        Raises:
            CELRuntimeError: it cannot be evaluated on this device.
        """
        value = evaluate(self._program, driver, device, lists=self.declared.lists or lists_seen)
        if value.type() != cel.Type.BOOL:
            raise CELRuntimeError(f"the result is of type {value.type().name().lower()}, not bool")
        return bool(value.value())


def evaluate(program: cel.Expression, driver: str, device: Device, *, lists: bool) -> cel.Value:
    """The value of a compiled expression on a device.

    Raises:
        CELRuntimeError: it cannot be evaluated on this device.
    """
    begin()
    try:
        value = program.eval(data=device_variables(driver, device, lists=lists))
    except RuntimeError as error:
        raise CELRuntimeError(f"operation cancelled after {MAX_TURNS} turns of its loops: {error}") from error
    if value.type() == cel.Type.ERROR:
        raise CELRuntimeError(_runtime_message(str(value.value())))
    return value


@lru_cache(maxsize=4096)
def compile_selector(expression: str, declared: KnownToCEL = _DEFAULT) -> Selector:
    """The compiled expression, from a cache.

    Raises:
        CELCompileError: Kubernetes would refuse it, or it uses what only Kubernetes has.
    """
    return Selector(expression, declared)


def device_variables(driver: str, device: Device, *, lists: bool) -> dict[str, Any]:
    """What an expression sees of a device.

    Raises:
        CELRuntimeError: the device has a list attribute while there are none, or a version that is not one.
    """
    attributes: dict[str, dict[str, Any]] = {}
    for name, attribute in device.attributes.items():
        domain, identifier = split_name(name, driver)
        attributes.setdefault(domain, {})[identifier] = _attribute_value(name, attribute, lists=lists)
    capacity: dict[str, dict[str, Any]] = {}
    for name, entry in device.capacity.items():
        domain, identifier = split_name(name, driver)
        capacity.setdefault(domain, {})[identifier] = quantity_message(entry.value)
    return {
        "device.driver": driver,
        "device.attributes": attributes,
        "device.capacity": capacity,
        "device.allowMultipleAllocations": bool(device.allow_multiple_allocations),
    }


def split_name(name: str, driver: str) -> tuple[str, str]:
    """Domain and identifier of a qualified name; without a domain, the driver's."""
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


def _semver(name: str, version: str) -> Any:
    try:
        return semver_message(version)
    except ValueError as error:
        raise CELRuntimeError(f"attribute {name}: {error}") from error


def _comparable(left: cel.Type, right: cel.Type) -> bool:
    ours = left.name()
    if ours in _COMPARED_ONLY_WITH_THEIR_LIKE and right.name() not in (ours, "NULL"):
        raise ValueError(f"no such overload: {ours} == {right.name().lower()}")
    return True


def _bounded(count: int) -> int:
    if count > MAX_TURNS:
        raise ValueError(f"lists.range({count}) is longer than {MAX_TURNS}")
    return count


_INTERNAL: Final = (
    Overload(COMPARABLE, member=False, parameters=(cel.Type.DYN,) * 2, result=cel.Type.BOOL, code=_comparable),
    Overload(BOUNDED, member=False, parameters=(cel.Type.INT,), result=cel.Type.INT, code=_bounded),
)


def _variables(declared: KnownToCEL) -> Mapping[str, cel.Type]:
    text, kind = cel.Type.STRING, cel.Type.Map
    attribute = cel.Type.DYN if declared.lists else cel.Type("google.protobuf.Any")
    shares = {"device.allowMultipleAllocations": cel.Type.BOOL} if declared.shares else {}
    return {
        "device.driver": text,
        "device.attributes": kind(text, kind(text, attribute)),
        "device.capacity": kind(text, kind(text, QUANTITY)),
        **shares,
    }


@cache
def _checker(declared: KnownToCEL) -> cel.Env:
    known = [one for one in OVERLOADS if declared.includes or one.name != "includes"]
    mixed = [
        # Kubernetes compares numbers of different types.
        Overload(f"_{sign}_", member=False, parameters=(left, right), result=cel.Type.BOOL, code=_comparable)
        for sign in ("<", "<=", ">", ">=")
        for left in (cel.Type.INT, cel.Type.UINT, cel.Type.DOUBLE)
        for right in (cel.Type.INT, cel.Type.UINT, cel.Type.DOUBLE)
        if left != right
    ]
    return cel.NewEnv(
        config=cel.NewEnvConfigFromYaml(_ENVIRONMENT),
        variables=_variables(declared),
        extensions=[cel.CelExtension("kubernetes", function_declarations([*known, *mixed]))],
    )


@cache
def _evaluator() -> cel.Env:
    return cel.NewEnv(
        config=cel.NewEnvConfigFromYaml(_ENVIRONMENT),
        variables=dict.fromkeys(_variables(_DEFAULT), cel.Type.DYN),
        extensions=[cel.CelExtension("kubernetes", implementations([*OVERLOADS, *_INTERNAL, *PAYMENTS]))],
    )


def compile_expression(expression: str, types: tuple[str, ...], declared: KnownToCEL) -> cel.Expression:
    """The compiled expression, which has one of these types or an unknown one.

    Raises:
        CELCompileError: Kubernetes would refuse it.
        CELUnsupportedError: it uses what only Kubernetes has.
    """
    if _HAS_FIELD.search(expression):
        raise CELUnsupportedError("has() of a field of device is always true, and not known here; leave it out")
    try:
        checked = _checker(declared).compile(expression)
    except RuntimeError as error:
        raise _compile_error(str(error)) from error
    result = checked.return_type()
    # The binding has no name for google.protobuf.Any and calls it an error.
    if result.name().partition("<")[0] not in types and result != (cel.Type.DYN if declared.lists else cel.Type.ERROR):
        expected = " or ".join(map(str.lower, types))
        raise CELCompileError(f"must evaluate to {expected} or the unknown type, not {result.name().lower()}")
    envelope = ProtoAny.FromString(checked.serialize())
    tree = CheckedExpr.FromString(envelope.value)
    _check_literals(tree)
    try:
        rewrite(tree)
        bound(tree)
    except UnsupportedExpressionError as error:
        raise CELUnsupportedError(f"{error}, so the selector cannot be judged") from error
    except DecodeError as error:
        raise CELUnsupportedError("the expression has more calls within one another than can be judged here") from error
    except RefusedExpressionError as error:
        raise CELCompileError(str(error)) from error
    envelope.value = tree.SerializeToString()
    try:
        return _evaluator().deserialize(envelope.SerializeToString())
    except RuntimeError as error:
        raise CELUnsupportedError(f"the evaluator cannot run it: {_first_line(str(error))}") from error


def _check_literals(tree: CheckedExpr) -> None:
    """Kubernetes checks the literals of patterns, times and durations when it compiles."""
    for function, template in (
        ("matches", '"".matches({})'),
        ("timestamp", "timestamp({})"),
        ("duration", "duration({})"),
    ):
        for literal in literals(tree.expr, function):
            # CEL has no surrogate pairs, which is how JSON escapes characters beyond U+FFFF.
            value = _evaluator().compile(template.format(json.dumps(literal, ensure_ascii=False))).eval(data={})
            if value.type() == cel.Type.ERROR:
                raise CELCompileError(f"compilation failed: {_runtime_message(str(value.value()))}")


def _compile_error(text: str) -> CELCompileError:
    for name in _UNDECLARED.findall(text):
        if name in MISSING:
            return CELUnsupportedError(f"{name}() of Kubernetes is not known here, so the selector cannot be judged")
    if _TOO_DEEP.search(_first_line(text)):
        return CELUnsupportedError(
            "the expression is nested deeper than the 32 levels that can be judged here; Kubernetes takes more"
        )
    return CELCompileError(f"compilation failed: {_first_line(text)}")


def _first_line(text: str) -> str:
    return text.removeprefix("INVALID_ARGUMENT: ").partition("\n")[0].removesuffix(" [INVALID_ARGUMENT]")


def _runtime_message(text: str) -> str:
    """The evaluator's message in the words of Kubernetes where it is the usual one."""
    key = re.search(r'Key not found in map : "(.*)"', text)
    return f"no such key: {key[1]}" if key else _first_line(text.partition(": ")[2] or text)
