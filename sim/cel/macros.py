"""The macros of Kubernetes' environment: calls that stand for loops, and `has()` (cel-go: parser, ext, cel)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from dranode.sim.cel.errors import CELCompileError
from dranode.sim.cel.syntax import (
    ACCUMULATOR,
    UNUSED,
    CallExpr,
    Comprehension,
    Expr,
    Ident,
    ListLiteral,
    Literal,
    MapEntry,
    MapLiteral,
    MessageLiteral,
    Select,
    copy,
)

_Macro: TypeAlias = Callable[[Expr, list[Expr]], Expr | None]

_SORTED: Final = "@__sortBy_input__"
_FORBIDDEN: Final = (ACCUMULATOR, "__result__")


def expanded(node: Expr) -> Expr:
    """The tree with loops in the places of macros.

    Raises:
        CELCompileError: a macro has other arguments than it takes.
    """
    match node:
        case Select():
            node.operand = expanded(node.operand)
        case ListLiteral():
            node.elements = [expanded(one) for one in node.elements]
        case MapLiteral():
            node.entries = [MapEntry(expanded(one.key), expanded(one.value), one.optional) for one in node.entries]
        case MessageLiteral():
            node.fields = [MapEntry(one.key, expanded(one.value), one.optional) for one in node.fields]
        case CallExpr():
            node.target = None if node.target is None else expanded(node.target)
            node.arguments = [expanded(one) for one in node.arguments]
            return _called(node) or node
    return node


def _called(call: CallExpr) -> Expr | None:
    if call.target is None:
        return _has(call.arguments) if call.function == "has" and len(call.arguments) == 1 else None
    macro = _MACROS.get((call.function, len(call.arguments)))
    return macro(call.target, call.arguments) if macro else None


def _accumulated() -> Expr:
    return Ident(ACCUMULATOR)


def _has(arguments: list[Expr]) -> Expr:
    (argument,) = arguments
    if not isinstance(argument, Select):
        raise CELCompileError("invalid argument to has() macro")
    return Select(argument.operand, argument.field, test_only=True)


def _variable(node: Expr) -> str:
    if not isinstance(node, Ident):
        raise CELCompileError("argument must be a simple name")
    if node.name in _FORBIDDEN:
        raise CELCompileError("iteration variable overwrites accumulator variable")
    return node.name


def _variables(nodes: Sequence[Expr]) -> tuple[str, str | None]:
    first, *rest = map(_variable, nodes)
    if rest == [first]:
        raise CELCompileError(f"duplicate variable name: {first}")
    return first, rest[0] if rest else None


def _loop(  # noqa: PLR0917 - in the order in which they run
    over: Expr, variables: Sequence[Expr], start: Expr, condition: Expr, step: Expr, result: Expr
) -> Expr:
    one, two = _variables(variables)
    return Comprehension(over, one, two, ACCUMULATOR, start, condition, step, result)


def _bound(name: str, value: Expr, result: Expr) -> Expr:
    """`result`, in which `name` is `value`."""
    return Comprehension(ListLiteral([]), UNUSED, None, name, value, Literal(value=False), Ident(name), result)


def _all(over: Expr, arguments: list[Expr]) -> Expr:
    condition = CallExpr("@not_strictly_false", [_accumulated()])
    step = CallExpr("_&&_", [_accumulated(), arguments[-1]])
    return _loop(over, arguments[:-1], Literal(value=True), condition, step, _accumulated())


def _exists(over: Expr, arguments: list[Expr]) -> Expr:
    condition = CallExpr("@not_strictly_false", [CallExpr("!_", [_accumulated()])])
    step = CallExpr("_||_", [_accumulated(), arguments[-1]])
    return _loop(over, arguments[:-1], Literal(value=False), condition, step, _accumulated())


def _exists_one(over: Expr, arguments: list[Expr]) -> Expr:
    step = _if(arguments[-1], CallExpr("_+_", [_accumulated(), Literal(1)]))
    result = CallExpr("_==_", [_accumulated(), Literal(1)])
    return _loop(over, arguments[:-1], Literal(0), Literal(value=True), step, result)


def _if(condition: Expr | None, step: Expr) -> Expr:
    return step if condition is None else CallExpr("_?_:_", [condition, step, _accumulated()])


def _collected(over: Expr, variables: Sequence[Expr], condition: Expr | None, element: Expr) -> Expr:
    step = _if(condition, CallExpr("_+_", [_accumulated(), ListLiteral([element])]))
    return _loop(over, variables, ListLiteral([]), Literal(value=True), step, _accumulated())


def _map(over: Expr, arguments: list[Expr]) -> Expr:
    variable, *condition, element = arguments
    return _collected(over, [variable], condition[0] if condition else None, element)


def _filter(over: Expr, arguments: list[Expr]) -> Expr:
    variable, condition = arguments
    return _collected(over, [variable], condition, variable)


def _transform_list(over: Expr, arguments: list[Expr]) -> Expr:
    one, two, *condition, element = arguments
    return _collected(over, [one, two], condition[0] if condition else None, element)


def _transform_map(over: Expr, arguments: list[Expr]) -> Expr:
    one, two, *condition, value = arguments
    key = Ident(_variables([one, two])[0])
    return _inserted(over, [one, two], condition, [key, value])


def _transform_entry(over: Expr, arguments: list[Expr]) -> Expr:
    one, two, *condition, entry = arguments
    return _inserted(over, [one, two], condition, [entry])


def _inserted(over: Expr, variables: Sequence[Expr], condition: list[Expr], inserted: list[Expr]) -> Expr:
    step = _if(condition[0] if condition else None, CallExpr("cel.@mapInsert", [_accumulated(), *inserted]))
    return _loop(over, variables, MapLiteral([]), Literal(value=True), step, _accumulated())


def _sort_by(target: Expr, arguments: list[Expr]) -> Expr:
    if isinstance(target, (Literal, MapLiteral, MessageLiteral)):
        raise CELCompileError(
            "sortBy can only be applied to a list, identifier, comprehension, call or select expression"
        )
    keys = _map(Ident(_SORTED), arguments)
    return _bound(_SORTED, target, CallExpr("@sortByAssociatedKeys", [keys], Ident(_SORTED)))


def _bind(target: Expr, arguments: list[Expr]) -> Expr | None:
    if not (isinstance(target, Ident) and target.name == "cel"):
        return None
    name, value, result = arguments
    if not isinstance(name, Ident):
        raise CELCompileError("cel.bind() variable names must be simple identifiers")
    return _bound(name.name, value, result)


def _optional_map(target: Expr, arguments: list[Expr]) -> Expr:
    return _if_present("optMap", target, arguments, lambda value: CallExpr("optional.of", [value]))


def _optional_flat_map(target: Expr, arguments: list[Expr]) -> Expr:
    return _if_present("optFlatMap", target, arguments, lambda value: value)


def _if_present(macro: str, target: Expr, arguments: list[Expr], then: Callable[[Expr], Expr]) -> Expr:
    name, result = arguments
    if not isinstance(name, Ident):
        raise CELCompileError(f"{macro}() variable name must be a simple identifier")
    value = CallExpr("value", [], copy(target))
    present = CallExpr("hasValue", [], target)
    return CallExpr("_?_:_", [present, then(_bound(name.name, value, result)), CallExpr("optional.none", [])])


_MACROS: Final[dict[tuple[str, int], _Macro]] = {
    ("all", 2): _all,
    ("all", 3): _all,
    ("exists", 2): _exists,
    ("exists", 3): _exists,
    ("exists_one", 2): _exists_one,
    ("exists_one", 3): _exists_one,
    ("existsOne", 3): _exists_one,
    ("map", 2): _map,
    ("map", 3): _map,
    ("filter", 2): _filter,
    ("transformList", 3): _transform_list,
    ("transformList", 4): _transform_list,
    ("transformMap", 3): _transform_map,
    ("transformMap", 4): _transform_map,
    ("transformMapEntry", 3): _transform_entry,
    ("transformMapEntry", 4): _transform_entry,
    ("sortBy", 2): _sort_by,
    ("bind", 3): _bind,
    ("optMap", 2): _optional_map,
    ("optFlatMap", 2): _optional_flat_map,
}
