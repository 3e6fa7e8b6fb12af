"""The syntax tree of an expression, as the parser makes it (cel-spec, langdef.md), and the errors of expressions.

Nodes are compared by identity; what the checker, the estimator and the planner learn of a node stands beside the tree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from dranode.api.errors import DranodeError

# The variable in which macros collect what they make; an expression cannot contain such a name.
ACCUMULATOR: Final = "@result"
# The iteration variable of a loop that only binds a name.
UNUSED: Final = "#unused"


@dataclass(eq=False, slots=True)
class Literal:
    """A literal."""

    value: Any


@dataclass(eq=False, slots=True)
class Ident:
    """A name."""

    name: str


@dataclass(eq=False, slots=True)
class Select:
    """`operand.field`, or with `test_only` a test whether the field exists."""

    operand: Expr
    field: str
    test_only: bool = False


@dataclass(eq=False, slots=True)
class CallExpr:
    """A call of a function, an operator, or a method of `target`."""

    function: str
    arguments: list[Expr]
    target: Expr | None = None


@dataclass(eq=False, slots=True)
class ListLiteral:
    """A list; the elements at the indices in `optional` may be left out."""

    elements: list[Expr]
    optional: frozenset[int] = frozenset()


@dataclass(eq=False, slots=True)
class MapEntry:
    """An entry of a map, or a field of a message, whose key is then a string."""

    key: Expr
    value: Expr
    optional: bool


@dataclass(eq=False, slots=True)
class MapLiteral:
    """A map."""

    entries: list[MapEntry]


@dataclass(eq=False, slots=True)
class MessageLiteral:
    """A message of the type `name`."""

    name: str
    fields: list[MapEntry]


@dataclass(eq=False, slots=True)
class Comprehension:
    """A loop: `accumulator` starts as `start` and becomes `step` for every element while `condition` holds."""

    over: Expr
    variable: str
    variable2: str | None
    accumulator: str
    start: Expr
    condition: Expr
    step: Expr
    result: Expr

    @property
    def binds(self) -> bool:
        """Return whether it binds a name instead of looping."""
        empty = isinstance(self.over, ListLiteral) and not self.over.elements
        never = isinstance(self.condition, Literal) and self.condition.value is False
        return empty and never and self.accumulator != ACCUMULATOR


Expr: TypeAlias = Literal | Ident | Select | CallExpr | ListLiteral | MapLiteral | MessageLiteral | Comprehension


def children(node: Expr) -> Iterator[Expr]:
    """Yield the children of a node, in the order in which they are written or evaluated."""
    match node:
        case Select():
            yield node.operand
        case CallExpr():
            if node.target is not None:
                yield node.target
            yield from node.arguments
        case ListLiteral():
            yield from node.elements
        case MapLiteral():
            for entry in node.entries:
                yield entry.key
                yield entry.value
        case MessageLiteral():
            for field in node.fields:
                yield field.value
        case Comprehension():
            yield from (node.over, node.start, node.condition, node.step, node.result)


def walk(node: Expr) -> Iterator[Expr]:
    """Yield the node and all nodes below it."""
    todo = [node]
    while todo:
        node = todo.pop()
        yield node
        todo += children(node)


# A list that is added to itself again and again, or a text in which every character is replaced, grows faster than its
# cost. An API server would take gigabytes; this program stops at these bounds.


class CELCompileError(DranodeError):
    """An expression that Kubernetes would not accept."""


class CELRuntimeError(DranodeError):
    """An expression that fails on a device; kube-scheduler gives the pod up."""


class CELCancelledError(CELRuntimeError):
    """An evaluation over the cost limit of Kubernetes or of this program; no operator absorbs it."""


_MAX_LENGTH: Final = 20_000_000
_MAX_ELEMENTS: Final = 2_000_000


def check_length(length: int) -> None:
    """Refuse a text that is too long.

    Raises:
        CELCancelledError: it has more characters or bytes than are built here.
    """
    if length > _MAX_LENGTH:
        raise CELCancelledError(f"operation cancelled: a text of {length:,} characters, more than {_MAX_LENGTH:,}")


def check_elements(count: int) -> None:
    """Refuse a list that is too long.

    Raises:
        CELCancelledError: it has more elements than are built here.
    """
    if count > _MAX_ELEMENTS:
        raise CELCancelledError(f"operation cancelled: a list of {count:,} elements, more than {_MAX_ELEMENTS:,}")
