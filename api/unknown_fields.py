"""Finds fields that the API does not have. Most are misspelled, and the API server would drop or reject them."""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

import msgspec

# The steps of a path as msgspec writes it: `.field`, `[0]`, and `[...]` for any value of a mapping.
_STEP: Final = r"\.(?P<field>[^.\[\]]+)|\[(?P<item>[^\]]*)\]"


class UnknownField(NamedTuple):
    """A field that does not exist, and the names of the fields that do."""

    path: str
    known: tuple[str, ...]


_type_info: Final = cache(msgspec.inspect.type_info)  # milliseconds for a type with pods


def field_names(kind: Any, path: str) -> tuple[str, ...]:
    """Return the fields that documents of `kind` have at `path` (`spread`, `devices[0].edits`); none if unclear."""
    structs = [info for info in _types_at(kind, path) if isinstance(info, msgspec.inspect.StructType)]
    # A union of structs does not say which one was meant.
    return tuple(field.encode_name for field in structs[0].fields) if len(structs) == 1 else ()


def words_at(kind: Any, path: str) -> tuple[str, ...]:
    """Return the values that documents of `kind` may have at `path` (`policy`) if it is an enumeration; else none."""
    words: list[str] = []
    for info in _types_at(kind, path):
        match info:
            case msgspec.inspect.EnumType():
                words += (str(member.value) for member in info.cls)
            case msgspec.inspect.LiteralType():
                words += map(str, info.values)
            case _:
                pass
    return tuple(words)


def _types_at(kind: Any, path: str) -> list[msgspec.inspect.Type]:
    infos = [msgspec.inspect.type_info(kind)]
    for step in re.finditer(_STEP, f".{path}" if path and path[0] != "[" else path):
        infos = [inner for info in infos for member in _members(info) for inner in _step(member, step["field"])]
    return [member for info in infos for member in _members(info)]


def _members(info: msgspec.inspect.Type) -> tuple[msgspec.inspect.Type, ...]:
    return info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)


def _step(info: msgspec.inspect.Type, field: str | None) -> Iterator[msgspec.inspect.Type]:
    match info:
        case msgspec.inspect.StructType() if field is not None:
            yield from (member.type for member in info.fields if member.encode_name == field)
        case msgspec.inspect.VarTupleType() | msgspec.inspect.ListType() if field is None:
            yield info.item_type
        case msgspec.inspect.DictType() if field is None:
            yield info.value_type
        case _:
            pass


def unknown_fields(kind: type[msgspec.Struct], document: Any, path: str = "") -> Iterator[UnknownField]:
    """Yield every field of `document` that `kind` and the values inside it do not have."""
    # msgspec stops at the first unknown field, so it cannot name all of them.
    yield from _in_type(_type_info(kind), document, path)


def _in_type(info: msgspec.inspect.Type, document: Any, path: str) -> Iterator[UnknownField]:
    match info:
        case msgspec.inspect.StructType() if isinstance(document, Mapping):
            yield from _in_struct(info, document, path)
        case msgspec.inspect.VarTupleType() if isinstance(document, list):
            for index, value in enumerate(document):
                yield from _in_type(info.item_type, value, f"{path}[{index}]")
        # The keys of a mapping are free, such as names of attributes; only its values have fields.
        case msgspec.inspect.DictType() if isinstance(document, Mapping):
            for name, value in document.items():
                yield from _in_type(info.value_type, value, f"{path}[{name}]")
        # Usually a type or None, and None has no fields.
        case msgspec.inspect.UnionType():
            for member in info.types:
                yield from _in_type(member, document, path)
        case _:
            pass


def _in_struct(info: msgspec.inspect.StructType, document: Mapping[str, Any], path: str) -> Iterator[UnknownField]:
    fields = {field.encode_name: field.type for field in info.fields}
    for name, value in document.items():
        field_path = f"{path}.{name}" if path else str(name)
        if name in fields:
            yield from _in_type(fields[name], value, field_path)
        else:
            yield UnknownField(field_path, tuple(fields))
