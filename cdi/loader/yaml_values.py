"""Gives YAML nodes the values that they have for the Go library: scalars by its form of YAML 1.1, merges, no key twice.

A mapping's keys keep their type, because `1` and `"1"` are two keys; `GoMap` therefore maps (type, value) pairs.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Final, TypeAlias

from dranode.cdi.errors import CDIError, shown
from dranode.cdi.loader.yaml_nodes import Alias, Mapping, Scalar, Sequence, YAMLNode
from dranode.cdi.loader.yaml_syntax import DEPTH_LIMIT
from dranode.cdi.spec import INT64

GoScalar: TypeAlias = str | bool | int | float | None
GoKey: TypeAlias = tuple[type, GoScalar]
GoMap: TypeAlias = "dict[GoKey, GoValue]"
GoValue: TypeAlias = "GoScalar | list[GoValue] | GoMap"

_UINT64: Final = range(2**64)

_TAG: Final = "tag:yaml.org,2002:"
_WORDS: Final[dict[str, tuple[str, GoScalar]]] = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), ("bool", True)),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), ("bool", False)),
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), ("null", None)),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), ("float", math.nan)),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), ("float", math.inf)),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), ("float", -math.inf)),
}
_INTEGERS: Final = (
    (16, re.compile(r"([-+]?)0[xX]([0-9a-fA-F]+)")),
    (8, re.compile(r"([-+]?)0[oO]?([0-7]+)")),
    (2, re.compile(r"([-+]?)0[bB]([01]+)")),
    (10, re.compile(r"([-+]?)(0|[1-9][0-9]*)")),
)
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
# Underscores may stand anywhere in a number, but in one that begins with a dot only between digits.
_POINT_FLOAT: Final = re.compile(r"\.[0-9](?:_?[0-9])*(?:[eE][-+]?[0-9](?:_?[0-9])*)?")
_DATE: Final = re.compile(
    r"(\d{4}-\d{1,2}-\d{1,2})(?:(?:[Tt]| )(\d{1,2}:\d{1,2}:\d{1,2})(?:[.,]\d+)?(Z|[-+]\d\d:\d\d)?)?"
)

# How the Go library stops documents that expand without end: it limits the share of nodes reached through aliases.
_ALIAS_FLOOR: Final = 100
_NODE_FLOOR: Final = 1000
_ALIAS_SHARE: Final = 0.99
_FULL_SHARE_UP_TO: Final = 400_000


def _integer(text: str) -> int | None:
    for base, form in _INTEGERS:
        if match := form.fullmatch(text):
            value = int(match[1] + match[2], base) if base != 10 or len(text) <= 20 else _UINT64.stop  # noqa: PLR2004
            # Go reads a number with a sign, even a plus, as a signed one.
            return value if value in INT64 or (not match[1] and value in _UINT64) else None
    return None


def _float(text: str) -> float | None:
    value = float(text) if _FLOAT.fullmatch(text) else math.inf
    return value if math.isfinite(value) else None


def _is_timestamp(text: str) -> bool:
    match = _DATE.fullmatch(text)
    if not match:
        return False
    date, time, zone = match.groups()
    # A "T" needs a zone, and a space must not have one.
    if time and ((" " in text) == bool(zone)):
        return False
    try:
        datetime.strptime(f"{date} {time or '0:0:0'}", "%Y-%m-%d %H:%M:%S")  # noqa: DTZ007 - only whether it is one
    except ValueError:
        return False
    return True


def _looks(text: str) -> tuple[str, GoScalar]:
    """Return the short tag and the value of a plain scalar."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] in "0123456789+-":
        digits = text.replace("_", "")
        if (integer := _integer(digits)) is not None:
            return "int", integer
        if (number := _float(digits)) is not None:
            return "float", number
    elif _POINT_FLOAT.fullmatch(text) and (number := _float(text.replace("_", ""))) is not None:
        return "float", number
    return "str", text


def _binary(text: str) -> str:
    try:
        return base64.b64decode(text.replace("\r", "").replace("\n", ""), validate=True).decode(errors="replace")
    except (binascii.Error, ValueError) as error:
        raise CDIError("!!binary is not followed by base64") from error


