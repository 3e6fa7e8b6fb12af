"""The evaluator: a checked tree becomes nested functions that count what they cost, as cel-go's planner does it.

Literals are folded first: a wrong conversion or an invalid regular expression among them is refused.
"""

from collections.abc import Callable, Sequence
from typing import Any

from dranode.sim.cel.checker import Checked, text_of
from dranode.sim.cel.costs import cost_of
from dranode.sim.cel.declarations import CELType, KnownToCEL, Overload, TypeKind, functions
from dranode.sim.cel.operations import OPERATORS, UNGUARDED, implementations, refused
from dranode.sim.cel.run import (
    Attribute,
    Frame,
    Loop,
    Planned,
    Qualifier,
    Run,
    as_attribute,
    attribute_of,
    called,
    constant,
    equality_of,
    fold,
    list_literal,
    logic,
    map_literal,
    member_of,
    message_literal,
    not_strictly_false,
    presence_of,
    reader,
)
from dranode.sim.cel.strings import compiled
from dranode.sim.cel.syntax import (
    CallExpr,
    CELCompileError,
    CELRuntimeError,
    Comprehension,
    Expr,
    Ident,
    ListLiteral,
    Literal,
    MapLiteral,
    MessageLiteral,
    Select,
)
from dranode.sim.cel.values import CONVERSIONS, MISSING, OptionalValue, UInt, key_value, no_overload, type_name


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


def planned(checked: Checked, known: KnownToCEL) -> tuple[Run, int]:
    """Return how the tree is evaluated, and how many variables that takes.

    Raises:
        CELCompileError: a literal is converted to what it cannot be, or is no regular expression.
    """
    planner = _Planner(checked, known)
    return planner.plan(checked.tree).run, planner.variables


