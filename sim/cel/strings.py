"""The string functions of cel-go's extension library, version 2 (ext/strings.go)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dranode.sim.cel.bounds import check_length
from dranode.sim.cel.known import KnownToCEL

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
    """The character, "" at the end."""
    _check(0 <= index <= len(text), index)
    return text[index : index + 1]


def substring(text: str, start: int, end: int | None = None) -> str:
    """The characters from `start` to before `end`."""
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
    """The text with the first `most` or all of the old parts replaced."""
    times = text.count(old) if most < 0 else min(most, text.count(old))
    check_length(len(text) + times * (len(new) - len(old)))
    return text.replace(old, new, most)


def split(text: str, separator: str, most: int = -1) -> list[str]:
    """The parts between separators, or between characters, at most so many."""
    if most == 0:
        return []
    if separator == "":
        parts = list(text)
        return parts if most < 0 or len(parts) <= most else [*parts[: most - 1], "".join(parts[most - 1 :])]
    return text.split(separator, most - 1 if most > 0 else -1)


def join(values: list[Any], separator: str = "") -> str:
    """The strings in one."""
    if not all(isinstance(one, str) for one in values):
        raise ValueError("join: invalid input")
    check_length(sum(map(len, values)) + len(separator) * max(len(values) - 1, 0))
    return separator.join(values)


def trim(text: str) -> str:
    """The text without spaces around it, as Unicode knows them."""
    return text.strip(_SPACES + _SPACES_BEYOND)


def lower(text: str) -> str:
    """The text in small ASCII letters."""
    return text.translate(_LOWER)


def upper(text: str) -> str:
    """The text in capital ASCII letters."""
    return text.translate(_UPPER)


def quote(text: str) -> str:
    """The text as a literal."""
    return f'"{"".join(_QUOTED.get(one, one) for one in text)}"'


def string_searches(known: KnownToCEL) -> dict[str, Callable[..., Any]]:
    """The functions that releases have in two kinds."""
    clamped = known.cel_go_29
    return {
        "indexOf": lambda text, part, offset=0: index_of(text, part, offset, clamped=clamped),
        "lastIndexOf": lambda text, part, offset=None: last_index_of(text, part, offset, clamped=clamped),
    }


_LOWER: Final = {ord(one): one.lower() for one in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
_UPPER: Final = {ord(one): one.upper() for one in "abcdefghijklmnopqrstuvwxyz"}