def scalar_value(node: Scalar) -> GoScalar:
    """Return the value of a scalar node.

    Raises:
        CDIError: the text does not fit its explicit tag.
    """
    tag = node.tag.removeprefix(_TAG) if node.tag.startswith(_TAG) else ""
    if (not node.tag and not node.plain) or tag == "str":
        return node.value
    if tag == "binary":
        return _binary(node.value)
    if node.tag and tag not in ("bool", "int", "float", "null", "timestamp"):
        return node.value
    if tag == "timestamp" and _is_timestamp(node.value):
        return node.value
    implied, value = _looks(node.value)
    if tag == "float" and implied == "int" and isinstance(value, int) and value in INT64:
        return float(value)
    if tag not in ("", implied):
        raise CDIError(f"{shown(node.value)} is not what its tag !!{tag} says")
    return value


def is_merge(node: YAMLNode) -> bool:
    """Return whether a key is the one whose value is merged into its object."""
    return isinstance(node, Scalar) and node.value == "<<" and (node.plain or node.tag == f"{_TAG}merge")


class _Values:
    def __init__(self) -> None:
        self._nodes = 0
        self._through_aliases = 0
        self._open: list[int] = []

    def value(self, node: YAMLNode, path: str, depth: int = 0) -> GoValue:
        self._enter(node.line, depth)
        if isinstance(node, Alias):
            with self._through(node):
                return self.value(node.node, path, depth + 1)
        if isinstance(node, Scalar):
            try:
                return scalar_value(node)
            except CDIError as error:
                raise CDIError(error.message, path) from error
        if isinstance(node, Sequence):
            return [self.value(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(node.items)]
        result: GoMap = {}
        self._fill(node, result, path, depth)
        return result

    def _enter(self, line: int, depth: int) -> None:
        if depth > DEPTH_LIMIT:
            raise CDIError(f"line {line}: is nested more than {DEPTH_LIMIT} levels deep")
        self._nodes += 1
        self._through_aliases += bool(self._open)
        few = self._through_aliases <= _ALIAS_FLOOR or self._nodes <= _NODE_FLOOR
        allowed = min(_ALIAS_SHARE * self._nodes, _ALIAS_SHARE * _FULL_SHARE_UP_TO)
        if not few and self._through_aliases > allowed:
            raise CDIError(f"line {line}: aliases repeat too much of the document")

    @contextmanager
    def _through(self, alias: Alias) -> Iterator[None]:
        if id(alias) in self._open:
            raise CDIError(f"line {alias.line}: what &{alias.name} anchors contains *{alias.name}")
        self._open.append(id(alias))
        yield
        self._open.pop()

    def _fill(self, node: Mapping, result: GoMap, path: str, depth: int) -> None:
        for key_node, value_node in node.pairs:
            if is_merge(key_node):
                self._merge(value_node, result, path, depth)
                continue
            key = self.value(key_node, path, depth + 1)
            if isinstance(key, (list, dict)):
                raise CDIError(f"line {key_node.line}: a list or an object is no key", path)
            place = f"{path}.{key}" if path else str(key)
            value = self.value(value_node, place, depth + 1)
            # NaN is not even equal to itself.
            if (type(key), key) in result and key == key:  # noqa: PLR0124
                raise CDIError(f"line {key_node.line}: key {shown(str(key))} is given twice", path)
            result[type(key), key] = value

    def _merge(self, node: YAMLNode, result: GoMap, path: str, depth: int) -> None:
        # The library refuses a key that a merge brings a second time, so an own key never overrides a merged one.
        for source in node.items if isinstance(node, Sequence) else (node,):
            target = source.node if isinstance(source, Alias) else source
            if not isinstance(target, Mapping):
                raise CDIError(f"line {source.line}: << takes an object or a list of objects", path)
            self._enter(source.line, depth)
            if isinstance(source, Alias):
                with self._through(source):
                    self._enter(target.line, depth)
                    self._fill(target, result, path, depth + 1)
            else:
                self._fill(target, result, path, depth + 1)


def go_value(node: YAMLNode) -> GoValue:
    """Return the value of a document.

    Raises:
        CDIError: a key is given twice, a tag does not fit, or an alias contains itself; the message has path or line.
    """
    return _Values().value(node, "")
