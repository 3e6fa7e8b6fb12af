"""The types of CEL as the checker knows them, and when one can stand for another (cel-go: common/types, checker)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final


class TypeKind(Enum):
    """The kinds of types. ANY and DYN are two, as some rules ask for one of them."""

    ANY = auto()
    BOOL = auto()
    BYTES = auto()
    DOUBLE = auto()
    DURATION = auto()
    DYN = auto()
    ERROR = auto()
    INT = auto()
    LIST = auto()
    MAP = auto()
    NULL = auto()
    OPAQUE = auto()
    STRING = auto()
    STRUCT = auto()
    TIMESTAMP = auto()
    TYPE = auto()
    UINT = auto()
    VARIABLE = auto()


@dataclass(frozen=True, slots=True)
class CELType:
    """A type.

    Attributes:
        name: as CEL prints it; of a variable, its own.
        parameters: what a list, map, type or optional holds.
        nullable: a wrapper, such as google.protobuf.Int64Value; it is the type that it wraps, but for null.
    """

    kind: TypeKind
    name: str
    parameters: tuple[CELType, ...] = ()
    nullable: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        inner = ", ".join(map(str, self.parameters))
        return f"{self.name}({inner})" if inner else self.name


ANY: Final = CELType(TypeKind.ANY, "google.protobuf.Any")
BOOL: Final = CELType(TypeKind.BOOL, "bool")
BYTES: Final = CELType(TypeKind.BYTES, "bytes")
DOUBLE: Final = CELType(TypeKind.DOUBLE, "double")
DURATION: Final = CELType(TypeKind.DURATION, "google.protobuf.Duration")
DYN: Final = CELType(TypeKind.DYN, "dyn")
ERROR: Final = CELType(TypeKind.ERROR, "*error*")
INT: Final = CELType(TypeKind.INT, "int")
NULL: Final = CELType(TypeKind.NULL, "null_type")
STRING: Final = CELType(TypeKind.STRING, "string")
TIMESTAMP: Final = CELType(TypeKind.TIMESTAMP, "google.protobuf.Timestamp")
TYPE: Final = CELType(TypeKind.TYPE, "type")
UINT: Final = CELType(TypeKind.UINT, "uint")
QUANTITY: Final = CELType(TypeKind.STRUCT, "kubernetes.Quantity")
SEMVER: Final = CELType(TypeKind.STRUCT, "kubernetes.Semver")
URL: Final = CELType(TypeKind.STRUCT, "kubernetes.URL")
FORMAT: Final = CELType(TypeKind.STRUCT, "kubernetes.NamedFormat")
IP: Final = CELType(TypeKind.OPAQUE, "net.IP")
CIDR: Final = CELType(TypeKind.OPAQUE, "net.CIDR")
DEVICE: Final = CELType(TypeKind.STRUCT, "kubernetes.DRADevice")
EMPTY: Final = CELType(TypeKind.STRUCT, "google.protobuf.Empty")

OPTIONAL: Final = "optional_type"
_AUTHORIZATION: Final = ("Authorizer", "PathCheck", "GroupCheck", "ResourceCheck", "Decision")
_NULLABLE: Final = (TypeKind.OPAQUE, TypeKind.STRUCT, TypeKind.ANY, TypeKind.DURATION, TypeKind.TIMESTAMP)
_WORDS: Final = re.compile(r"[A-Za-z]+|[(),]")
_NAMED: Final = {
    **{kind.name: kind for kind in (BOOL, BYTES, DOUBLE, DYN, INT, STRING, UINT)},
    "duration": DURATION,
    "timestamp": TIMESTAMP,
    "type": TYPE,
    "null": NULL,
    "Quantity": QUANTITY,
    "Semver": SEMVER,
    "URL": URL,
    "Format": FORMAT,
    "IP": IP,
    "CIDR": CIDR,
    **{name: CELType(TypeKind.STRUCT, f"kubernetes.authorization.{name}") for name in _AUTHORIZATION},
}


def list_of(element: CELType) -> CELType:
    """A list."""
    return CELType(TypeKind.LIST, "list", (element,))


def map_of(key: CELType, value: CELType) -> CELType:
    """A map."""
    return CELType(TypeKind.MAP, "map", (key, value))


def optional_of(value: CELType) -> CELType:
    """An optional value."""
    return CELType(TypeKind.OPAQUE, OPTIONAL, (value,))


def type_of(kind: CELType) -> CELType:
    """The type of a type."""
    return CELType(TypeKind.TYPE, "type", (kind,))


def variable(name: str) -> CELType:
    """A type that is found out."""
    return CELType(TypeKind.VARIABLE, name)


def type_from(text: str) -> CELType:
    """The type that a declaration writes, such as `map(K, list(int))`; one letter is a variable."""
    words = iter([*_WORDS.findall(text), ""])
    return _parsed(next(words), words)[0]


def _parsed(word: str, words: Iterator[str]) -> tuple[CELType, str]:
    """The type that begins with `word`, and the word after it."""
    after = next(words)
    parameters: list[CELType] = []
    if after == "(":
        while after != ")":
            parameter, after = _parsed(next(words), words)
            parameters.append(parameter)
        after = next(words)
    match word:
        case "list":
            return list_of(*parameters), after
        case "map":
            return map_of(*parameters), after
        case "optional":
            return optional_of(*parameters), after
        case "type" if parameters:
            return type_of(*parameters), after
    return _NAMED.get(word) or variable(word), after


def is_dyn(kind: CELType) -> bool:
    """Return whether it can be anything."""
    return kind.kind in (TypeKind.DYN, TypeKind.ANY)


def unwrapped(kind: CELType) -> tuple[CELType, bool]:
    """Return what an optional holds, and whether it is one."""
    optional = kind.kind is TypeKind.OPAQUE and kind.name == OPTIONAL
    return (kind.parameters[0], True) if optional else (kind, False)


def most_general(first: CELType, second: CELType) -> CELType:
    """Of two types that fit, the one that says less."""
    return first if _says_less(first, second) else second


def _says_less(first: CELType, second: CELType) -> bool:
    if is_dyn(first) or first.kind is TypeKind.VARIABLE:
        return True
    if is_dyn(second) or second.kind is TypeKind.VARIABLE or first.kind is not second.kind:
        return False
    if first.kind is TypeKind.TYPE:
        return True
    if first.kind not in (TypeKind.OPAQUE, TypeKind.LIST, TypeKind.MAP):
        return first == second
    same = first.name == second.name and len(first.parameters) == len(second.parameters)
    return same and all(map(_says_less, first.parameters, second.parameters))


class Substitutions:
    """The types of an expression's variables, as they have turned out."""

    def __init__(self) -> None:
        """None is known."""
        self._known: dict[CELType, CELType] = {}

    def applied(self, kind: CELType, *, last: bool = False) -> CELType:
        """The type with what is known; `last` says that everything else can be anything."""
        if kind in self._known:
            return self.applied(self._known[kind], last=last)
        if kind.kind is TypeKind.VARIABLE:
            return DYN if last else kind
        if not kind.parameters:
            return kind
        parameters = tuple(self.applied(one, last=last) for one in kind.parameters)
        return CELType(kind.kind, kind.name, parameters, kind.nullable)

    def fits(self, needed: CELType, given: CELType) -> bool:
        """Return whether one type stands for the other; what variables have to be for that is kept then."""
        return self.all_fit((needed,), (given,))

    def all_fit(self, needed: tuple[CELType, ...], given: tuple[CELType, ...]) -> bool:
        """The same of several at once."""
        before = dict(self._known)
        if self._all_fit(needed, given):
            return True
        self._known = before
        return False

    def _all_fit(self, ones: tuple[CELType, ...], others: tuple[CELType, ...]) -> bool:
        return len(ones) == len(others) and all(map(self._fit, ones, others))

    def _fit(self, first: CELType, second: CELType) -> bool:  # noqa: PLR0911 - one for each kind
        if second.kind is TypeKind.VARIABLE:
            valid, known = self._becomes(second, first)
            if valid or known:
                return valid
        if first.kind is TypeKind.VARIABLE:
            return self._becomes(first, second)[0]
        if {first.kind, second.kind} & {TypeKind.DYN, TypeKind.ANY, TypeKind.ERROR}:
            return True
        if first.kind is TypeKind.NULL:
            return _can_be_null(second)
        if second.kind is TypeKind.NULL:
            return _can_be_null(first)
        if first.kind is TypeKind.TYPE:
            return second.kind is TypeKind.TYPE
        if first.kind in (TypeKind.OPAQUE, TypeKind.LIST, TypeKind.MAP):
            same = first.kind is second.kind and first.name == second.name
            return same and self._all_fit(first.parameters, second.parameters)
        return first.kind is second.kind and first.name == second.name

    def _becomes(self, variable_: CELType, kind: CELType) -> tuple[bool, bool]:
        """Return whether the variable can be that type, and whether it was known before."""
        if variable_ == kind:
            return True, True
        known = self._known.get(variable_)
        if known is not None:
            if known == kind:
                return True, True
            if not self._fit(kind, known):
                return False, True
            general = most_general(kind, known)
            if self._independent(variable_, general):
                self._known[variable_] = general
            return True, True
        if self._independent(variable_, kind):
            self._known[variable_] = kind
            return True, False
        return False, False

    def _independent(self, variable_: CELType, kind: CELType) -> bool:
        """Return whether the type does not contain the variable."""
        if variable_ == kind:
            return False
        if kind.kind is TypeKind.VARIABLE:
            known = self._known.get(kind)
            return known is None or self._independent(variable_, known)
        return all(self._independent(variable_, one) for one in kind.parameters)


def _can_be_null(kind: CELType) -> bool:
    return kind.kind in (*_NULLABLE, TypeKind.NULL) or kind.nullable
