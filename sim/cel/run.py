"""Evaluates the parts of a plan as cel-go's interpreter does.

Errors are ValueErrors, which loops keep in their accumulator and `&&` and `||` may absorb.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from dranode.sim.cel.costs import LIMIT, LIST, MAP, STRUCT, equality, inequality
from dranode.sim.cel.syntax import CELCancelledError, CELRuntimeError
from dranode.sim.cel.values import (
    INT64,
    MISSING,
    NONE,
    FormatValue,
    MessageValue,
    MutableList,
    MutableMap,
    OptionalValue,
    SemverValue,
    UInt,
    equal,
    key_value,
    map_key,
    map_value,
    no_overload,
    type_name,
)


class AnyDomain(dict[str, Any]):
    """Attributes or capacities by domain; an unknown domain is empty."""


def part_of(value: Any, key: Any) -> Any:
    """Return the element of a list or the value of a map.

    Raises:
        ValueError: there is none.
    """
    part = found_part(value, key)
    if part is MISSING:
        raise ValueError(f"index out of bounds: {key}" if isinstance(value, list) else f"no such key: {_shown(key)}")
    return part


def found_part(value: Any, key: Any) -> Any:
    """Return the same; MISSING if there is none.

    Raises:
        ValueError: the key can be none of a list's or of no map's.
    """
    if isinstance(value, dict):
        part = value.get(key, MISSING) if type(key) is str else map_value(value, _key(key))
        return {} if part is MISSING and type(value) is AnyDomain else part
    _key(key)
    if isinstance(value, list):
        index = _index(key)
        return value[index] if 0 <= index < len(value) else MISSING
    if isinstance(value, MessageValue):
        raise ValueError(f"no such field '{_shown(key)}'")  # noqa: TRY004 - an error of CEL
    return MISSING


def _key(key: Any) -> Any:
    if type(key) not in (str, int, UInt, bool, float):
        raise ValueError(f"invalid qualifier type: {type_name(key)}")
    return key


def _index(key: Any) -> int:
    if type(key) is float and key.is_integer() and int(key) in INT64:
        return int(key)
    if type(key) not in (int, UInt):
        raise ValueError(f"unsupported index value: {type_name(key)}")
    return int(key)


def _shown(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


@dataclass(slots=True)
class Frame:
    """An evaluation: the device, the variables of loops, and the cost so far."""

    device: dict[str, Any]
    variables: list[Any]
    cost: int = 0


Run: TypeAlias = Callable[[Frame], Any]


@dataclass(slots=True)
class Qualifier:
    """A part of an attribute: a field or an index."""

    key: Any  # MISSING if it is not constant
    run: Run | None
    optional: bool
    test_only: bool = False


@dataclass(slots=True)
class Attribute:
    """A value with a path of fields and indices, or a choice of two of them."""

    base: Run | None
    qualifiers: list[Qualifier] = field(default_factory=list)
    choice: tuple[Run, Attribute, Attribute] | None = None

    def add(self, qualifier: Qualifier) -> None:
        """Extend the path, in both branches of a choice."""
        if self.choice is None:
            self.qualifiers.append(qualifier)
        else:
            self.choice[1].add(qualifier)
            self.choice[2].add(qualifier)

    def resolve(self, frame: Frame) -> Any:
        """Return the value.

        Raises:
            ValueError: there is none.
        """
        if self.choice is not None:
            condition, then, otherwise = self.choice
            chosen = condition(frame)
            if chosen is True:
                return then.resolve(frame)
            if chosen is False:
                return otherwise.resolve(frame)
            raise no_overload("_?_:_", chosen)
        value = self.base(frame) if self.base is not None else None
        return _qualified(frame, value, self.qualifiers) if self.qualifiers else value


def _qualified(frame: Frame, value: Any, qualifiers: list[Qualifier]) -> Any:
    optional = type(value) is OptionalValue
    if optional:
        if not value.present:
            return value
        value = value.value
    for qualifier in qualifiers:
        optional = optional or qualifier.optional
        key = qualifier.key if qualifier.run is None else qualifier.run(frame)
        if optional:
            value = found_part(value, key)
            if value is MISSING and not qualifier.test_only:
                return NONE
            frame.cost += 1
            if value is MISSING:
                return NONE
        elif qualifier.test_only:
            frame.cost += 1
            value = found_part(value, key) is not MISSING
        else:
            frame.cost += 1
            value = part_of(value, key)
    return OptionalValue(value, present=True) if optional else value


@dataclass(slots=True)
class Planned:
    """A planned node: how it is evaluated, and what is known in advance."""

    run: Run
    constant: Any = MISSING
    attribute: Attribute | None = None


def constant(value: Any) -> Planned:
    """Return a node for a known value, which costs nothing."""
    return Planned(lambda _: value, constant=value)


def attribute_of(attribute: Attribute) -> Planned:
    """Return a node for the value of an attribute."""
    resolve = attribute.resolve
    if attribute.choice is not None:
        return Planned(resolve, attribute=attribute)

    def run(frame: Frame) -> Any:
        frame.cost += 1
        return resolve(frame)

    return Planned(run, attribute=attribute)


def presence_of(attribute: Attribute) -> Planned:
    """Return whether the last part of an attribute is there."""
    resolve = attribute.resolve
    # Whether something is there costs one less than what is there, which is what cel-go takes of a choice, too.
    base = 0 if attribute.choice is None else -1

    def run(frame: Frame) -> bool:
        frame.cost += base
        value = resolve(frame)
        return value.present if type(value) is OptionalValue else value

    return Planned(run, attribute=attribute)


def as_attribute(planned: Planned) -> Attribute:
    """Return what is selected from."""
    return planned.attribute if planned.attribute is not None else Attribute(planned.run)


@dataclass(frozen=True, slots=True)
class Failure:
    """An error in place of a variable's value."""

    error: ValueError


