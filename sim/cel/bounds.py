"""Bounds on what an expression builds: every value that goes into a larger one is paid for, out of a fixed budget.

Kubernetes stops an expression at a cost of 1,000,000, where ten characters that are joined cost 1. The evaluator knows
no cost, so the checked expression is rewritten: each operand of `+` is charged with its size for every string that it
becomes part of, each element of a list or map once, and what `join`, `replace`, `split` and `flatten` make before they
make it. Where there are loops, what a call looks at is charged as well, each time: a string can be searched thousands
of times. A list or map counts with all that is in it, each time that it is in it: lists that share lists are small and
take as long to compare as if each were there by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dranode.proto.cel_expr_pb2 import CheckedExpr, Constant, Expr, Type
from dranode.sim.cel.budget import ELEMENT, READS, SPEND, SPEND_PAIRS, SPEND_PRODUCT, SPEND_WHOLE
from dranode.sim.cel.rewrite import UnsupportedExpressionError, children, holds_optional

# Where macros collect what they make; an expression cannot contain such a name. The cost of what goes in is counted.
_COLLECTED: Final = "@result"
# Not "#unused", by which the evaluator knows cel.bind(): it keeps such a value past a loop that ends early.
_UNUSED: Final = "@unused"

# Calls that take as long however large their arguments are, or do not take all of them.
_FREE: Final = frozenset(
    {
        *("_&&_", "_||_", "_?_:_", "!_", "@not_strictly_false", "_[_]", "_[?_]", "_?._", "dyn", "type"),
        *("optional.of", "optional.none", "hasValue", "value", "or", "orValue"),
    }
)

_STRING_OR_BYTES: Final = (5, 6)  # Type.PrimitiveType
_ANY: Final = 1  # Type.WellKnownType
_OPTIONAL: Final = "optional_type"
_OPTIONALS: Final = "what lists of optional values cost is not known here; use orValue()"


def bound(checked: CheckedExpr) -> None:
    """Have the expression pay for what it builds, in place.

    Raises:
        UnsupportedExpressionError: it builds something whose size cannot be known before.
    """
    _Bound(checked).visit(checked.expr)


class _Bound:
    def __init__(self, checked: CheckedExpr) -> None:
        self.types = dict(checked.type_map)
        self.last_id = max([*self.types, *checked.reference_map, *_ids(checked.expr), 0])
        self.loops = _loops(checked.expr)

    def visit(self, expr: Expr, joined: int = 0) -> None:
        """Rewrite from the leaves up; what `expr` is becomes part of `joined` sums."""
        if expr.call_expr.function == "_+_":
            for argument in expr.call_expr.args:
                self.visit(argument, joined + 1)
            return
        for child in children(expr):
            self.visit(child)
        match expr.WhichOneof("expr_kind"):
            case "list_expr":
                self._literal(expr, list(expr.list_expr.elements))
            case "struct_expr":
                self._literal(expr, [entry.value for entry in expr.struct_expr.entries])
            case "call_expr":
                self._read(expr)
                self._call(expr)
        if joined:
            self._pay(expr, joined)

    def _literal(self, expr: Expr, elements: list[Expr]) -> None:
        """Charge what is in a literal; what is written in it is made, in a loop, in every turn."""
        size = len(elements) * ELEMENT + sum(len(element.const_expr.string_value) for element in elements)
        for element in elements:
            self._pay(element)
        if self.loops and size > ELEMENT:
            made = Expr()
            made.CopyFrom(expr)
            self._replace(expr, self._after(self._call_of(SPEND, self._number(size), self._number(1)), made))

    def _read(self, expr: Expr) -> None:
        call = expr.call_expr
        if not self.loops or call.function in _FREE:
            return
        for argument in (*([call.target] if call.HasField("target") else []), *call.args):
            self._pay(argument, 0)

    def _call(self, expr: Expr) -> None:
        call = expr.call_expr
        match call.function, list(call.args):
            case "sets.contains" | "sets.equivalent" | "sets.intersects", [left, right]:
                self._pay_pairs(expr, left, right)
            case "distinct", _ if _unit_cost(self._kind(call.target)) is None:
                self._pay_distinct(call.target)
            case "replace", [_, by, *_]:
                self._pay_product(expr, call.target, by)
            case "split", _:
                self._pay_split(call.target)
            case "join", arguments:
                inner = self._pay_elements(expr, 1)
                if arguments:
                    self._pay_product(inner, inner.call_expr.target, inner.call_expr.args[0])
            case "flatten", []:
                self._pay_elements(expr, ELEMENT)
            case "flatten", _:
                raise UnsupportedExpressionError("flatten() with a depth is not known here; flatten step by step")

    def _pay(self, expr: Expr, times: int = 1) -> None:
        """Charge the value's size, as one that is only looked at if `times` is 0.

        `expr` becomes `bind(v, expr, charge(v) ? v : v)`.
        """
        if expr.WhichOneof("expr_kind") in ("const_expr", "list_expr", "struct_expr"):
            return
        if expr.ident_expr.name == _COLLECTED:
            return
        name, value = self._bound_name(expr)
        charge = self._charge(self._kind(expr), self._ident(name), times * READS or 1)
        if charge is not None:
            self._bind(expr, name, value, charge, self._ident(name))

    def _charge(self, kind: Type, value: Expr, tenths: int) -> Expr | None:
        """The charge of a value, so many times a tenth of its size; None if it has no size."""
        if kind.abstract_type.name == _OPTIONAL:
            inner = Expr(id=self._id(), call_expr=Expr.Call(target=value, function="value"))
            charge = self._charge(kind.abstract_type.parameter_types[0], inner, tenths)
            there = Expr(id=self._id(), call_expr=Expr.Call(target=value, function="hasValue"))
            return charge and self._call_of("_?_:_", there, charge, self._true())
        if holds_optional(kind):
            raise UnsupportedExpressionError(_OPTIONALS)
        cost = _unit_cost(kind)
        if cost is None:
            return self._call_of(SPEND_WHOLE, value, self._number(tenths))
        return self._call_of(SPEND, self._call_of("size", value), self._number(cost * tenths)) if cost else None

    def _pay_product(self, expr: Expr, left: Expr, right: Expr) -> None:
        """Charge the product of two sizes before a call on them."""
        names = self._bound_names(left, right)
        sizes = (self._call_of("size", self._ident(name)) for name, _ in names)
        self._bind_both(expr, names, self._call_of(SPEND_PRODUCT, *sizes))

    def _pay_pairs(self, expr: Expr, left: Expr, right: Expr) -> None:
        """Charge a call that compares each element of one list with each of another."""
        if any(holds_optional(self._kind(side)) for side in (left, right)):
            raise UnsupportedExpressionError(_OPTIONALS)
        names = self._bound_names(left, right)
        self._bind_both(expr, names, self._call_of(SPEND_PAIRS, *(self._ident(name) for name, _ in names)))

    def _pay_distinct(self, values: Expr) -> None:
        """Charge what compares each element with each other, which is so where they are not numbers and the like."""
        if holds_optional(self._kind(values)):
            raise UnsupportedExpressionError(_OPTIONALS)
        name, value = self._bound_name(values)
        charge = self._call_of(SPEND_PAIRS, self._ident(name), self._ident(name))
        self._bind(values, name, value, charge, self._ident(name))

    def _pay_split(self, text: Expr) -> None:
        """Charge a tenth of the pieces that a text may fall into: it may be split between any two characters."""
        name, value = self._bound_name(text)
        charge = self._call_of(SPEND, self._call_of("size", self._ident(name)), self._number(ELEMENT))
        self._bind(text, name, value, charge, self._ident(name))

    def _pay_elements(self, expr: Expr, cost: int) -> Expr:
        """Charge the sizes of all elements of the call's target; the call again."""
        name, value = self._bound_name(expr.call_expr.target)
        expr.call_expr.target.CopyFrom(self._ident(name))
        element, total = f"{name}.element", f"{name}.total"
        step = self._call_of("_+_", self._ident(total), self._call_of("size", self._ident(element)))
        fold = Expr.Comprehension(
            iter_var=element,
            iter_range=self._ident(name),
            accu_var=total,
            accu_init=self._number(0),
            loop_condition=self._true(),
            loop_step=step,
            result=self._ident(total),
        )
        size = Expr(id=self._id(), comprehension_expr=fold)
        call = Expr()
        call.CopyFrom(expr)
        self._bind(expr, name, value, self._call_of(SPEND, size, self._number(cost * READS)), call)
        return expr.comprehension_expr.result.call_expr.args[1]

    def _bound_name(self, expr: Expr) -> tuple[str, Expr]:
        value = Expr()
        value.CopyFrom(expr)
        return f"@dranode.{self._id()}", value

    def _bound_names(self, left: Expr, right: Expr) -> tuple[tuple[str, Expr], tuple[str, Expr]]:
        """Names for two parts of a call, which stand for them in it from now on, and the two."""
        first, second = self._bound_name(left), self._bound_name(right)
        left.CopyFrom(self._ident(first[0]))
        right.CopyFrom(self._ident(second[0]))
        return first, second

    def _bind_both(self, expr: Expr, names: tuple[tuple[str, Expr], tuple[str, Expr]], charge: Expr) -> None:
        """`expr` becomes itself, with both names bound, after the charge."""
        for (name, value), before in zip(reversed(names), (charge, None), strict=True):
            call = Expr()
            call.CopyFrom(expr)
            self._bind(expr, name, value, before, call)

    def _bind(self, expr: Expr, name: str, value: Expr, charge: Expr | None, result: Expr) -> None:
        """`expr` becomes `result`, in which `name` is `value`, after the charge."""
        loop = Expr.Comprehension(
            iter_var=_UNUSED,
            iter_range=Expr(id=self._id(), list_expr=Expr.CreateList()),
            accu_var=name,
            accu_init=value,
            loop_condition=Expr(id=self._id(), const_expr=Constant(bool_value=False)),
            loop_step=self._ident(name),
            result=result if charge is None else self._after(charge, result),
        )
        self._replace(expr, Expr(id=self._id(), comprehension_expr=loop))

    def _after(self, charge: Expr, value: Expr) -> Expr:
        """The value, after the charge."""
        return self._call_of("_?_:_", charge, value, Expr(id=self._id(), const_expr=Constant(bool_value=False)))

    def _replace(self, expr: Expr, by: Expr) -> None:
        """`expr` becomes another expression of its type."""
        if expr.id in self.types:
            self.types[by.id] = self.types[expr.id]
        expr.CopyFrom(by)

    def _kind(self, expr: Expr) -> Type:
        return self.types.get(expr.id, Type())

    def _id(self) -> int:
        self.last_id += 1
        return self.last_id

    def _true(self) -> Expr:
        return Expr(id=self._id(), const_expr=Constant(bool_value=True))

    def _number(self, number: int) -> Expr:
        return Expr(id=self._id(), const_expr=Constant(int64_value=number))

    def _ident(self, name: str) -> Expr:
        return Expr(id=self._id(), ident_expr=Expr.Ident(name=name))

    def _call_of(self, function: str, *arguments: Expr) -> Expr:
        return Expr(id=self._id(), call_expr=Expr.Call(function=function, args=arguments))


def _unit_cost(kind: Type) -> int | None:
    """What a character or an element costs; 0 if a value of the type has none, None if what is in it counts as well."""
    match kind.WhichOneof("type_kind"):
        case "primitive":
            return int(kind.primitive in _STRING_OR_BYTES)
        case "list_type":
            element = kind.list_type.elem_type
            return ELEMENT if element.HasField("primitive") and not _unit_cost(element) else None
        case "map_type" | "dyn" | "error" | None:
            return None
        case "well_known" if kind.well_known == _ANY:
            return None
        case _:
            return 0


def _ids(expr: Expr) -> Iterable[int]:
    yield expr.id
    for child in children(expr):
        yield from _ids(child)


def _loops(expr: Expr) -> bool:
    return expr.HasField("comprehension_expr") or any(map(_loops, children(expr)))
