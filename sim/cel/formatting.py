"""`"...".format([...])` of cel-go's strings library, version 2, with the numbers of English (ext/formatting.go)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from dranode.sim.cel.bounds import check_length
from dranode.sim.cel.conversions import to_string
from dranode.sim.cel.syntax import Expr, ListLiteral, MapLiteral
from dranode.sim.cel.types import DYN, CELType, TypeKind
from dranode.sim.cel.values import Duration, Timestamp, TypeValue, UInt, key_value, type_name

_CLAUSE: Final = re.compile(r"%(?:%|(?P<precision>\.[0-9]+)?(?P<verb>[sdfebxXo])|(?P<wrong>[\s\S]?))")
_PRECISION: Final = 6
_MAX_PRECISION: Final = 1_000_000
_RAISED: Final = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
_SPECIAL: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_PRINTED: Final = (str, bool, int, UInt, float, bytes, Duration, Timestamp, TypeValue)

_INTEGERS: Final = frozenset({TypeKind.INT, TypeKind.UINT})
_STRINGS: Final = frozenset(
    {
        TypeKind.LIST,
        TypeKind.MAP,
        TypeKind.INT,
        TypeKind.UINT,
        TypeKind.DOUBLE,
        TypeKind.BOOL,
        TypeKind.STRING,
        TypeKind.TIMESTAMP,
        TypeKind.BYTES,
    }
    | {TypeKind.DURATION, TypeKind.TYPE, TypeKind.NULL}
)
# The types that each verb takes, and what is said of others.
_TAKEN: Final = {
    "s": (
        _STRINGS,
        (
            "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and"
            " timestamps"
        ),
    ),
    "d": (_INTEGERS, "decimal clause can only be used on integers"),
    "f": (frozenset({TypeKind.DOUBLE, TypeKind.STRING}), "fixed-point clause can only be used on doubles"),
    "e": (frozenset({TypeKind.DOUBLE, TypeKind.STRING}), "scientific clause can only be used on doubles"),
    "b": (_INTEGERS | {TypeKind.BOOL}, "only integers and bools can be formatted as binary"),
    "x": (
        _INTEGERS | {TypeKind.STRING, TypeKind.BYTES},
        "only integers, byte buffers, and strings can be formatted as hex",
    ),
    "o": (_INTEGERS, "octal clause can only be used on integers"),
}


def formatted(pattern: str, values: Sequence[Any]) -> str:
    """The pattern with the values in the places of its clauses.

    Raises:
        ValueError: a clause is none, has no value, or takes no value like it.
    """
    parts: list[str] = []
    length = 0
    for text, verb, precision, index in _clauses(pattern, len(values)):
        parts.append(text if verb is None else _VERBS[verb](values[index], precision))
        length += len(parts[-1])
        check_length(length)
    return "".join(parts)


def check_format(pattern: str, arguments: Sequence[Expr], types: Callable[[Expr], CELType]) -> None:
    """Look whether literal values fit their clauses.

    Raises:
        ValueError: they do not, or there are more of them than clauses.
    """
    used = 0
    for _, verb, _, index in _clauses(pattern, len(arguments)):
        if verb is None:
            continue
        used += 1
        taken, problem = _TAKEN[verb.lower()]
        wrong = _wrong(arguments[index], taken, types, deep=verb == "s")
        if wrong is not None:
            raise ValueError(f"{problem}, was given {wrong}")
    if len(arguments) > used:
        raise ValueError(f"too many arguments supplied to string.format (expected {used}, got {len(arguments)})")


def _wrong(node: Expr, taken: frozenset[TypeKind], types: Callable[[Expr], CELType], *, deep: bool) -> CELType | None:
    """The type that the clause does not take, in the value or its parts."""
    kind = types(node)
    if kind != DYN and kind.kind not in taken:
        return kind
    if not deep:
        return None
    inner: list[Expr] = []
    if isinstance(node, ListLiteral):
        inner = node.elements
    elif isinstance(node, MapLiteral):
        inner = [one for entry in node.entries for one in (entry.key, entry.value)]
    return next((bad for one in inner if (bad := _wrong(one, taken, types, deep=True)) is not None), None)


def _clauses(pattern: str, count: int) -> Iterator[tuple[str, str | None, int | None, int]]:
    """The pattern in parts: text, or a verb with its precision and the index of its value."""
    end = index = 0
    for one in _CLAUSE.finditer(pattern):
        yield pattern[end : one.start()], None, None, 0
        end = one.end()
        if one[0] == "%%":
            yield "%", None, None, 0
            continue
        if index >= count:
            raise ValueError(f"index {index} out of range")
        if one["verb"] is None:
            raise ValueError(
                f'could not parse formatting clause: unrecognized formatting clause "{one["wrong"]}"'
                if one["wrong"]
                else "unexpected end of string"
            )
        precision = int(one["precision"][1:]) if one["precision"] else None
        yield "", one["verb"], precision, index
        index += 1
    yield pattern[end:], None, None, 0


def _string(value: Any, _: int | None) -> str:
    if value is None:
        return "null"
    if isinstance(value, (list, dict)):
        return _nested(value)
    if not isinstance(value, _PRINTED):
        raise _not_taken("s", value)
    return value.name if isinstance(value, TypeValue) else to_string(value)


def _nested(value: Any) -> str:  # noqa: PLR0911 - one for each kind
    """A value in a list or map."""
    match value:
        case list():
            parts = [_nested(one) for one in value]
            check_length(sum(map(len, parts)))
            return f"[{', '.join(parts)}]"
        case dict():
            pairs = sorted(f"{_key(key_value(key))}:{_nested(one)}" for key, one in value.items())
            check_length(sum(map(len, pairs)))
            return f"{{{', '.join(pairs)}}}"
        case str():
            return _quoted(value)
        case bytes():
            return f"b{_quoted(_string(value, None))}"
        case float():
            return f"{value:.6f}" if math.isfinite(value) else _quoted(to_string(value))
        case Timestamp() | Duration():
            kind = "timestamp" if isinstance(value, Timestamp) else "duration"
            return f"{kind}({_quoted(to_string(value))})"
        case None | bool() | int() | TypeValue():
            return _string(value, None)
    raise _no_function(type_name(value))


def _key(value: Any) -> str:
    if not isinstance(value, (str, bool, int)):
        raise _no_function(f"map key of type {type_name(value)}")
    return _nested(value)


def _no_function(name: str) -> ValueError:
    return ValueError(f"no formatting function for {name}")


def _quoted(text: str) -> str:
    """As Go's %q: what can be printed stays."""
    return "".join(one if one.isprintable() and one not in '"\\' else _escaped(one) for one in text).join('""')