@dataclass(frozen=True, slots=True)
class Unset:
    """A variable whose first value is not evaluated yet."""

    start: Run


def reader(slot: int) -> Run:
    """Return the value of a variable."""

    def read(frame: Frame) -> Any:
        value = frame.variables[slot]
        kind = type(value)
        if kind is Unset:
            value = frame.variables[slot] = _first_value(frame, value.start)
            kind = type(value)
        if kind is Failure:
            raise value.error
        return value

    return read


def _first_value(frame: Frame, start: Run) -> Any:
    """Return the start value of a loop; an empty list or map becomes one to which the loop adds in place."""
    try:
        value = start(frame)
    except ValueError as error:
        return Failure(error)
    if isinstance(value, list) and not value:
        return MutableList()
    return MutableMap() if isinstance(value, dict) and not value else value


def logic(left: Run, right: Run, *, ends: bool) -> Run:
    """Return a node for `||`, which True ends, or `&&`, which False ends."""

    def run(frame: Frame) -> bool:
        failure: ValueError | None = None
        for term in (left, right):
            try:
                value: Any = term(frame)
            except ValueError as error:
                failure = failure or error
                continue
            if value is ends:
                return bool(ends)
            if value is not (not ends):
                failure = failure or no_overload("_||_" if ends else "_&&_", value)
        if failure is not None:
            raise failure
        return not ends

    return run


def _pair(left: Run, right: Run, frame: Frame) -> tuple[Any, Any]:
    """Return both values. The second is evaluated even if the first fails; an error becomes a Failure."""
    values = []
    for side in (left, right):
        try:
            values.append(side(frame))
        except ValueError as error:
            values.append(Failure(error))
    return values[0], values[1]


def equality_of(left: Run, right: Run, *, negated: bool) -> Run:
    """Return a node for `==`, or for `!=` if it is negated, which is true for values that cannot be compared."""

    def run(frame: Frame) -> bool:
        first, second = _pair(left, right, frame)
        frame.cost += (inequality if negated else equality)(first, second)
        for value in (first, second):
            if type(value) is Failure:
                raise value.error
        if not negated:
            return equal(first, second)
        try:
            return not equal(first, second)
        except ValueError:
            return True

    return run


def not_strictly_false(argument: Run) -> Run:
    """Return whether a loop goes on: also after an error."""

    def run(frame: Frame) -> bool:
        frame.cost += 1
        try:
            value = argument(frame)
        except ValueError:
            return True
        return value is not False

    return run


def called(arguments: list[Run], code: Callable[..., Any], cost: Any, *, early: bool) -> Run:
    """Return a node for a call. With `early`, the first argument that fails ends it, before it costs anything."""

    def run(frame: Frame) -> Any:
        values: list[Any] = []
        failure: ValueError | None = None
        for argument in arguments:
            try:
                values.append(argument(frame))
            except ValueError as error:
                failure = failure or error
                values.append(None)
                if early:
                    break
        result: Any = None
        if failure is None:
            try:
                result = code(*values)
            except ValueError as error:
                failure = error
        if len(values) == len(arguments):
            frame.cost += cost if type(cost) is int else cost(values, result)
            if frame.cost > LIMIT:
                raise CELCancelledError("operation cancelled: actual cost limit exceeded")
        if failure is not None:
            raise failure
        return result

    return run


