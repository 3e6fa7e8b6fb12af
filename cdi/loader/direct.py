"""Decodes a CDI document straight from YAML to its fields, as the Go library does from v1.1.1 on.

Older libraries make JSON of it first (`dranode.cdi.loader.document`). Without that step names of fields count letter by
letter, a scalar that stands for text keeps its own spelling (`010`, not `8`), a null leaves its place in a list, own
keys override merged ones, and the whole file must be text, also what follows the first document, of which more has to
be YAML: two tokens behind the one that ends it.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import Any, Final

from yaml.reader import Reader, ReaderError

from dranode.cdi.errors import CDIError, shown
from dranode.cdi.loader.document import no_value, refuse_nulls, spec_from_fields
from dranode.cdi.loader.fields import SPEC, TEXT, FieldKind, Flag, List, Number, Object, Pointer, Text, Texts
from dranode.cdi.loader.yaml_nodes import Alias, Mapping, Scalar, Sequence, YAMLNode, first_document
from dranode.cdi.loader.yaml_values import is_merge, scalar_value
from dranode.cdi.spec import Spec

# What Go's decoder says of a null where there is no pointer: the place keeps what it has.
_KEPT: Final = object()
# go.yaml.in/yaml v3 reads comments, and scans two tokens ahead for that (yaml_parser_fetch_more_tokens of v3.0.5).
_AHEAD: Final = 2
_TAG: Final = "tag:yaml.org,2002:"
# Booleans of YAML 1.1 that are text by YAML 1.2, and true or false only where a boolean is expected.
_BOOLEAN_WORDS: Final = frozenset(
    ("y", "Y", "yes", "Yes", "YES", "on", "On", "ON", "n", "N", "no", "No", "NO", "off", "Off", "OFF")
)


def load_directly(data: bytes) -> Spec:
    """Decode a file that the JSON way has loaded.

    Raises:
        CDIError: the library would not decode the file, or would crash over a null; the path says where.
    """
    _refuse_other_than_text(data)
    node = first_document(data, _AHEAD)
    if node is None:
        raise CDIError("there is no document")
    plain = _object(SPEC, node, "")
    refuse_nulls(plain, "")
    return spec_from_fields(plain)


def _refuse_other_than_text(data: bytes) -> None:
    utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        Reader(data.decode("utf-16" if utf16 else "utf-8-sig"))
    except UnicodeDecodeError as error:
        raise CDIError(f"byte {error.start}: is no text, which a file must be to its end") from error
    except ReaderError as error:
        raise CDIError(f"character {error.position}: is a control character, which no file may have") from error


def _value(kind: FieldKind, node: YAMLNode, path: str) -> Any:
    node = node.node if isinstance(node, Alias) else node
    if isinstance(node, Scalar) and _scalar(node, path) is None:
        return None if isinstance(kind, (List, Texts, Pointer)) else _KEPT
    match kind:
        case Text():
            result: Any = _text(node, path)
        case Flag():
            result = _scalar(node, path)
        case Number():
            result = int(_scalar(node, path))
        case List():
            result = _list(kind, node, path)
        case Texts():
            pairs = ((key, _value(TEXT, value, f"{path}.{key}")) for key, value in _entries(node, path))
            result = {key: "" if value is _KEPT else value for key, value in pairs}
        case Pointer():
            result = _object(kind.target, node, path)
        case Object():
            result = _object(kind, node, path)
    return result


def _scalar(node: YAMLNode, path: str) -> Any:
    if not isinstance(node, Scalar):
        raise CDIError("is no single value", path)
    value = scalar_value(node)
    if node.tag == f"{_TAG}bool" and node.value in _BOOLEAN_WORDS:
        raise CDIError(f"{shown(node.value)} is no boolean of YAML 1.2, as its tag says", path)
    return value


def _text(node: YAMLNode, path: str) -> str:
    value = _scalar(node, path)
    if isinstance(node, Scalar) and node.tag != f"{_TAG}binary":
        return node.value
    return str(value)


def _list(kind: List, node: YAMLNode, path: str) -> list[Any]:
    if not isinstance(node, Sequence):
        raise CDIError("must be a list", path)
    items = Pointer(kind.items) if kind.nulls_crash and isinstance(kind.items, Object) else kind.items
    values = (_value(items, item, f"{path}[{index}]") for index, item in enumerate(node.items))
    return [value for value in values if value is not _KEPT]


def _object(kind: Object, node: YAMLNode, path: str) -> dict[str, Any]:
    result: dict[str, Any] = no_value(kind)
    for key, inner in _entries(node, path):
        where = f"{path}.{key}" if path else key
        if key not in kind.fields:
            raise CDIError("is no field that it knows, letter by letter", where)
        value = _value(kind.fields[key], inner, where)
        if value is not _KEPT:
            result[key] = value
    return result


def _entries(node: YAMLNode, path: str) -> Iterator[tuple[str, YAMLNode]]:
    """Yield key and value of each member of an object: its own, then those of what it merges."""
    node = node.node if isinstance(node, Alias) else node
    if not isinstance(node, Mapping):
        raise CDIError("must be an object", path)
    _refuse_repeated(node, path)
    merged: YAMLNode | None = None
    seen: set[str] = set()
    for key_node, value in node.pairs:
        if is_merge(key_node):
            merged = value
        elif isinstance(key := _value(TEXT, key_node, path), str):  # a null is no key, and is passed over
            seen.add(key)
            yield key, value
    if merged is None:
        return
    for source in merged.items if isinstance(merged, Sequence) else (merged,):
        for key, value in _entries(source, path):
            if key not in seen:
                seen.add(key)
                yield key, value


def _refuse_repeated(node: Mapping, path: str) -> None:
    spelled: set[tuple[type, str]] = set()
    for key, _ in node.pairs:
        text = key.value if isinstance(key, Scalar) else key.name if isinstance(key, Alias) else ""
        if (type(key), text) in spelled:
            raise CDIError(f"line {key.line}: key {shown(text)} is given twice", path)
        spelled.add((type(key), text))
