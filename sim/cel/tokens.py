"""The words of an expression and what its literals mean (cel-spec, langdef.md, with the lexer's rules of cel-go)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dranode.sim.cel.errors import CELCompileError

_ESCAPE: Final = r"\\(?:[abfnrtv\"'\\?`]|[0-3][0-7][0-7]|[xX][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})"
_STRING: Final = "|".join(
    (
        rf'"""(?:{_ESCAPE}|[^\\])*?"""',
        rf"'''(?:{_ESCAPE}|[^\\])*?'''",
        rf'"(?:{_ESCAPE}|[^\\"\n\r])*"',
        rf"'(?:{_ESCAPE}|[^\\'\n\r])*'",
    )
)
_RAW: Final = r'''[rR](?:"""[\s\S]*?"""|\'\'\'[\s\S]*?\'\'\'|"[^"\n\r]*"|'[^'\n\r]*')'''
_TOKEN: Final = re.compile(
    "|".join(
        (
            r"(?P<space>[\t \r\n\f]+|//[^\n]*)",
            rf"(?P<bytes>[bB](?:{_RAW}|{_STRING}))",
            rf"(?P<string>{_RAW}|{_STRING})",
            r"(?P<double>[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|\.[0-9]+(?:[eE][+-]?[0-9]+)?)",
            r"(?P<uint>0x[0-9a-fA-F]+[uU]|[0-9]+[uU])",
            r"(?P<int>0x[0-9a-fA-F]+|[0-9]+)",
            r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)",
            r"(?P<escaped>`[A-Za-z0-9_.\-/ ]+`)",
            r"(?P<sign>==|!=|<=|>=|&&|\|\||[<>\[\]{}().,\-!?:+*/%])",
        )
    )
)
_SIMPLE: Final = {"a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11}
_ESCAPES: Final = re.compile(_ESCAPE)
_SURROGATES: Final = range(0xD800, 0xE000)
_LARGEST: Final = 0x10FFFF


@dataclass(frozen=True, slots=True)
class Token:
    """A word: its kind (`name`, `int`, `sign` ... or `end`), its text, and where it begins, in characters."""

    kind: str
    text: str
    start: int


def tokens(source: str) -> Iterator[Token]:
    """The words of the source, without spaces and comments, and the end.

    Raises:
        CELCompileError: something is none.
    """
    position = 0
    while position < len(source):
        found = _TOKEN.match(source, position)
        if found is None:
            raise CELCompileError(f"Syntax error: token recognition error at: {source[position : position + 10]!r}")
        if found.lastgroup != "space":
            kind = "sign" if found.lastgroup == "name" and found[0] == "in" else found.lastgroup or ""
            yield Token(kind, found[0], position)
        position = found.end()
    yield Token("end", "<EOF>", position)


def string_of(text: str) -> str:
    """The value of a string literal.

    Raises:
        CELCompileError: it has the code of no character.
    """
    raw, body = _unquoted(text)
    return body if raw else _ESCAPES.sub(lambda found: _character(found[0]), body)


def bytes_of(text: str) -> bytes:
    """The value of a bytes literal, in which escapes of numbers are bytes and everything else is UTF-8.

    Raises:
        CELCompileError: it has an escape of a character's code.
    """
    raw, body = _unquoted(text[1:])
    if raw:
        return body.encode()
    parts: list[bytes] = []
    end = 0
    for found in _ESCAPES.finditer(body):
        parts += (body[end : found.start()].encode(), _byte(found[0]))
        end = found.end()
    return b"".join((*parts, body[end:].encode()))


def _unquoted(text: str) -> tuple[bool, str]:
    """Return whether it is raw, and what stands between the quotes, with line ends as cel-go has them."""
    raw = text[0] in "rR"
    text = (text[1:] if raw else text).replace("\r\n", "\n").replace("\r", "\n")
    quotes = 3 if text[:3] in ('"""', "'''") and len(text) >= 6 else 1  # noqa: PLR2004 - two times three quotes
    return raw, text[quotes:-quotes]


def _character(escape: str) -> str:
    code = _code(escape)
    if code in _SURROGATES or code > _LARGEST:
        raise CELCompileError(f"invalid unicode code point: {escape}")
    return chr(code)


def _byte(escape: str) -> bytes:
    if escape[1] in "uU":
        raise CELCompileError(f"unable to unescape string: {escape} in bytes")
    return bytes([_code(escape)])


def _code(escape: str) -> int:
    kind = escape[1]
    if kind in "xXuU":
        return int.from_bytes(bytes.fromhex(escape[2:]))
    if kind.isdigit():
        return int(escape[1:], 8)
    return _SIMPLE.get(kind, ord(kind))
