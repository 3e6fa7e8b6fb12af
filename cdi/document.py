"""Decodes a CDI document as container runtimes do.

The newest release of the Go library, v1.1.1 (containerd 2.4), decodes YAML, which includes JSON, with
go.yaml.in/yaml v3 straight into the fields of the specification:

- names of fields are case-sensitive, and an unknown field or a repeated key is an error;
- a scalar in a string field keeps its spelling (`010` is "010"); a number may have 0x, 0o, 0b and underscores;
- null leaves a field unset, and is dropped from a list of strings or numbers; in a list of device nodes, hooks, mounts
  or network devices it crashes every runtime;
- a mapping's own keys override those that `<<` merges.

PyYAML's binding of libyaml parses the text, since the Go library is a port of libyaml.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import msgspec
import yaml

from dranode.cdi.errors import CDIError, shown
from dranode.cdi.spec import INT64, UINT32, Spec

# No real document nests deeper than ten levels; the Go library gives up at 10,000.
DEPTH_LIMIT: Final = 100
# The Go library limits how much of a document aliases may repeat; this is more than any real document has.
NODE_LIMIT: Final = 400_000
_LONGEST_NUMBER: Final = 250  # digits, also hexadecimal ones; a longer number may be too large for a float
_NUMBERS: Final = range(-(2**63), 2**64)

_TAG: Final = "tag:yaml.org,2002:"
# How go.yaml.in/yaml v3 resolves plain scalars (resolve.go). Underscores may be anywhere in a number. v2, with which
# kubectl reads, has more booleans (`driver.machine.yaml_files`).
FORMS: Final = {
    "null": (r"|~|null|Null|NULL", "~nN\0"),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (
        r"[-+]?(?:0[xX]_*[0-9a-fA-F][0-9a-fA-F_]*|0[oO]_*[0-7][0-7_]*|0[0-7_]*|0[bB]_*[01][01_]*|[1-9][0-9_]*)",
        "-+0123456789",
    ),
    "float": (
        r"[-+]?(?:(?:\.[0-9][0-9_]*|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?_*[0-9][0-9_]*)?|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)",
        "-+0123456789.",
    ),
    "merge": (r"<<", "<"),
}
_VERSION: Final = re.compile(rb"%YAML[ \t]+(?!1\.1\s)([0-9.]+)")
# The other booleans of YAML 1.1 are booleans only in a field of type bool (decode.go).
_OLD_BOOLEANS: Final = {**dict.fromkeys(("y", "Y", "yes", "on"), True), **dict.fromkeys(("n", "N", "no", "off"), False)}


class _Loader(getattr(yaml, "CBaseLoader", yaml.BaseLoader)):  # type: ignore[misc]
    """Composes nodes with the tags that the Go library gives them."""


def add_resolvers(loader: Any, forms: dict[str, tuple[str, str]]) -> None:
    """Let a loader or dumper of PyYAML recognize plain scalars of these forms, by tag."""
    for name, (pattern, first) in forms.items():
        loader.add_implicit_resolver(f"{_TAG}{name}", re.compile(f"(?:{pattern})\\Z"), ["", *first.replace("\0", "")])


add_resolvers(_Loader, FORMS)


def load_spec(data: bytes) -> Spec:
    """Decode the first document of a file; a missing string is empty.

    Raises:
        CDIError: no runtime would decode the file, or a null would crash all of them; path or line says where.
    """
    node = _first_document(data)
    if node is None:
        raise CDIError("there is no document")
    if isinstance(node, yaml.SequenceNode):
        raise CDIError("the document is a list, not an object")
    plain = _Decoder(data).value(_SPEC, node, "")
    if plain is _KEPT:  # the whole document is null, which decodes to an empty spec
        plain = _empty(_SPEC)
    _refuse_nulls(plain, "")
    return msgspec.convert({"devices": []} | _without_unset(plain), Spec)


def _first_document(data: bytes) -> yaml.Node | None:
    """Compose the first document; like the library, this does not look at what follows it."""
    if version := _VERSION.match(data):
        raise CDIError(f"line 1: runtimes do not read %YAML {version[1].decode()}; remove the line")
    try:
        _refuse_deep(data)
        loader = _Loader(data)
        try:
            return loader.get_node() if loader.check_node() else None
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        where = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise CDIError(f"{where}{error.problem or 'is not YAML'}") from error
    except yaml.reader.ReaderError as error:
        raise CDIError(f"byte {error.position}: {error.reason}") from error


def _refuse_deep(data: bytes) -> None:
    """Refuse a document that is nested too deeply: libyaml recurses, and a stack overflow would end the process."""
    depth = 0
    for event in yaml.parse(data, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.DocumentEndEvent):
            return
        if depth > DEPTH_LIMIT:
            raise CDIError(f"line {_line(event)}: is nested more than {DEPTH_LIMIT} levels deep")


# --- The fields of a document and their types in the Go library (specs-go) ---


class _Number(msgspec.Struct, frozen=True):
    what: str
    values: range


class _List(msgspec.Struct, frozen=True):
    """A list. With `nulls_crash` its items are pointers, which the library dereferences without a check."""

    items: _Kind
    nulls_crash: bool = False


class _Texts(msgspec.Struct, frozen=True):
    """An object with any keys and string values."""


class _Optional(msgspec.Struct, frozen=True):
    """An object for which absent and empty are different."""

    fields: dict[str, _Kind]


_Kind: TypeAlias = "type[str | bool] | _Number | _List | _Texts | _Optional | dict[str, _Kind]"

_WHOLE: Final = _Number("a whole number of 64 bits", INT64)
_UNSIGNED: Final = _Number("a whole number from 0 to 4294967295", UINT32)
_EDITS: Final[dict[str, _Kind]] = {
    "env": _List(str),
    "deviceNodes": _List(
        {
            "path": str,
            "hostPath": str,
            "type": str,
            "major": _WHOLE,
            "minor": _WHOLE,
            "fileMode": _UNSIGNED,
            "permissions": str,
            "uid": _UNSIGNED,
            "gid": _UNSIGNED,
        },
        nulls_crash=True,
    ),
    "netDevices": _List({"hostInterfaceName": str, "name": str}, nulls_crash=True),
    "hooks": _List(
        {"hookName": str, "path": str, "args": _List(str), "env": _List(str), "timeout": _WHOLE}, nulls_crash=True
    ),
    "mounts": _List({"hostPath": str, "containerPath": str, "options": _List(str), "type": str}, nulls_crash=True),
    "intelRdt": _Optional(
        {
            "closID": str,
            "l3CacheSchema": str,
            "memBwSchema": str,
            "schemata": _List(str),
            "enableMonitoring": bool,
        }
    ),
    "additionalGids": _List(_UNSIGNED),
}
_SPEC: Final[dict[str, _Kind]] = {
    "cdiVersion": str,
    "kind": str,
    "annotations": _Texts(),
    "devices": _List({"name": str, "annotations": _Texts(), "containerEdits": _EDITS}),
    "containerEdits": _EDITS,
}

# Fields of `intelRdt` up to CDI 1.0. The library has decoded specs of all versions without them since v1.1.0.
_REMOVED: Final = ("enableCMT", "enableMBM")
# The result of a null if the Go type is not a pointer: the field keeps its value.
_KEPT: Final = object()


class _Decoder:
    """Decodes nodes by the kinds of their fields, within bounds of depth and size."""

    def __init__(self, data: bytes) -> None:
        self._nodes = 0
        # JSON and libyaml allow this escape; the Go library does not.
        self._source = data.decode(errors="replace") if rb"\/" in data else ""

    def value(self, kind: _Kind, node: yaml.Node, path: str, depth: int = 0) -> Any:
        self._nodes += 1
        if depth > DEPTH_LIMIT:
            raise CDIError(f"line {_line(node)}: is nested more than {DEPTH_LIMIT} levels deep", path)
        if self._nodes > NODE_LIMIT:
            raise CDIError(f"line {_line(node)}: aliases repeat too much of the document", path)
        if self._source and isinstance(node, yaml.ScalarNode) and node.style == '"':
            self._refuse_escaped_solidus(node, path)
        if isinstance(node, yaml.ScalarNode) and _scalar(node, path) is None:
            return None if isinstance(kind, (_List, _Texts, _Optional)) else _KEPT
        match kind:
            case dict() | _Optional():
                fields = kind if isinstance(kind, dict) else kind.fields
                result: Any = self._object(fields, node, path, depth)
            case _Texts():
                pairs = ((key, self.value(str, item, f"{path}.{key}")) for key, item in self._entries(node, path))
                result = {key: "" if text is _KEPT else text for key, text in pairs}
            case _List():
                result = self._list(kind, node, path, depth)
            case _Number():
                result = _number(kind, node, path)
            case _:
                result = _text(node, path) if kind is str else _flag(node, path)
        return result

    def _refuse_escaped_solidus(self, node: yaml.ScalarNode, path: str) -> None:
        written = self._source[node.start_mark.index : node.end_mark.index]
        if "\\/" in written.replace("\\\\", ""):
            raise CDIError(rf"line {_line(node)}: runtimes do not read the escape \/; write / alone", path)

    def _list(self, kind: _List, node: yaml.Node, path: str, depth: int) -> list[Any]:
        if not isinstance(node, yaml.SequenceNode):
            raise CDIError(f"is {_described(node)}, not a list", path)
        values = [self.value(kind.items, item, f"{path}[{index}]", depth + 1) for index, item in enumerate(node.value)]
        if kind.nulls_crash:
            return [None if value is _KEPT else value for value in values]
        return [value for value in values if value is not _KEPT]

    def _object(self, fields: dict[str, _Kind], node: yaml.Node, path: str, depth: int) -> dict[str, Any]:
        result = _empty(fields)
        for key, inner in self._entries(node, path):
            where = f"{path}.{key}" if path else key
            if key in _REMOVED and key not in fields:
                raise CDIError("was removed in CDI 1.1.0, and is refused whatever cdiVersion says", where)
            if key not in fields:
                raise CDIError("is not a field of the specification (names are case-sensitive)", where)
            value = self.value(fields[key], inner, where, depth + 1)
            if value is not _KEPT:
                result[key] = value
        return result

    def _entries(self, node: yaml.Node, path: str, depth: int = 0) -> Iterator[tuple[str, yaml.Node]]:
        """Yield key and value of each member of an object: its own ones, then those that it merges."""
        if not isinstance(node, yaml.MappingNode):
            raise CDIError(f"is {_described(node)}, not an object", path)
        if depth > DEPTH_LIMIT:
            raise CDIError(f"line {_line(node)}: an object contains itself", path)
        _refuse_repeated(node, path)
        merged: yaml.Node | None = None
        seen: set[str] = set()
        for key_node, value in node.value:
            if _is_merge(key_node):
                merged = value
                continue
            key = self.value(str, key_node, path)
            if isinstance(key, str):  # a null is not a key and is skipped
                seen.add(key)
                yield key, value
        if merged is None:
            return
        for source in merged.value if isinstance(merged, yaml.SequenceNode) else (merged,):
            for key, value in self._entries(source, path, depth + 1):
                if key not in seen:
                    seen.add(key)
                    yield key, value


def _empty(fields: dict[str, _Kind]) -> dict[str, Any]:
    # Go's zero values: an object that is not behind a pointer exists with empty fields.
    texts: dict[str, Any] = {name: "" for name, kind in fields.items() if kind is str}
    return texts | {name: _empty(kind) for name, kind in fields.items() if isinstance(kind, dict)}


def _refuse_repeated(node: yaml.MappingNode, path: str) -> None:
    spelled: set[str] = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            if key.value in spelled:
                raise CDIError(f"line {_line(key)}: key {shown(key.value)} is given twice", path)
            spelled.add(key.value)


def _refuse_nulls(value: Any, path: str) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            _refuse_nulls(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            if item is None:
                raise CDIError("is null, which crashes every runtime that reads it", f"{path}[{index}]")
            _refuse_nulls(item, f"{path}[{index}]")


def _without_unset(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_unset(inner) for key, inner in value.items() if inner is not None}
    return [_without_unset(item) for item in value] if isinstance(value, list) else value


# --- Scalars ---


def _line(node: yaml.Node | yaml.Event) -> int:
    line: int = getattr(node.start_mark, "line", 0)
    return line + 1


def _described(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return shown(node.value)
    return "a list" if isinstance(node, yaml.SequenceNode) else "an object"


def _is_merge(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == f"{_TAG}merge"


def _scalar(node: yaml.Node, path: str) -> str | bool | float | None:
    """Return the value of a scalar.

    Raises:
        CDIError: it is a list or an object, or its text does not fit its explicit tag.
    """
    if not isinstance(node, yaml.ScalarNode):
        raise CDIError(f"is {_described(node)}, not a single value", path)
    name: str = node.tag.removeprefix(_TAG)
    text: str = node.value
    if name == "binary":
        return _binary(text, path)
    if name not in FORMS or name == "merge":
        return text
    forms = ("int", "float") if name == "float" else (name,)
    if not any(re.fullmatch(FORMS[form][0], text) for form in forms):
        raise CDIError(f"{shown(text)} does not match its tag !!{name}", path)
    match name:
        case "null":
            return None
        case "bool":
            return text.lower() == "true"
        case "int":
            return go_integer(text)
    return float(re.sub(r"_|\.(?=[a-z])", "", text.lower()))


def go_integer(text: str) -> int | float:
    """Return a number as Go reads it: beyond 64 bits it is a float."""
    digits = text.replace("_", "")
    sign, plain = (digits[0], digits[1:]) if digits[0] in "-+" else ("", digits)
    if len(plain) > _LONGEST_NUMBER:
        return math.inf
    # A leading 0 alone means octal, as in YAML 1.1.
    base = {"0x": 16, "0o": 8, "0b": 2}.get(plain[:2].lower(), 8 if plain.startswith("0") else 10)
    number = int(sign + (plain[2:] if plain[1:2].isalpha() else plain), base)
    return number if number in _NUMBERS else float(number)


def _binary(text: str, path: str) -> str:
    try:
        return base64.b64decode("".join(text.split()), validate=True).decode(errors="replace")
    except (binascii.Error, ValueError) as error:
        raise CDIError("!!binary is not followed by base64", path) from error


def _text(node: yaml.Node, path: str) -> str:
    value = _scalar(node, path)
    return str(value) if node.tag == f"{_TAG}binary" else str(node.value)


def _flag(node: yaml.Node, path: str) -> bool:
    value = _scalar(node, path)
    flag = _OLD_BOOLEANS.get(value) if isinstance(value, str) else value
    if not isinstance(flag, bool):
        raise CDIError(f"is {_described(node)}, not true or false", path)
    return flag


def _number(kind: _Number, node: yaml.Node, path: str) -> int:
    value = _scalar(node, path)
    # Go drops the fraction.
    number = (
        int(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < math.inf
        else None
    )
    if number is None or number not in kind.values:
        raise CDIError(f"is {_described(node)}, not {kind.what}", path)
    return number
