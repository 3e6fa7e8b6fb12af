"""The string functions of cel-go's extension library, version 2 (ext/strings.go, ext/formatting.go).

Regular expressions are RE2's, as Go's regexp reads them; numbers are formatted as in English.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from string import ascii_lowercase, ascii_uppercase
from typing import Any, Final

from dranode.sim.cel.declarations import DYN, CELType, TypeKind
from dranode.sim.cel.syntax import Expr, ListLiteral, MapLiteral, check_length
from dranode.sim.cel.values import INT64, Duration, Timestamp, TypeValue, UInt, key_value, to_string, type_name

# An escape of RE2 for any byte, which Go does not have.
_ANY_BYTE: Final = re.compile(r"\\(?:Q[\s\S]*?(?:\\E|$)|(?P<code>[\s\S]))")


@lru_cache(maxsize=1024)
def compiled(pattern: str) -> Any:
    """Return the compiled pattern, from a cache.

    Raises:
        ValueError: it is none.
    """
    import re2  # noqa: PLC0415 - heavy, and most selectors have no pattern

    if any(escape["code"] == "C" for escape in _ANY_BYTE.finditer(pattern)):
        raise ValueError(r"error parsing regexp: invalid escape sequence: `\C`")
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        (reason, *_) = error.args
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise ValueError(f"error parsing regexp: {text}") from error


def has_match(text: str, pattern: str) -> bool:
    """Return whether the pattern is found anywhere in the text."""
    return compiled(pattern).search(text) is not None


def first_match(text: str, pattern: str) -> str:
    """Return the first match of the pattern; "" if there is none."""
    first = compiled(pattern).search(text)
    return "" if first is None else str(first[0])


def all_matches(text: str, pattern: str, most: int = -1) -> list[str]:
    """Return all matches of the pattern, or the first `most` of them if that is not negative."""
    matches: list[str] = []
    after = -1
    for match in compiled(pattern).finditer(text):
        if 0 <= most <= len(matches):
            break
        # Go ignores an empty match directly after another match.
        if match.end() > match.start() or match.start() != after:
            matches.append(match[0])
        after = match.end()
    return matches


TO_LOWER: Final = str.maketrans(ascii_uppercase, ascii_lowercase)
TO_UPPER: Final = str.maketrans(ascii_lowercase, ascii_uppercase)
_SPACES: Final = "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
_SPACES_BEYOND: Final = "\u2028\u2029\u202f\u205f\u3000"
_QUOTED: Final = {
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
    "\\": "\\\\",
    '"': '\\"',
}


def char_at(text: str, index: int) -> str:
    """Return the character at an index; "" at the end."""
    _check(0 <= index <= len(text), index)
    return text[index : index + 1]


def substring(text: str, start: int, end: int | None = None) -> str:
    """Return the characters from `start` to before `end`."""
    if end is not None and start > end:
        raise ValueError(f"invalid substring range. start: {start}, end: {end}")
    _check(0 <= start <= len(text), start)
    if end is not None:
        _check(0 <= end <= len(text), end)
    return text[start:end]


def index_of(text: str, part: str, offset: int = 0, *, clamped: bool) -> int:
    """Return where the part is from the offset on, -1 if nowhere.

    An empty one is at the offset, `clamped` to the length.
    """
    if part == "":
        return _empty_at(text, offset, clamped=clamped)
    _check(offset >= 0, offset)
    return text.find(part, offset) if offset < len(text) else -1


def last_index_of(text: str, part: str, offset: int | None = None, *, clamped: bool) -> int:
    """Return where the part is last, not after the offset."""
    if offset is None:
        return text.rfind(part)
    if part == "":
        return _empty_at(text, offset, clamped=clamped)
    _check(offset >= 0, offset)
    return text.rfind(part, 0, offset + len(part)) if offset < len(text) else -1


def _empty_at(text: str, offset: int, *, clamped: bool) -> int:
    if not clamped:
        return offset
    _check(offset >= 0, offset)
    return min(offset, len(text))


def _check(within: bool, index: int) -> None:  # noqa: FBT001 - what has to hold
    if not within:
        raise ValueError(f"index out of range: {index}")


def replace(text: str, old: str, new: str, most: int = -1) -> str:
    """Return the text with the first `most` or all of the old parts replaced."""
    times = text.count(old) if most < 0 else min(most, text.count(old))
    check_length(len(text) + times * (len(new) - len(old)))
    return text.replace(old, new, most)


def split(text: str, separator: str, most: int = -1) -> list[str]:
    """Return at most so many parts, split at separators or, if that is empty, between characters."""
    if most == 0:
        return []
    if separator == "":
        parts = list(text)
        return parts if most < 0 or len(parts) <= most else [*parts[: most - 1], "".join(parts[most - 1 :])]
    return text.split(separator, most - 1 if most > 0 else -1)


def join(values: list[Any], separator: str = "") -> str:
    """Return the strings joined."""
    if not all(isinstance(value, str) for value in values):
        raise ValueError("join: invalid input")
    check_length(sum(map(len, values)) + len(separator) * max(len(values) - 1, 0))
    return separator.join(values)


def trim(text: str) -> str:
    """Return the text without Unicode white space around it."""
    return text.strip(_SPACES + _SPACES_BEYOND)


def quote(text: str) -> str:
    """Return the text as a literal."""
    return f'"{"".join(_QUOTED.get(character, character) for character in text)}"'


_CLAUSE: Final = re.compile(r"%(?:%|(?P<precision>\.[0-9]+)?(?P<verb>[sdfebxXo])|(?P<wrong>[\s\S]?))")
_PRECISION: Final = 6
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
# The types that each verb accepts, and the error for others.
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
    """Return the pattern with its clauses replaced by values.

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
    """Check that literal values have the types of their clauses.

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
    """Return the type in a value or its parts that the clause does not accept."""
    kind = types(node)
    if kind != DYN and kind.kind not in taken:
        return kind
    if not deep:
        return None
    inner: list[Expr] = []
    if isinstance(node, ListLiteral):
        inner = node.elements
    elif isinstance(node, MapLiteral):
        inner = [part for entry in node.entries for part in (entry.key, entry.value)]
    return next((bad for part in inner if (bad := _wrong(part, taken, types, deep=True)) is not None), None)


def _clauses(pattern: str, count: int) -> Iterator[tuple[str, str | None, int | None, int]]:
    """Return the parts of the pattern: text, or a verb with its precision and the index of its value."""
    end = index = 0
    for clause in _CLAUSE.finditer(pattern):
        yield pattern[end : clause.start()], None, None, 0
        end = clause.end()
        if clause[0] == "%%":
            yield "%", None, None, 0
            continue
        if index >= count:
            raise ValueError(f"index {index} out of range")
        if clause["verb"] is None:
            raise ValueError(
                f'could not parse formatting clause: unrecognized formatting clause "{clause["wrong"]}"'
                if clause["wrong"]
                else "unexpected end of string"
            )
        precision = int(clause["precision"][1:]) if clause["precision"] else None
        if precision is not None and precision not in INT64:
            raise ValueError(f"the precision {precision} has more than 64 bits")
        yield "", clause["verb"], precision, index
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
    """Return the text of a value in a list or map."""
    match value:
        case list():
            parts = [_nested(element) for element in value]
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
    """Return a character as Go's %q does, which keeps printable ones."""
    return "".join(
        character if character.isprintable() and character not in '"\\' else _escaped(character) for character in text
    ).join('""')


def _escaped(character: str) -> str:
    code = ord(character)
    hexadecimal = f"\\x{code:02x}" if code < 0x80 else json.dumps(character)[1:-1]  # noqa: PLR2004 - ASCII
    return _QUOTED.get(character, hexadecimal)


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
    """Return the number with six digits; cel-go uses the precision as a width there."""
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
    "d": lambda value, _: str(_integer("d", value)),
    "f": _fixed,
    "e": _scientific,
    "b": lambda value, _: str(int(value)) if isinstance(value, bool) else f"{_integer('b', value):b}",
    "o": lambda value, _: f"{_integer('o', value):o}",
    "x": _hex,
    "X": lambda value, precision: _hex(value, precision).upper(),
}
