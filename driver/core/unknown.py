"""Fields of a document that the API does not have: misspelt ones mostly, which the API server would drop or refuse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

# Fields of alpha gates that no value here carries (KEP-5729).
_KNOWN_ELSEWHERE: Final = frozenset({"derivedAttributes"})


def unknown_fields(kind: type[msgspec.Struct], document: Any, path: str = "") -> Iterator[str]:
    """The path of every field of `document` that `kind` and the values inside it do not have."""
    yield from _in_type(msgspec.inspect.type_info(kind), document, path)


def _in_type(info: msgspec.inspect.Type, document: Any, path: str) -> Iterator[str]:
    match info:
        case msgspec.inspect.StructType() if isinstance(document, Mapping):
            yield from _in_struct(info, document, path)
        case msgspec.inspect.VarTupleType() if isinstance(document, list):
            for index, value in enumerate(document):
                yield from _in_type(info.item_type, value, f"{path}[{index}]")
        case msgspec.inspect.DictType() if isinstance(document, Mapping):
            for name, value in document.items():
                yield from _in_type(info.value_type, value, f"{path}[{name}]")
        case msgspec.inspect.UnionType():
            for each in info.types:
                yield from _in_type(each, document, path)
        case _:
            pass


def _in_struct(info: msgspec.inspect.StructType, document: Mapping[str, Any], path: str) -> Iterator[str]:
    fields = {field.encode_name: field.type for field in info.fields}
    for name, value in document.items():
        where = f"{path}.{name}" if path else str(name)
        if name in fields:
            yield from _in_type(fields[name], value, where)
        elif name not in _KNOWN_ELSEWHERE:
            yield where
