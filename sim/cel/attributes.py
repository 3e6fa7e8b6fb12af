"""Attributes of an evaluation, such as `device.driver` or `x[0].y`: what is taken of a value, and what that costs.

An attribute is resolved as a whole, as in cel-go (interpreter/attributes.go): its parts cost one each, and so does its
base unless it is a branch of a choice or an index of another attribute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from dranode.sim.cel.qualifiers import found_part, part_of
from dranode.sim.cel.values import MISSING, NONE, OptionalValue, type_name


@dataclass(slots=True)
class Frame:
    """One evaluation: the device, the variables of loops, and what it has cost."""

    device: dict[str, Any]
    variables: list[Any]
    cost: int = 0


Run: TypeAlias = Callable[[Frame], Any]


@dataclass(slots=True)
class Qualifier:
    """A part of an attribute: a field or an index."""

    key: Any  # what is known, or MISSING
    run: Run | None
    optional: bool
    test_only: bool = False


@dataclass(slots=True)
class Attribute:
    """A value and the parts that are taken of it, or a choice of two such."""

    base: Run | None
    qualifiers: list[Qualifier] = field(default_factory=list)
    choice: tuple[Run, Attribute, Attribute] | None = None

    def add(self, qualifier: Qualifier) -> None:
        """Take a further part, of both branches of a choice."""
        if self.choice is None:
            self.qualifiers.append(qualifier)
        else:
            self.choice[1].add(qualifier)
            self.choice[2].add(qualifier)

    def resolve(self, frame: Frame) -> Any:
        """The value.

        Raises:
            ValueError: there is none.
        """
        if self.choice is not None:
            condition, then, otherwise = self.choice
            held = condition(frame)
            if held is True:
                return then.resolve(frame)
            if held is False:
                return otherwise.resolve(frame)
            raise no_overload("_?_:_", [held])
        value = self.base(frame) if self.base is not None else None
        return _qualified(frame, value, self.qualifiers) if self.qualifiers else value


def _qualified(frame: Frame, value: Any, qualifiers: list[Qualifier]) -> Any:
    optional = type(value) is OptionalValue
    if optional:
        if not value.present:
            return value
        value = value.value
    for one in qualifiers:
        optional = optional or one.optional
        key = one.key if one.run is None else one.run(frame)
        if optional:
            value = found_part(value, key)
            if value is MISSING and not one.test_only:
                return NONE
            frame.cost += 1
            if value is MISSING:
                return NONE
        elif one.test_only:
            frame.cost += 1
            value = found_part(value, key) is not MISSING
        else:
            frame.cost += 1
            value = part_of(value, key)
    return OptionalValue(value, present=True) if optional else value


@dataclass(slots=True)
class Planned:
    """A node: how it is evaluated, what is known of it."""

    run: Run
    constant: Any = MISSING
    attribute: Attribute | None = None


def constant(value: Any) -> Planned:
    """A value that is known, and costs nothing."""
    return Planned(lambda _: value, constant=value)


def attribute_of(attribute: Attribute) -> Planned:
    """The value of an attribute."""
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


def no_overload(name: str, arguments: Sequence[Any]) -> ValueError:
    """The error of a function that takes no such values."""
    return ValueError(f"no such overload: {name}({', '.join(map(type_name, arguments))})")