def _escaped(character: str) -> str:
    simple = {"\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"}
    if character in simple:
        return simple[character]
    code = ord(character)
    if character in '"\\':
        return f"\\{character}"
    return f"\\x{code:02x}" if code < 0x80 else json.dumps(character)[1:-1]  # noqa: PLR2004 - ASCII


def _decimal(value: Any, _: int | None) -> str:
    return str(_integer("d", value))


def _binary(value: Any, _: int | None) -> str:
    return str(int(value)) if isinstance(value, bool) else f"{_integer('b', value):b}"


def _octal(value: Any, _: int | None) -> str:
    return f"{_integer('o', value):o}"


def _hex(value: Any, _: int | None) -> str:
    if isinstance(value, (str, bytes)):
        return (value.encode() if isinstance(value, str) else value).hex()
    return f"{_integer('x', value):x}"


def _integer(verb: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _not_taken(verb, value)
    return int(value)


def _fixed(value: Any, precision: int | None) -> str:
    number = _double("f", value)
    if not math.isfinite(number):
        return _infinite(number)
    digits = _PRECISION if precision is None else precision
    check_length(digits)
    return f"{number:,.{digits}f}" if number else f"{0:,.{digits}f}"


def _scientific(value: Any, width: int | None) -> str:
    """With six digits; what looks like a precision is a width there."""
    number = _double("e", value)
    width = _PRECISION if width is None else width
    check_length(width)
    if not math.isfinite(number):
        return _infinite(number).rjust(width)
    mantissa, _, exponent = f"{number + 0.0:.6e}".partition("e")
    power = f"{abs(int(exponent)):02d}"
    raised = f"{'-' if exponent.startswith('-') else ''}{power}".translate(_RAISED)
    return f"{mantissa}\u00d710{raised}".rjust(width)


def _not_taken(verb: str, value: Any) -> ValueError:
    return ValueError(f"{_TAKEN[verb][1]}, was given {type_name(value)}")


def _infinite(number: float) -> str:
    return "NaN" if math.isnan(number) else "∞" if number > 0 else "-∞"


def _double(verb: str, value: Any) -> float:
    if isinstance(value, float):
        return value
    if isinstance(value, str) and value in _SPECIAL:
        return _SPECIAL[value]
    raise _not_taken(verb, value)


_VERBS: Final[dict[str, Callable[[Any, int | None], str]]] = {
    "s": _string,
    "d": _decimal,
    "f": _fixed,
    "e": _scientific,
    "b": _binary,
    "o": _octal,
    "x": _hex,
    "X": lambda value, precision: _hex(value, precision).upper(),
}
