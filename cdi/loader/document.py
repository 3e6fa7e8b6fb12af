"""A CDI document as the Go library up to v1.1.0 decodes it: YAML to JSON, and JSON to the fields of the specification.

Unknown fields are refused; names of fields match in any letter case (two spellings of one field are merged, the later
in byte order winning); numbers and booleans become text where text is expected; null leaves a field unset.
"""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from typing import Any, Final

import msgspec

from dranode.cdi.errors import CDIError, shown
from dranode.cdi.loader.fields import SPEC, TEXT, FieldKind, Flag, List, Number, Object, Pointer, Text, Texts
from dranode.cdi.loader.yaml_nodes import first_document
from dranode.cdi.loader.yaml_values import GoMap, GoScalar, GoValue, go_value
from dranode.cdi.spec import INT64, Spec


class LoadedSpec(msgspec.Struct, frozen=True):
    """The content of a spec file.

    Attributes:
        spec: the content; a missing text is empty.
        fields: the names of all fields that the file mentions, even as null, in the specification's spelling.
    """

    spec: Spec
    fields: frozenset[str]


# Go folds two letters beyond ASCII to ASCII ones: the long s and the Kelvin sign.
_FOLD: Final = str.maketrans({"\u017f": "s", "\u212a": "k"})
_SHORTEST_FLOAT32: Final = range(1, 10)
_PLAIN_EXPONENTS: Final = range(-4, 6)


def _float32(value: float) -> float:
    try:
        rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    return rounded


def _float_text(value: float) -> str:
    """Format a float as the library does: the shortest digits of a 32-bit float, with an exponent from 1e+06 on."""
    short = _float32(value)
    if math.isnan(short):
        return "NaN"
    if math.isinf(short):
        return "+Inf" if short > 0 else "-Inf"
    candidates = (f"{short:.{size - 1}e}" for size in _SHORTEST_FLOAT32)
    digits = next(text for text in candidates if _float32(float(text)) == short)
    exponent = int(digits.partition("e")[2])
    return f"{Decimal(digits):f}" if exponent in _PLAIN_EXPONENTS else digits


def _key_text(key: GoScalar, path: str) -> str:
    match key:
        case str():
            return key
        case bool():
            return "true" if key else "false"
        case int() if key in INT64:
            return str(key)
        case float():
            text = _float_text(key)
            return {"+Inf": ".inf", "-Inf": "-.inf", "NaN": ".nan"}.get(text, text)
    raise CDIError("null is no key" if key is None else f"{key} is no key", path)


def _whole(value: float) -> int | None:
    """Return a float as an integer if JSON writes it without fraction and exponent, else None."""
    return int(Decimal(repr(value))) if value.is_integer() and abs(value) < 1e21 else None  # noqa: PLR2004


class _Decoder:
    """Decodes values into objects that may have content: two spellings of one field go to the same place."""

    def __init__(self) -> None:
        self.fields: set[str] = set()

    def decode(self, kind: FieldKind, value: GoValue, old: Any, path: str) -> Any:
        if value is None:
            return old if isinstance(kind, (Text, Flag, Number, Object)) else None
        match kind:
            case Text():
                result: Any = _text(value, path)
            case Flag():
                result = _flag(value, path)
            case Number():
                result = _number(kind, value, path)
            case List():
                result = self._list(kind, value, old or [], path)
            case Texts():
                entries = _entries(value, path)
                result = (old or {}) | {key: self.decode(TEXT, text, "", where) for key, text, where in entries}
            case Pointer():
                result = self._object(kind.target, value, old, path)
            case Object():
                result = self._object(kind, value, old, path)
        return result

    def _list(self, kind: List, value: GoValue, old: list[Any], path: str) -> list[Any]:
        if not isinstance(value, list):
            raise CDIError(f"is {_described(value)} and must be a list", path)
        result: list[Any] = []
        for index, item in enumerate(value):
            if item is None and kind.nulls_crash:
                result.append(None)
                continue
            there = old[index] if index < len(old) else None
            start = no_value(kind.items) if there is None else there
            result.append(self.decode(kind.items, item, start, f"{path}[{index}]"))
        return result

    def _object(self, kind: Object, value: GoValue, old: dict[str, Any] | None, path: str) -> dict[str, Any]:
        result: dict[str, Any] = no_value(kind) if old is None else old
        names = {name.lower(): name for name in kind.fields}
        for key, inner, where in _entries(value, path):
            folded = key.translate(_FOLD)
            if not folded.isascii() or folded.lower() not in names:
                raise CDIError("is no field that the library knows", where)
            name = names[folded.lower()]
            self.fields.add(name)
            result[name] = self.decode(kind.fields[name], inner, result.get(name), where)
        return result


