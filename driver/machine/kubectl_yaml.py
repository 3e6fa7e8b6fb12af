"""Reads the items of a `List` as kubectl prints it in YAML: line by line, since PyYAML takes minutes for 100 MB.

What is read here is a part of YAML that cannot mean anything else: block mappings and sequences, plain, quoted and
literal scalars of ASCII, `{}` and `[]`. An item with more than that is loaded by PyYAML. Where it cannot stand alone
(anchors, a mistake, several documents) the whole text is, and nothing is returned here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import yaml

# Loads all documents of a text; a YAMLError where it is damaged.
Load: TypeAlias = Callable[[str], list[Any]]
# Loads a plain scalar that is a number, a truth value or nothing.
Resolve: TypeAlias = Callable[[str], Any]

_FIRST: Final = re.compile(r"(?:^|\n)items:\n(?=- )")
_TOP: Final = re.compile(r"\n(?=[^ \n])")
_LINE: Final = re.compile(
    r"(?P<indent> *)(?P<dash>- (?! |- ))?"
    r"(?:(?P<key>[A-Za-z_][A-Za-z0-9_./-]*):(?: +(?P<value>\S.*)?)?|(?P<scalar>\S.*))?"
)
_PLAIN: Final = re.compile(r"(?:[A-Za-z0-9_/.+~(=$^]|-(?=[!-~]))(?:[!-9;-~]|:(?! |$)| (?!#))*")
_SINGLE: Final = re.compile(r"'((?:[^']|'')*)'")
_DOUBLE: Final = re.compile(r'"([^"\\]*)"')
_ODD: Final = re.compile(r"[^\n -~]")
_ANCHOR: Final = re.compile(r"(?:^|[ \[{,])[&*][^ \n]|<<:|\n(?:---|\.\.\.)")
_KNOWN_LINES: Final = 50_000
_MAX_DEPTH: Final = 90

# Indent, whether it begins with a dash, key and text of the value; no key for a scalar in a sequence.
_Line: TypeAlias = tuple[int, bool, str | None, str]


class _NotSimple(Exception):  # noqa: N818 - it is no error
    """The text is not of the part of YAML that is read here."""


def list_document(text: str, load: Load, resolve: Resolve, limit: int) -> Any | None:
    """Return the document with its items; None if the text is not of that form, or has more than `limit` values."""
    first = _FIRST.search(text)
    if first is None:
        return None
    reader = _ItemReader(load, resolve)
    items: list[Any] = []
    begin = first.end()
    while True:
        following = _TOP.search(text, begin)
        end = following.start() if following is not None else len(text)
        try:
            items.append(reader.item(text[begin:end]))
        except (_NotSimple, yaml.YAMLError, ValueError):
            return None
        if reader.values > limit:
            return None
        begin = end + 1
        if not text.startswith("- ", begin):
            break
    return _around(text[: first.end()] + text[begin:], items, load)


def _around(rest: str, items: list[Any], load: Load) -> Any | None:
    """The document without its items, with them."""
    if _ANCHOR.search(rest):
        return None
    try:
        documents = load(rest)
    except yaml.YAMLError:
        return None
    if len(documents) != 1 or not isinstance(documents[0], dict) or documents[0].get("items", 0) is not None:
        return None
    documents[0]["items"] = items
    return documents[0]


class _ItemReader:
    """Reads items, with what it knows of lines that it has seen.

    Attributes:
        values: how many keys and values there were.
    """

    def __init__(self, load: Load, resolve: Resolve) -> None:
        self.values = 0
        self._load = load
        self._resolve = resolve
        self._lines: dict[str, _Line] = {}

    def item(self, text: str) -> Any:
        """The item; an error where the whole text has to be loaded."""
        if not _ODD.search(text):
            try:
                return self._read(text.split("\n"))
            except _NotSimple:
                pass
        if _ANCHOR.search(text):
            raise _NotSimple
        self.values += 2 * text.count("\n")
        ((item,),) = self._load(f"{text}\n")
        return item

    def _line(self, text: str) -> _Line:
        known = self._lines.get(text)
        if known is None:
            match = _LINE.fullmatch(text)
            if match is None:
                raise _NotSimple
            indent, dash, key, value, scalar = match.groups()
            if key is None and scalar is None:
                raise _NotSimple  # nothing but spaces
            if key is not None and self._scalar(key) != key:
                raise _NotSimple  # a key that is a number or a truth value
            if len(self._lines) > _KNOWN_LINES:
                self._lines.clear()
            known = (len(indent), dash is not None, key, (value or "") if key is not None else scalar)
            self._lines[text] = known
        return known

    def _read(self, lines: list[str]) -> Any:
        """The only item of a sequence in these lines."""
        nodes = _OpenNodes()
        number, count = 0, len(lines)
        while number < count:
            column, dash, key, value = self._line(lines[number])
            number += 1
            node = nodes.at(column, dash=dash)
            self.values += 1 if key is None else 2
            if key is None and not dash:
                raise _NotSimple
            if dash and key is not None:
                node = nodes.open_item(column + 2)
                column += 2
            if key is not None and key in node:
                raise _NotSimple
            if key is not None and not value:
                nodes.wait(key)
                continue
            end = number
            while end < count and _goes_on(lines[end], column):
                end += 1
            known = self._value(value, lines[number:end])
            number = end
            if key is not None:
                node[key] = known
            else:
                node.append(known)
        return nodes.items[0]

    def _value(self, value: str, more: list[str]) -> Any:
        """A value with the lines in which it goes on."""
        if value in ("|", "|-"):
            return _literal(more) + ("" if value == "|-" else "\n")
        if not all(more):
            raise _NotSimple
        if value == "{}" and not more:
            return {}
        if value == "[]" and not more:
            return []
        return self._scalar(" ".join((value.rstrip(" "), *(line.strip(" ") for line in more))))

    def _scalar(self, text: str) -> Any:
        text = text.rstrip(" ")
        quoted = _SINGLE.fullmatch(text)
        if quoted is not None:
            return quoted[1].replace("''", "'")
        quoted = _DOUBLE.fullmatch(text)
        if quoted is not None:
            return quoted[1]
        if _PLAIN.fullmatch(text) is None:
            raise _NotSimple
        if " " in text:
            return text
        return self._resolve(text)


class _OpenNodes:
    """The mappings and sequences around a line, each within the one before it.

    Attributes:
        items: the outermost, a sequence.
    """

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._columns = [0]
        self._nodes: list[Any] = [self.items]
        self._waiting: str | None = None  # the key of the innermost mapping whose value is in the lines to come

    def at(self, column: int, *, dash: bool) -> Any:
        """The sequence, if the line has a dash, or the mapping to which a line of that column belongs."""
        columns, nodes, waiting = self._columns, self._nodes, self._waiting
        if waiting is not None:
            if column > columns[-1] or (dash and column == columns[-1]):
                opened: Any = [] if dash else {}
                nodes[-1][waiting] = opened
                columns.append(column)
                nodes.append(opened)
            self._waiting = None
        # A sequence may stand in the column of its key.
        while columns[-1] > column or (columns[-1] == column and not dash and isinstance(nodes[-1], list)):
            columns.pop()
            nodes.pop()
            if not columns:
                raise _NotSimple
        if columns[-1] != column or isinstance(nodes[-1], list) is not dash or len(columns) > _MAX_DEPTH:
            raise _NotSimple
        return nodes[-1]

    def open_item(self, column: int) -> dict[str, Any]:
        """Begin a mapping in the innermost sequence."""
        opened: dict[str, Any] = {}
        self._nodes[-1].append(opened)
        self._columns.append(column)
        self._nodes.append(opened)
        return opened

    def wait(self, key: str) -> None:
        """The value of the key is in the lines to come; if there is none, it is nothing."""
        self._nodes[-1][key] = None
        self._waiting = key


def _goes_on(line: str, column: int) -> bool:
    """Return whether a value goes on in the line: it is further in than what it is the value of, or empty."""
    return not line or line.startswith(" " * (column + 1))


def _literal(lines: list[str]) -> str:
    """The text of a literal, without its end."""
    column = len(lines[0]) - len(lines[0].lstrip(" ")) if lines else 0
    if not lines or len(lines[0]) == column or any(line[:column].strip(" ") for line in lines):
        raise _NotSimple
    return "\n".join(line[column:] for line in lines).rstrip("\n")