def member_of(value: Run, members: list[Any]) -> Planned | None:
    """Return a node for `in` with a literal list of simple values, which costs nothing; None for other lists."""
    if not members:
        return constant(value=False)
    if any(type(member) not in (str, int, UInt, float, bool) for member in members):
        return None
    # cel-go also stores each integer as a double, which may round it.
    doubles = [float(member) for member in members if type(member) in (int, UInt)]
    keys = {map_key(member): True for member in (*members, *doubles)}

    def run(frame: Frame) -> bool:
        element = value(frame)
        if type(element) in (bytes, SemverValue, FormatValue):
            raise CELRuntimeError(f"internal error: runtime error: hash of unhashable type {type_name(element)}")
        return not isinstance(element, (list, dict)) and map_value(keys, element) is True

    return Planned(run)


def list_literal(elements: list[Run], optional: frozenset[int]) -> Run:
    """Return a node for a list; the elements at the indices in `optional` may be missing."""

    def run(frame: Frame) -> list[Any]:
        frame.cost += LIST
        values: list[Any] = []
        for index, element in enumerate(elements):
            value = element(frame)
            if index in optional:
                value = _unwrapped(value)
                if value is MISSING:
                    continue
            values.append(value)
        return values

    return run


def message_literal(fields: list[tuple[str, Run, bool]], made: Callable[[Mapping[str, Any]], Any]) -> Run:
    """Return a node for a message; each field has a name, a value, and whether it may be missing."""

    def run(frame: Frame) -> Any:
        frame.cost += STRUCT
        values: dict[str, Any] = {}
        for name, part, optional in fields:
            value = part(frame)
            if optional:
                value = _unwrapped(value)
            values.pop(name, None)
            if value is not MISSING:
                values[name] = value
        return made(values)

    return run


def _unwrapped(value: Any) -> Any:
    if type(value) is not OptionalValue:
        raise ValueError(f"cannot initialize optional list element from non-optional value {value!r}")
    return value.value if value.present else MISSING


def map_literal(entries: list[tuple[Run, Run, bool]]) -> Run:
    """Return a node for a map; each entry has a key, a value, and whether it may be missing."""

    def run(frame: Frame) -> dict[Any, Any]:
        frame.cost += MAP
        values: dict[Any, Any] = {}
        for key, value, optional in entries:
            name = key(frame)
            given = value(frame)
            if type(name) is bytes:
                raise CELRuntimeError("internal error: runtime error: hash of unhashable type types.Bytes")
            if optional:
                given = _unwrapped(given)
                if given is MISSING:
                    values.pop(map_key(name), None)
                    continue
            values[map_key(name)] = given
        return values

    return run


class Loop(NamedTuple):
    """The parts of a loop, and the places of its variables."""

    over: Run
    start: Run
    condition: Run
    step: Run
    result: Run
    accumulator: int
    variable: int
    variable2: int | None


def fold(loop: Loop) -> Run:
    """Return a node for a loop; its accumulator is evaluated when it is first read."""
    over, start, condition, step, result, accumulator, one, two = loop

    def run(frame: Frame) -> Any:
        variables = frame.variables
        values = over(frame)
        variables[accumulator] = Unset(start)
        for key, value in _pairs(values, both=two is not None):
            variables[one] = key
            if two is not None:
                variables[two] = value
            if frame.cost > LIMIT:
                raise CELCancelledError("operation cancelled: actual cost limit exceeded")
            try:
                if condition(frame) is False:
                    break
            except ValueError:
                pass
            try:
                variables[accumulator] = step(frame)
            except ValueError as error:
                variables[accumulator] = Failure(error)
        value = result(frame)
        if type(value) is MutableList:
            return list(value)
        return dict(value) if type(value) is MutableMap else value

    return run


def _pairs(values: Any, *, both: bool) -> Any:
    if isinstance(values, list):
        return enumerate(values) if both else [(value, None) for value in values]
    if isinstance(values, dict):
        return [(key_value(key), value) for key, value in values.items()]
    raise ValueError(f"got '{type_name(values)}', expected iterable type")
