"""What stands between the checked expression of cel-expr-python and what kube-scheduler evaluates.

Kubernetes looks attributes and capacity up in maps that know every domain, and compares versions and quantities with
nothing but their like. The evaluator has none of this, so the checked expression is rewritten:

- `device.attributes[d]` and `device.capacity[d]` give an empty map for a domain that is not there;
- `a == b`, where the type of `a` is only known at run time, is an error if `a` is a version or quantity and `b` is not;
- `has(device.attributes.d)` is true, as every domain is there;
- the length of `lists.range` is bounded, as the cost limit of Kubernetes does it.

What is then left of other differences is refused, so that no selector is answered wrongly in silence.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dranode.driver.core.api.errors import DranodeError
from dranode.proto.cel_expr_pb2 import CheckedExpr, Constant, Expr, Type

COMPARABLE: Final = "dranode.comparable"
BOUNDED: Final = "dranode.bounded"

_MAPS: Final = frozenset({"device.attributes", "device.capacity"})
_MESSAGE_FIELD: Final = "canonical_text"  # of proto/cel_values.proto; selectors must not see it
_OPTIONAL: Final = "optional_type"
_OPTIONAL_AS_ANY: Final = "an optional value is used where any value can be; unwrap it with orValue()"
_ANY: Final = 1  # Type.WellKnownType.ANY


class RefusedExpressionError(DranodeError):
    """An expression that Kubernetes would refuse, for a reason that the type checker used here does not know."""


class UnsupportedExpressionError(RefusedExpressionError):
    """An expression that Kubernetes takes and that the evaluator would be wrong about or cannot run."""


def literals(expr: Expr, function: str) -> Iterator[str]:
    """The text literals that are the last argument of calls of `function`."""
    call = expr.call_expr
    if call.function == function and call.args and call.args[-1].const_expr.HasField("string_value"):
        yield call.args[-1].const_expr.string_value
    for child in children(expr):
        yield from literals(child, function)


def rewrite(checked: CheckedExpr) -> None:
    """Give the expression the meaning that it has in Kubernetes, in place.

    Raises:
        RefusedExpressionError: Kubernetes refuses the expression.
        UnsupportedExpressionError: this evaluator would be wrong about it.
    """
    _Rewrite(checked).visit(checked.expr)


def children(expr: Expr) -> Iterator[Expr]:
    """The expressions directly below."""
    match expr.WhichOneof("expr_kind"):
        case "select_expr":
            yield expr.select_expr.operand
        case "call_expr":
            if expr.call_expr.HasField("target"):
                yield expr.call_expr.target
            yield from expr.call_expr.args
        case "list_expr":
            yield from expr.list_expr.elements
        case "struct_expr":
            for entry in expr.struct_expr.entries:
                if entry.HasField("map_key"):
                    yield entry.map_key
                yield entry.value
        case "comprehension_expr":
            loop = expr.comprehension_expr
            yield from (loop.iter_range, loop.accu_init, loop.loop_condition, loop.loop_step, loop.result)


class _Rewrite:
    def __init__(self, checked: CheckedExpr) -> None:
        self.types = checked.type_map
        self.references = checked.reference_map
        self.last_id = max([*self.types, *self.references, 0])
        self.formatted: set[int] = set()  # the lists that `format` takes, which may mix types

    def visit(self, expr: Expr) -> None:
        """Rewrite from the leaves up."""
        self._refuse_optional_in_disguise(expr)
        if expr.call_expr.function == "format":
            self.formatted.update(argument.id for argument in expr.call_expr.args)
        for child in children(expr):
            self.visit(child)
        match expr.WhichOneof("expr_kind"):
            case "select_expr":
                self._select(expr)
            case "call_expr":
                self._call(expr)
            case "list_expr" if expr.id not in self.formatted:
                self._refuse_mixed(list(expr.list_expr.elements), "list")
            case "struct_expr":
                self._struct(expr)

    def _select(self, expr: Expr) -> None:
        select = expr.select_expr
        operand = _ident(select.operand)
        if select.field == _MESSAGE_FIELD:
            raise RefusedExpressionError(f"undefined field '{select.field}'")
        if operand in _MAPS and select.test_only:
            expr.const_expr.bool_value = True
        elif operand in _MAPS:
            self._domain(expr, select.operand, _text(self._id(), select.field))

    def _call(self, expr: Expr) -> None:
        call = expr.call_expr
        match call.function, list(call.args):
            case "_[_]", [base, key] if _ident(base) in _MAPS:
                self._domain(expr, base, key)
            case (("_[?_]" | "_?._"), [base, key]) if _ident(base) in _MAPS:
                domain = Expr(id=self._id())
                self._domain(domain, base, key)
                self._set_call(expr, "optional.of", domain)
            case "_==_", [left, right] if self._unknown_type(left):
                self._compare(expr, left, right)
            case "cel.@mapInsert", _:
                raise UnsupportedExpressionError("transformMap() of Kubernetes is not known here")
            case "lists.range", [length]:
                call.args[0].CopyFrom(self._made_call(BOUNDED, length))

    def _domain(self, expr: Expr, base: Expr, key: Expr) -> None:
        """`base[?key].orValue({})`."""
        found = self._made_call("_[?_]", base, key)
        nothing = Expr(id=self._id(), struct_expr=Expr.CreateStruct())
        made = Expr(id=expr.id, call_expr=Expr.Call(target=found, function="orValue", args=[nothing]))
        expr.CopyFrom(made)

    def _compare(self, expr: Expr, left: Expr, right: Expr) -> None:
        """`comparable(type(left), type(right)) ? left == right : false`."""
        kinds = [self._made_call("type", self._copy(side)) for side in (left, right)]
        condition = self._made_call(COMPARABLE, *kinds)
        equal = self._made_call("_==_", left, right)
        self._set_call(expr, "_?_:_", condition, equal, Expr(id=self._id(), const_expr=Constant(bool_value=False)))

    def _struct(self, expr: Expr) -> None:
        entries = expr.struct_expr.entries
        if expr.struct_expr.message_name.startswith("kubernetes."):
            raise RefusedExpressionError(f"undeclared reference to '{expr.struct_expr.message_name}'")
        self._refuse_mixed([entry.map_key for entry in entries if entry.HasField("map_key")], "map")
        self._refuse_mixed([entry.value for entry in entries], "map")

    def _refuse_mixed(self, elements: list[Expr], what: str) -> None:
        """Kubernetes wants the elements of a literal to be of one type, unless they are only known at run time."""
        kinds = {
            self.types[element.id].SerializeToString(deterministic=True)
            for element in elements
            if element.id in self.types and not self._unknown_type(element)
        }
        if any(map(self._unknown_type, elements)) and any(map(self._holds_optional, elements)):
            raise UnsupportedExpressionError(_OPTIONAL_AS_ANY)
        if len(kinds) > 1:
            raise RefusedExpressionError(f"the elements of a {what} are not all of one type, which Kubernetes refuses")

    def _refuse_optional_in_disguise(self, expr: Expr) -> None:
        """An optional value must not become a dynamic one: the evaluator cannot hand it to a function."""
        if self._unknown_type(expr) and any(self._holds_optional(child) for child in self._values_passed_on(expr)):
            raise UnsupportedExpressionError(_OPTIONAL_AS_ANY)

    def _values_passed_on(self, expr: Expr) -> list[Expr]:
        call = expr.call_expr
        if call.function in {"dyn", "_?_:_"} or expr.WhichOneof("expr_kind") == "comprehension_expr":
            return list(children(expr))
        return []

    def _holds_optional(self, expr: Expr) -> bool:
        return expr.id in self.types and holds_optional(self.types[expr.id])

    def _unknown_type(self, expr: Expr) -> bool:
        if expr.id not in self.types:
            return False  # the checker leaves out what it does not need, and errors
        kind = self.types[expr.id]
        return kind.WhichOneof("type_kind") in {"dyn", "error", None} or kind.well_known == _ANY

    def _id(self) -> int:
        self.last_id += 1
        return self.last_id

    def _copy(self, expr: Expr) -> Expr:
        """A copy under new ids, with the types and references of the original."""
        made = Expr()
        made.CopyFrom(expr)
        todo = [made]
        while todo:
            one = todo.pop()
            old, one.id = one.id, self._id()
            if old in self.types:
                self.types[one.id].CopyFrom(self.types[old])
            if old in self.references:
                self.references[one.id].CopyFrom(self.references[old])
            todo += children(one)
        return made

    def _made_call(self, function: str, *arguments: Expr) -> Expr:
        return Expr(id=self._id(), call_expr=Expr.Call(function=function, args=arguments))

    def _set_call(self, expr: Expr, function: str, *arguments: Expr) -> None:
        expr.CopyFrom(Expr(id=expr.id, call_expr=Expr.Call(function=function, args=arguments)))


def _ident(expr: Expr) -> str:
    return expr.ident_expr.name if expr.WhichOneof("expr_kind") == "ident_expr" else ""


def _text(number: int, text: str) -> Expr:
    return Expr(id=number, const_expr=Constant(string_value=text))


def holds_optional(kind: Type) -> bool:
    """Whether a value of the type is an optional one or has such in it."""
    match kind.WhichOneof("type_kind"):
        case "abstract_type":
            return kind.abstract_type.name == _OPTIONAL or any(map(holds_optional, kind.abstract_type.parameter_types))
        case "list_type":
            return holds_optional(kind.list_type.elem_type)
        case "map_type":
            return holds_optional(kind.map_type.value_type)
        case _:
            return False