class _Planner:
    def __init__(self, checked: Checked, known: KnownToCEL) -> None:
        self.checked = checked
        self.known = known
        self.functions = functions(known)
        self.scopes: list[dict[str, int]] = []
        self.variables = 0

    def plan(self, node: Expr) -> Planned:  # noqa: PLR0911 - one for each kind
        if node in self.checked.constants:
            return constant(self.checked.constants[node])
        match node:
            case Literal():
                return constant(node.value)
            case Ident():
                return attribute_of(Attribute(self._variable(node.name)))
            case Select():
                return self._select(node)
            case CallExpr():
                return self._call(node)
            case ListLiteral():
                return self._list(node)
            case MapLiteral():
                return self._map(node)
            case MessageLiteral():
                return self._message(node)
            case Comprehension():
                return self._loop(node)
            case _:
                raise AssertionError(node)

    # --- attributes ---

    def _variable(self, name: str) -> Run:
        plain = name.removeprefix(".")
        for scope in [] if name != plain and self.known.cel_go_29 else reversed(self.scopes):
            if plain in scope:
                return reader(scope[plain])
        return lambda frame: frame.device

    def _select(self, node: Select) -> Planned:
        attribute = as_attribute(self.plan(node.operand))
        attribute.add(Qualifier(node.field, None, optional=False, test_only=node.test_only))
        return presence_of(attribute) if node.test_only else attribute_of(attribute)

    def _index(self, node: CallExpr, *, optional: bool) -> Planned:
        operand, index = (self.plan(argument) for argument in node.arguments)
        attribute = as_attribute(operand)
        if index.constant is not MISSING:
            if type(index.constant) not in (str, int, UInt, bool, float):
                raise CELCompileError(f"program instantiation failed: invalid qualifier type: {index.constant!r}")
            attribute.add(Qualifier(index.constant, None, optional))
        else:
            run = index.run if index.attribute is None else index.attribute.resolve
            attribute.add(Qualifier(MISSING, run, optional))
        return attribute_of(attribute)

    # --- calls ---

    def _call(self, node: CallExpr) -> Planned:  # noqa: PLR0911 - one for each kind
        match node.function:
            case "_&&_" | "_||_":
                left, right = (self.plan(argument).run for argument in node.arguments)
                return Planned(logic(left, right, ends=node.function == "_||_"))
            case "_?_:_":
                condition, then, otherwise = (self.plan(argument) for argument in node.arguments)
                choice = (condition.run, as_attribute(then), as_attribute(otherwise))
                return attribute_of(Attribute(None, choice=choice))
            case "_==_" | "_!=_":
                left, right = (self.plan(argument).run for argument in node.arguments)
                return Planned(equality_of(left, right, negated=node.function == "_!=_"))
            case "_[_]":
                return self._index(node, optional=False)
            case "_[?_]" | "_?._":
                return self._index(node, optional=True)
            case "@not_strictly_false":
                return Planned(not_strictly_false(self.plan(node.arguments[0]).run))
        arguments = [*([node.target] if node.target is not None else []), *node.arguments]
        operands = [self.plan(argument) for argument in arguments]
        if node.function in ("or", "orValue") and len(operands) == 2:  # noqa: PLR2004 - the value and the other one
            return Planned(self._or(operands[0].run, operands[1].run, value=node.function == "orValue"))
        return self._function(node, operands)

    def _or(self, left: Run, right: Run, *, value: bool) -> Run:
        refuses = self.known.cel_go_29

        def run(frame: Frame) -> Any:
            optional = left(frame)
            if type(optional) is not OptionalValue:
                if refuses:
                    raise no_overload("orValue" if value else "or", optional)
                return optional
            if optional.present:
                return optional.value if value else optional
            return right(frame)

        return run

    def _function(self, node: CallExpr, arguments: list[Planned]) -> Planned:
        name = node.function.removeprefix(".")
        overloads = self.checked.overloads[node]
        overload = overloads[0].id if len(overloads) == 1 else ""
        constants = [argument.constant for argument in arguments]
        if overload == "in_list" and constants[1] is not MISSING:
            members = member_of(arguments[0].run, constants[1])
            if members is not None:
                return members
        code = self._code(name, overloads)
        if name in CONVERSIONS and len(arguments) == 1 and constants[0] is not MISSING:
            return _folded(code, constants[0])
        if name in ("matches", "find", "findAll") and isinstance(constants[1], str):
            _check_regex(constants[1])
        # cel-go does so in calls with any number of arguments, but not in those for one or two.
        early = len(arguments) > 2 or overload == "string_format" or not (overload or name in OPERATORS)  # noqa: PLR2004
        runs = [argument.run for argument in arguments]
        return Planned(called(runs, code, cost_of(name, overload, self.known), early=early))

    def _code(self, name: str, overloads: Sequence[Overload]) -> Callable[..., Any]:
        code = implementations(self.known).get(name, refused)
        if name in UNGUARDED:
            return code
        if len(overloads) == 1:
            return _guarded(name, code, [overloads[0]])
        return _guarded(name, code, self.functions[name])

    # --- literals ---

    def _list(self, node: ListLiteral) -> Planned:
        elements = [self.plan(element) for element in node.elements]
        if all(element.constant is not MISSING for element in elements) and not node.optional:
            return constant([element.constant for element in elements])
        return Planned(list_literal([element.run for element in elements], node.optional))

    def _map(self, node: MapLiteral) -> Planned:
        entries = [(self.plan(entry.key), self.plan(entry.value), entry.optional) for entry in node.entries]
        if all(key.constant is not MISSING and value.constant is not MISSING for key, value, _ in entries):
            try:
                return constant(map_literal([(key.run, value.run, one) for key, value, one in entries])(Frame({}, [])))
            except (ValueError, CELRuntimeError) as error:
                raise CELCompileError(f"program instantiation failed: {error}") from error
        return Planned(map_literal([(key.run, value.run, one) for key, value, one in entries]))

    def _message(self, node: MessageLiteral) -> Planned:
        fields = [(text_of(field.key), self.plan(field.value).run, field.optional) for field in node.fields]
        return Planned(message_literal(fields, self.checked.messages[node].made))

    # --- loops ---

    def _loop(self, node: Comprehension) -> Planned:
        over, start = self.plan(node.over).run, self.plan(node.start).run
        accumulator = self._slot()
        first, second = self._slot(), self._slot()
        self.scopes.append({node.accumulator: accumulator})
        self.scopes.append({node.variable: first, **({node.variable2: second} if node.variable2 else {})})
        condition, step = self.plan(node.condition).run, self.plan(node.step).run
        self.scopes.pop()
        result = self.plan(node.result).run
        self.scopes.pop()
        variable2 = second if node.variable2 else None
        return Planned(fold(Loop(over, start, condition, step, result, accumulator, first, variable2)))

    def _slot(self) -> int:
        self.variables += 1
        return self.variables - 1


def _guarded(name: str, code: Callable[..., Any], overloads: Sequence[Overload]) -> Callable[..., Any]:
    parameters = [overload.parameters for overload in overloads]

    def call(*arguments: Any) -> Any:
        if not any(accepts(types, arguments) for types in parameters):
            raise no_overload(name, *arguments)
        return code(*arguments)

    return call


def _folded(code: Callable[..., Any], argument: Any) -> Planned:
    try:
        return constant(code(argument))
    except ValueError as error:
        raise CELCompileError(f"program instantiation failed: {error}") from error


def _check_regex(pattern: str) -> None:
    try:
        compiled(pattern)
    except ValueError as error:
        raise CELCompileError(f"program instantiation failed: {error}") from error