def _text(value: GoValue, path: str) -> str:
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return _float_text(value)
    raise CDIError(f"is {_described(value)} and must be text", path)


def _flag(value: GoValue, path: str) -> bool:
    if not isinstance(value, bool):
        raise CDIError(f"is {_described(value)} and must be true or false", path)
    return value


def _number(kind: Number, value: GoValue, path: str) -> int:
    number = None
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, float) and math.isfinite(value):
        # JSON writes "-0", which Go refuses for an unsigned number.
        signed = value == 0 and math.copysign(1, value) < 0
        number = None if signed and kind.values.start == 0 else _whole(value)
    if number is None or number not in kind.values:
        raise CDIError(f"is {_described(value)} and must be {kind.what}", path)
    return number


def _entries(value: GoValue, path: str) -> list[tuple[str, GoValue, str]]:
    """Return key, value and path of each member of an object, in the order in which the library decodes them."""
    if not isinstance(value, dict):
        raise CDIError(f"is {_described(value)} and must be an object", path)
    mapping: GoMap = value
    entries = {_key_text(key, path): inner for (_, key), inner in mapping.items()}
    return [(key, entries[key], f"{path}.{key}" if path else key) for key in sorted(entries)]


def no_value(kind: FieldKind) -> Any:
    """Return what a field has that the file does not set; None if it is absent then."""
    match kind:
        case Text():
            return ""
        case Flag():
            return False
        case Number():
            return 0
        case Object():
            return {name: no_value(field) for name, field in kind.fields.items() if isinstance(field, (Text, Object))}
    return None


def _described(value: GoValue) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return f"the text {shown(value)}"
        case list():
            return "a list"
        case dict():
            return "an object"
    return str(value)


def refuse_nulls(value: Any, path: str) -> None:
    """Refuse a list with a null in it.

    Raises:
        CDIError: there is one; the path says where.
    """
    if isinstance(value, dict):
        for key, inner in value.items():
            refuse_nulls(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            if item is None:
                raise CDIError("is null, which crashes every runtime that reads it", f"{path}[{index}]")
            refuse_nulls(item, f"{path}[{index}]")


def spec_from_fields(plain: dict[str, Any]) -> Spec:
    """Return the content of decoded fields, None standing for those that are absent."""
    return msgspec.convert({"devices": []} | _without_unset(plain), Spec)


def _without_unset(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_unset(inner) for key, inner in value.items() if inner is not None}
    return [_without_unset(item) for item in value] if isinstance(value, list) else value


def load_spec(data: bytes) -> LoadedSpec:
    """Decode a file as the library does, before it applies rules to the content.

    Raises:
        CDIError: the library would not decode the file, or would crash over a null; the path says where.
    """
    node = first_document(data)
    value = None if node is None else go_value(node)
    if not isinstance(value, dict):
        what = "there is no document" if value is None else f"the document is {_described(value)} and must be an object"
        raise CDIError(what)
    decoder = _Decoder()
    plain = decoder.decode(SPEC, value, None, "")
    refuse_nulls(plain, "")
    return LoadedSpec(spec_from_fields(plain), frozenset(decoder.fields))
