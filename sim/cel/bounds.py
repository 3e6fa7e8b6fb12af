"""Bounds on what an expression builds: every value that goes into a larger one is paid for, out of a fixed budget.

Kubernetes stops an expression at a cost of 1,000,000, where ten characters that are joined cost 1. The evaluator knows
no cost, so the checked expression is rewritten: each operand of `+` is charged with its size for every string that it
becomes part of, each element of a list or map once, and what `join`, `replace` and `flatten` make before they make it.
Where there are loops, what a call looks at is charged as well, each time: a string can be searched thousands of times.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from typing import Final

from cel_expr_python import cel

from dranode.proto.cel_expr_pb2 import CheckedExpr, Constant, Expr, Type
from dranode.sim.cel.overloads import Overload
from dranode.sim.cel.rewrite import UnsupportedExpressionError, children

# Characters and bytes that one evaluation may put together; an element of a list or map takes the place of many.
BUDGET: Final = 10_000_000
_ELEMENT: Final = 100
# Where macros collect what they make; an expression cannot contain such a name. The cost of what goes in is counted.
_COLLECTED: Final = "@result"
# Not "#unused", by which the evaluator knows cel.bind(): it keeps such a value past a loop that ends early.
_UNUSED: Final = "@unused"

# So much is looked at in the time in which one is put together.
_READS: Final = 10
# Calls that take as long however large their arguments are, or do not take all of them.
_FREE: Final = frozenset(
    {
        *("_&&_", "_||_", "_?_:_", "!_", "@not_strictly_false", "_[_]", "_[?_]", "_?._", "dyn", "type"),
        *("optional.of", "optional.none", "hasValue", "value", "or", "orValue"),
    }
)

_SPEND: Final = "dranode.spend"
_SPEND_PRODUCT: Final = "dranode.spend_product"
_READ: Final = "dranode.read"
_SIZED: Final = "dranode.sized"
_STRING_OR_BYTES: Final = (5, 6)  # Type.PrimitiveType
_ANY: Final = 1  # Type.WellKnownType
_WEIGHTS: Final = {"STRING": 1, "BYTES": 1, "LIST": _ELEMENT, "MAP": _ELEMENT}


# What the evaluation that is under way here has put together.
_spent: Final[ContextVar[int]] = ContextVar("spent", default=0)


def begin() -> None:
    """Start an evaluation with the whole budget."""
    _spent.set(0)


def _spend(kind: cel.Type, size: int, times: int) -> bool:
    return _charge(_weight(kind) * size * times)


def _read(kind: cel.Type, size: int) -> bool:
    return _charge(_weight(kind) * size // _READS)


def _spend_product(size: int, other: int) -> bool:
    return _charge((size + 1) * (other + 1))


def _charge(amount: int) -> bool:
    _spent.set(_spent.get() + amount)
    if _spent.get() > BUDGET:
        raise ValueError(
            f"operation cancelled: it puts together more than {BUDGET:,} characters or {BUDGET // _ELEMENT:,} elements"
            f", or looks at more than {_READS} times as many"
        )
    return True


def _weight(kind: cel.Type) -> int:
    return _WEIGHTS.get(kind.name().partition("<")[0], 0)


def _sized(kind: cel.Type) -> bool:
    return _weight(kind) > 0


IMPLEMENTATIONS: Final = (
    Overload(
        _SPEND,
        member=False,
        parameters=(cel.Type.DYN, cel.Type.INT, cel.Type.INT),
        result=cel.Type.BOOL,
        code=_spend,
    ),
    Overload(_READ, member=False, parameters=(cel.Type.DYN, cel.Type.INT), result=cel.Type.BOOL, code=_read),
    Overload(_SPEND_PRODUCT, member=False, parameters=(cel.Type.INT,) * 2, result=cel.Type.BOOL, code=_spend_product),
    Overload(_SIZED, member=False, parameters=(cel.Type.DYN,), result=cel.Type.BOOL, code=_sized),
)


def bound(checked: CheckedExpr) -> None:
    """Have the expression pay for what it builds, in place.

    Raises:
        UnsupportedExpressionError: it builds something whose size cannot be known before.
    """
    _Bound(checked).visit(checked.expr)


class _Bound:
    def __init__(self, checked: CheckedExpr) -> None:
        self.types = checked.type_map
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
                for element in expr.list_expr.elements:
                    self._pay(element)
            case "struct_expr":
                for entry in expr.struct_expr.entries:
                    self._pay(entry.value)
            case "call_expr":
                self._read(expr)
                self._call(expr)
        if joined:
            self._pay(expr, joined)

    def _read(self, expr: Expr) -> None:
        call = expr.call_expr
        if not self.loops or call.function in _FREE:
            return
        for argument in (*([call.target] if call.HasField("target") else []), *call.args):
            self._pay(argument, 0)

    def _call(self, expr: Expr) -> None:
        call = expr.call_expr
        if not call.HasField("target"):
            return
        match call.function, list(call.args):
            case "replace", [_, by, *_]:
                self._pay_product(expr, call.target, by)
            case "join", arguments:
                inner = self._pay_elements(expr, Expr(id=self._id(), const_expr=Constant(string_value="")))
                if arguments:
                    self._pay_product(inner, inner.call_expr.target, inner.call_expr.args[0])
            case "flatten", []:
                self._pay_elements(expr, Expr(id=self._id(), list_expr=Expr.CreateList()))
            case "flatten", _:
                raise UnsupportedExpressionError("flatten() with a depth is not known here; flatten step by step")

    def _pay(self, expr: Expr, times: int = 1) -> None:
        """Charge the value's size, as one that is only looked at if `times` is 0.

        `expr` becomes `bind(v, expr, charge(v) ? v : v)`.
        """
        kind = self._kind(expr)
        if kind is False or expr.WhichOneof("expr_kind") in ("const_expr", "list_expr", "struct_expr"):
            return
        if expr.ident_expr.name == _COLLECTED:
            return
        name, value = self._bound_name(expr)
        charge = self._charge(self._ident(name), self._call_of("size", self._ident(name)), times)
        if kind is None:
            sized = self._call_of(_SIZED, self._call_of("type", self._ident(name)))
            charge = self._call_of("_?_:_", sized, charge, self._true())
        self._bind(expr, name, value, charge, self._ident(name))

    def _pay_product(self, expr: Expr, left: Expr, right: Expr) -> None:
        """Charge the product of two sizes before a call on them; both are evaluated once."""
        first, first_value = self._bound_name(left)
        second, second_value = self._bound_name(right)
        left.CopyFrom(self._ident(first))
        right.CopyFrom(self._ident(second))
        call = Expr()
        call.CopyFrom(expr)
        sizes = (self._call_of("size", self._ident(name)) for name in (first, second))
        self._bind(expr, second, second_value, self._call_of(_SPEND_PRODUCT, *sizes), call)
        inner = Expr()
        inner.CopyFrom(expr)
        self._bind(expr, first, first_value, None, inner)

    def _pay_elements(self, expr: Expr, like: Expr) -> Expr:
        """Charge the sizes of all elements of the call's target, each one's weight that of `like`; the call again."""
        name, value = self._bound_name(expr.call_expr.target)
        expr.call_expr.target.CopyFrom(self._ident(name))
        element, total = f"{name}.element", f"{name}.total"
        step = self._call_of("_+_", self._ident(total), self._call_of("size", self._ident(element)))
        zero = Expr(id=self._id(), const_expr=Constant(int64_value=0))
        fold = Expr.Comprehension(
            iter_var=element,
            iter_range=self._ident(name),
            accu_var=total,
            accu_init=zero,
            loop_condition=self._true(),
            loop_step=step,
            result=self._ident(total),
        )
        charge = self._charge(like, Expr(id=self._id(), comprehension_expr=fold), 1)
        call = Expr()
        call.CopyFrom(expr)
        self._bind(expr, name, value, charge, call)
        return expr.comprehension_expr.result.call_expr.args[1]

    def _charge(self, like: Expr, size: Expr, times: int) -> Expr:
        if not times:
            return self._call_of(_READ, self._call_of("type", like), size)
        count = Expr(id=self._id(), const_expr=Constant(int64_value=times))
        return self._call_of(_SPEND, self._call_of("type", like), size, count)

    def _bound_name(self, expr: Expr) -> tuple[str, Expr]:
        value = Expr()
        value.CopyFrom(expr)
        return f"@dranode.{self._id()}", value

    def _bind(self, expr: Expr, name: str, value: Expr, charge: Expr | None, result: Expr) -> None:
        """`expr` becomes `result`, in which `name` is `value`, after the charge."""
        if charge is not None:
            again = Expr(id=self._id(), const_expr=Constant(bool_value=False))
            result = self._call_of("_?_:_", charge, result, again)
        loop = Expr.Comprehension(
            iter_var=_UNUSED,
            iter_range=Expr(id=self._id(), list_expr=Expr.CreateList()),
            accu_var=name,
            accu_init=value,
            loop_condition=Expr(id=self._id(), const_expr=Constant(bool_value=False)),
            loop_step=self._ident(name),
            result=result,
        )
        expr.CopyFrom(Expr(id=self._id(), comprehension_expr=loop))

    def _kind(self, expr: Expr) -> bool | None:
        """Whether the value has a size; None if only the evaluation can tell."""
        kind = self.types[expr.id] if expr.id in self.types else Type()
        match kind.WhichOneof("type_kind"):
            case "primitive":
                return kind.primitive in _STRING_OR_BYTES
            case "list_type" | "map_type":
                return True
            case "dyn" | "error" | None:
                return None
            case "well_known":
                return None if kind.well_known == _ANY else False
            case _:
                return False

    def _id(self) -> int:
        self.last_id += 1
        return self.last_id

    def _true(self) -> Expr:
        return Expr(id=self._id(), const_expr=Constant(bool_value=True))

    def _ident(self, name: str) -> Expr:
        return Expr(id=self._id(), ident_expr=Expr.Ident(name=name))

    def _call_of(self, function: str, *arguments: Expr) -> Expr:
        return Expr(id=self._id(), call_expr=Expr.Call(function=function, args=arguments))


def _ids(expr: Expr) -> Iterable[int]:
    yield expr.id
    for child in children(expr):
        yield from _ids(child)


def _loops(expr: Expr) -> bool:
    return expr.HasField("comprehension_expr") or any(map(_loops, children(expr)))
