"""The budget of one evaluation, and the functions that an expression pays with.

Kubernetes stops an expression at a cost of 1,000,000, where ten characters that are joined cost 1. The evaluator knows
no cost; `bounds` has each expression call these.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final

from cel_expr_python import cel

from dranode.sim.cel.overloads import Code, Overload

# Characters and bytes that one evaluation may put together; an element of a list or map takes the place of many.
BUDGET: Final = 10_000_000
ELEMENT: Final = 100
# So much is looked at in the time in which one is put together.
READS: Final = 10

SPEND: Final = "dranode.spend"
SPEND_WHOLE: Final = "dranode.spend_whole"
SPEND_PRODUCT: Final = "dranode.spend_product"
SPEND_PAIRS: Final = "dranode.spend_pairs"

# What the evaluation that is under way here has put together.
_spent: Final[ContextVar[int]] = ContextVar("spent", default=0)


def begin() -> None:
    """Start an evaluation with the whole budget."""
    _spent.set(0)


def _spend(size: int, tenths: int) -> bool:
    return _charge(size * tenths // READS)


def _spend_whole(value: Any, tenths: int) -> bool:
    return _charge(_weight(value) * tenths // READS)


def _spend_product(size: int, other: int) -> bool:
    return _charge((size + 1) * (other + 1))


def _spend_pairs(left: Any, right: Any) -> bool:
    return _charge((_weight(left) // ELEMENT + 1) * (_weight(right) // ELEMENT + 1))


def _charge(amount: int) -> bool:
    _spent.set(_spent.get() + amount)
    if _spent.get() > BUDGET:
        raise ValueError(
            f"operation cancelled: it puts together more than {BUDGET:,} characters or {BUDGET // ELEMENT:,} elements"
            f", or looks at more than {READS} times as many"
        )
    return True


def _weight(value: Any) -> int:
    """What a value costs with all that is in it; it holds no more than was paid for."""
    total, todo = 0, [value]
    while todo:
        match todo.pop():
            case str() | bytes() | bytearray() as text:
                total += len(text)
            case list() as values:
                total += len(values) * ELEMENT
                todo += values
            case dict() as entries:
                total += len(entries) * ELEMENT
                todo += entries
                todo += entries.values()
    return total


def _overload(name: str, first: cel.Type, second: cel.Type, code: Code) -> Overload:
    return Overload(name, member=False, parameters=(first, second), result=cel.Type.BOOL, code=code)


PAYMENTS: Final = (
    _overload(SPEND, cel.Type.INT, cel.Type.INT, _spend),
    _overload(SPEND_WHOLE, cel.Type.DYN, cel.Type.INT, _spend_whole),
    _overload(SPEND_PRODUCT, cel.Type.INT, cel.Type.INT, _spend_product),
    _overload(SPEND_PAIRS, cel.Type.DYN, cel.Type.DYN, _spend_pairs),
)
