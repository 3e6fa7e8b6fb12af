"""An overload of a CEL function, and its declarations for the type checker and the evaluator.

The type checker sees overloads as they are. The evaluator cannot distinguish messages of different types, so there each
name has one function that picks the overload by its arguments.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from cel_expr_python.cel import FunctionDecl, Type
from cel_expr_python.cel import Overload as CelOverload

from dranode.proto import cel_values_pb2 as messages

Code: TypeAlias = Callable[..., Any]
"""What a function does; it raises ValueError where CEL has an error."""


@dataclass(frozen=True, slots=True)
class Overload:
    """One overload: the name, its types as the checker sees them, and the code.

    Attributes:
        member: written as `<first>.name(...)`, otherwise `name(<first>, ...)`.
    """

    name: str
    member: bool
    parameters: tuple[Type, ...]
    result: Type
    code: Code

    @property
    def id(self) -> str:
        """An id that no other overload has."""
        parts = [parameter.name().lower() for parameter in self.parameters]
        return "_".join((*parts, "member" if self.member else "global", self.name))


_CHECKS: Final[dict[str, Callable[[Any], bool]]] = {
    "STRING": lambda value: isinstance(value, str),
    "BOOL": lambda value: isinstance(value, bool),
    "INT": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "kubernetes.Quantity": lambda value: isinstance(value, messages.Quantity),
    "kubernetes.Semver": lambda value: isinstance(value, messages.Semver),
    "kubernetes.IP": lambda value: isinstance(value, messages.IP),
    "kubernetes.CIDR": lambda value: isinstance(value, messages.CIDR),
    "DYN": lambda _: True,
    "LIST": lambda value: isinstance(value, list),
}


def function_declarations(overloads: Iterable[Overload]) -> list[FunctionDecl]:
    """What the type checker knows."""
    grouped: dict[str, list[CelOverload]] = {}
    for one in overloads:
        grouped.setdefault(one.name, []).append(CelOverload(one.id, one.result, list(one.parameters), one.member))
    return [FunctionDecl(name, group) for name, group in grouped.items()]


def implementations(overloads: Iterable[Overload]) -> list[FunctionDecl]:
    """What the evaluator calls: one function for each name, way of calling and number of arguments."""
    grouped: dict[tuple[str, bool, int], list[Overload]] = {}
    for one in overloads:
        grouped.setdefault((one.name, one.member, len(one.parameters)), []).append(one)
    return [
        FunctionDecl(
            name,
            [
                CelOverload(
                    f"{name}_{'member' if member else 'global'}_{count}",
                    Type.DYN,
                    # `string` and `indexOf` exist for other kinds of values, so these take theirs only.
                    [_evaluator_type(group[0].parameters[0]), *[Type.DYN] * (count - 1)],
                    member,
                    _dispatch(name, tuple(group)),
                )
            ],
        )
        for (name, member, count), group in grouped.items()
    ]


def _evaluator_type(parameter: Type) -> Type:
    if parameter.is_message():
        return parameter
    return Type.LIST if parameter.name().startswith("LIST") else Type.DYN


def _dispatch(name: str, overloads: tuple[Overload, ...]) -> Code:
    checks = tuple(
        (tuple(_CHECKS[parameter.name().partition("<")[0]] for parameter in one.parameters), one.code)
        for one in overloads
    )

    def call(*arguments: Any) -> Any:
        for accepts, code in checks:
            if all(map(operator.call, accepts, arguments)):
                return code(*arguments)
        raise ValueError(f"no such overload: {name}({', '.join(type(value).__name__ for value in arguments)})")

    return call
