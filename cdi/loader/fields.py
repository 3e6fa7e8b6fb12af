"""The fields of a CDI document and their types in the Go library (specs-go), for decoding."""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from dranode.cdi.spec import INT64, UINT32


class Text(msgspec.Struct, frozen=True):
    """A string; numbers and booleans are made one."""


class Flag(msgspec.Struct, frozen=True):
    """A boolean."""


class Number(msgspec.Struct, frozen=True):
    """A whole number; `what` is for people."""

    what: str
    values: range


class Object(msgspec.Struct, frozen=True):
    """An object of known fields."""

    fields: dict[str, FieldKind]


class Texts(msgspec.Struct, frozen=True):
    """An object of any keys with text."""


class List(msgspec.Struct, frozen=True):
    """A list; where `nulls_crash`, a null among the items is a null pointer, which the library follows."""

    items: Text | Number | Object
    nulls_crash: bool = False


class Pointer(msgspec.Struct, frozen=True):
    """An object that is absent or present, if only empty."""

    target: Object


FieldKind: TypeAlias = Text | Flag | Number | Object | Texts | List | Pointer

TEXT: Final = Text()
_TEXT_LIST: Final = List(TEXT)
_WHOLE: Final = Number("a whole number of 64 bits", INT64)
_UNSIGNED: Final = Number("a whole number from 0 to 4294967295", UINT32)
_EDITS: Final = Object(
    {
        "env": _TEXT_LIST,
        "deviceNodes": List(
            Object(
                {
                    "path": TEXT,
                    "hostPath": TEXT,
                    "type": TEXT,
                    "major": _WHOLE,
                    "minor": _WHOLE,
                    "fileMode": _UNSIGNED,
                    "permissions": TEXT,
                    "uid": _UNSIGNED,
                    "gid": _UNSIGNED,
                }
            ),
            nulls_crash=True,
        ),
        "netDevices": List(Object({"hostInterfaceName": TEXT, "name": TEXT}), nulls_crash=True),
        "hooks": List(
            Object({"hookName": TEXT, "path": TEXT, "args": _TEXT_LIST, "env": _TEXT_LIST, "timeout": _WHOLE}),
            nulls_crash=True,
        ),
        "mounts": List(
            Object({"hostPath": TEXT, "containerPath": TEXT, "options": _TEXT_LIST, "type": TEXT}),
            nulls_crash=True,
        ),
        "intelRdt": Pointer(
            Object(
                {
                    "closID": TEXT,
                    "l3CacheSchema": TEXT,
                    "memBwSchema": TEXT,
                    "schemata": _TEXT_LIST,
                    "enableMonitoring": Flag(),
                }
            )
        ),
        "additionalGids": List(_UNSIGNED),
    }
)
_DEVICE: Final = Object({"name": TEXT, "annotations": Texts(), "containerEdits": _EDITS})
SPEC: Final = Object(
    {
        "cdiVersion": TEXT,
        "kind": TEXT,
        "annotations": Texts(),
        "devices": List(_DEVICE),
        "containerEdits": _EDITS,
    }
)
