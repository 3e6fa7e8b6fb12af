"""Takes fields and indexes of values (cel-go: interpreter/attributes.go)."""

from __future__ import annotations

from typing import Any

from dranode.sim.cel.values import INT64, MISSING, MessageValue, UInt, map_value, type_name


class AnyDomain(dict[str, Any]):
    """Attributes or capacities by domain; one that is not there is empty."""


def part_of(value: Any, key: Any) -> Any:
    """The element of a list or the value of a map.

    Raises:
        ValueError: there is none.
    """
    part = found_part(value, key)
    if part is MISSING:
        raise ValueError(f"index out of bounds: {key}" if isinstance(value, list) else f"no such key: {_shown(key)}")
    return part


def found_part(value: Any, key: Any) -> Any:
    """The same, MISSING if there is none.

    Raises:
        ValueError: the key can be none of a list's or of no map's.
    """
    if isinstance(value, dict):
        part = value.get(key, MISSING) if type(key) is str else map_value(value, _key(key))
        return {} if part is MISSING and type(value) is AnyDomain else part
    _key(key)
    if isinstance(value, list):
        index = _index(key)
        return value[index] if 0 <= index < len(value) else MISSING
    if isinstance(value, MessageValue):
        raise ValueError(f"no such field '{_shown(key)}'")  # noqa: TRY004 - an error of CEL
    return MISSING


def _key(key: Any) -> Any:
    if type(key) not in (str, int, UInt, bool, float):
        raise ValueError(f"invalid qualifier type: {type_name(key)}")
    return key


def _index(key: Any) -> int:
    if type(key) is float and key.is_integer() and int(key) in INT64:
        return int(key)
    if type(key) not in (int, UInt):
        raise ValueError(f"unsupported index value: {type_name(key)}")
    return int(key)


def _shown(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)
