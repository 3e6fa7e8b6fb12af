"""The types and the functions of Kubernetes' CEL environment, with the overloads of each release.

The order of overloads is cel-go's. Sources: tests/interop/cel/main.go, which prints what a release declares; cel-go
(common/stdlib, ext, cel), k8s.io/apiserver/pkg/cel/library.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cache
from typing import Final


@dataclass(frozen=True, slots=True)
class KnownToCEL:
    """The declarations that differ. The scheduler reads stored objects, so it knows more than the API server admits.

    Attributes:
        lists: attributes can be lists, so that whatever can be done with any value compiles.
        includes: `includes()` of KEP-5491 is known.
        shares: `device.allowMultipleAllocations` is known.
        cel_go_29: the release has cel-go 0.29 (1.37 and later), not 0.26.
    """

    lists: bool = False
    includes: bool = False
    shares: bool = True
    cel_go_29: bool = True

    def declares(self, function: str, overload: str) -> bool:
        """Return whether a function of the table is in this environment."""
        if function == "includes":
            return self.includes
        return overload != "int64_to_duration" or not self.cel_go_29


WITH_LISTS: Final = KnownToCEL(lists=True, includes=True)


# A line: the function, then its overloads: id, parameters after a dot if it is a method, and result.
_TABLE: Final = """
!_: logical_not (bool) bool
-_: negate_double (double) double; negate_int64 (int) int
@in: in_list (A, list(A)) bool; in_map (A, map(A, B)) bool
@not_strictly_false: not_strictly_false (bool) bool
_!=_: not_equals (A, A) bool
_%_: modulo_int64 (int, int) int; modulo_uint64 (uint, uint) uint
_&&_: logical_and (bool, bool) bool
_*_: multiply_double (double, double) double; multiply_int64 (int, int) int; multiply_uint64 (uint, uint) uint
_+_: add_bytes (bytes, bytes) bytes; add_double (double, double) double;
    add_duration_duration (duration, duration) duration; add_duration_timestamp (duration, timestamp) timestamp;
    add_timestamp_duration (timestamp, duration) timestamp; add_int64 (int, int) int;
    add_list (list(A), list(A)) list(A); add_string (string, string) string; add_uint64 (uint, uint) uint
_-_: subtract_double (double, double) double; subtract_duration_duration (duration, duration) duration;
    subtract_int64 (int, int) int; subtract_timestamp_duration (timestamp, duration) timestamp;
    subtract_timestamp_timestamp (timestamp, timestamp) duration; subtract_uint64 (uint, uint) uint
_/_: divide_double (double, double) double; divide_int64 (int, int) int; divide_uint64 (uint, uint) uint
_==_: equals (A, A) bool
_?._: select_optional_field (dyn, string) optional(V)
_?_:_: conditional (bool, A, A) A
_[?_]: list_optindex_optional_int (list(V), int) optional(V);
    optional_list_optindex_optional_int (optional(list(V)), int) optional(V);
    map_optindex_optional_value (map(K, V), K) optional(V);
    optional_map_optindex_optional_value (optional(map(K, V)), K) optional(V)
_[_]: index_list (list(A), int) A; index_map (map(A, B), A) B;
    optional_list_index_int (optional(list(V)), int) optional(V);
    optional_map_index_value (optional(map(K, V)), K) optional(V)
_||_: logical_or (bool, bool) bool
add: quantity_add .(Quantity, Quantity) Quantity; quantity_add_int .(Quantity, int) Quantity
allowed: decision_allowed .(Decision) bool
asApproximateFloat: quantity_get_float .(Quantity) double
asInteger: quantity_get_int .(Quantity) int
bool: bool_to_bool (bool) bool; string_to_bool (string) bool
bytes: bytes_to_bytes (bytes) bytes; string_to_bytes (string) bytes
cel.@mapInsert: @mapInsert_map_key_value (map(K, V), K, V) map(K, V);
    @mapInsert_map_map (map(K, V), map(K, V)) map(K, V)
charAt: string_char_at_int .(string, int) string
check: pathcheck_check .(PathCheck, string) Decision; resourcecheck_check .(ResourceCheck, string) Decision
cidr: string_to_cidr (string) CIDR
compareTo: quantity_compare_to .(Quantity, Quantity) int; semver_compare_to .(Semver, Semver) int
contains: contains_string .(string, string) bool
containsCIDR: cidr_contains_cidr_string .(CIDR, string) bool; cidr_contains_cidr .(CIDR, CIDR) bool
containsIP: cidr_contains_ip_string .(CIDR, string) bool; cidr_contains_ip_ip .(CIDR, IP) bool
distinct: list_distinct .(list(T)) list(T)
double: double_to_double (double) double; int64_to_double (int) double; string_to_double (string) double;
    uint64_to_double (uint) double
duration: duration_to_duration (duration) duration; int64_to_duration (int) duration;
    string_to_duration (string) duration
dyn: to_dyn (A) dyn
endsWith: ends_with_string .(string, string) bool
error: decision_error .(Decision) string
errored: decision_errored .(Decision) bool
family: ip_family .(IP) int
fieldSelector: authorizer_fieldselector .(ResourceCheck, string) ResourceCheck
find: string_find_string .(string, string) string
findAll: string_find_all_string .(string, string) list(string);
    string_find_all_string_int .(string, string, int) list(string)
first: list_first .(list(V)) optional(V)
flatten: list_flatten .(list(list(T))) list(T); list_flatten_int .(list(dyn), int) list(dyn)
format: string_format .(string, list(dyn)) string
format.named: format-named (string) optional(Format)
getDate: timestamp_to_day_of_month_1_based .(timestamp) int;
    timestamp_to_day_of_month_1_based_with_tz .(timestamp, string) int
getDayOfMonth: timestamp_to_day_of_month .(timestamp) int; timestamp_to_day_of_month_with_tz .(timestamp, string) int
getDayOfWeek: timestamp_to_day_of_week .(timestamp) int; timestamp_to_day_of_week_with_tz .(timestamp, string) int
getDayOfYear: timestamp_to_day_of_year .(timestamp) int; timestamp_to_day_of_year_with_tz .(timestamp, string) int
getEscapedPath: url_get_escaped_path .(URL) string
getFullYear: timestamp_to_year .(timestamp) int; timestamp_to_year_with_tz .(timestamp, string) int
getHost: url_get_host .(URL) string
getHostname: url_get_hostname .(URL) string
getHours: timestamp_to_hours .(timestamp) int; timestamp_to_hours_with_tz .(timestamp, string) int;
    duration_to_hours .(duration) int
getMilliseconds: timestamp_to_milliseconds .(timestamp) int;
    timestamp_to_milliseconds_with_tz .(timestamp, string) int; duration_to_milliseconds .(duration) int
getMinutes: timestamp_to_minutes .(timestamp) int; timestamp_to_minutes_with_tz .(timestamp, string) int;
    duration_to_minutes .(duration) int
getMonth: timestamp_to_month .(timestamp) int; timestamp_to_month_with_tz .(timestamp, string) int
getPort: url_get_port .(URL) string
getQuery: url_get_query .(URL) map(string, list(string))
getScheme: url_get_scheme .(URL) string
getSeconds: timestamp_to_seconds .(timestamp) int; timestamp_to_seconds_tz .(timestamp, string) int;
    duration_to_seconds .(duration) int
group: authorizer_group .(Authorizer, string) GroupCheck
hasValue: optional_hasValue .(optional(V)) bool
includes: list_includes_dyn_dyn .(dyn, dyn) bool
indexOf: string_index_of_string .(string, string) int; string_index_of_string_int .(string, string, int) int;
    list_a_index_of_int .(list(A), A) int
int: int64_to_int64 (int) int; double_to_int64 (double) int; duration_to_int64 (duration) int;
    string_to_int64 (string) int; timestamp_to_int64 (timestamp) int; uint64_to_int64 (uint) int
ip: string_to_ip (string) IP; cidr_ip .(CIDR) IP
ip.isCanonical: ip_is_canonical (string) bool
isCIDR: is_cidr (string) bool
isGlobalUnicast: ip_is_global_unicast .(IP) bool
isGreaterThan: quantity_is_greater_than .(Quantity, Quantity) bool; semver_is_greater_than .(Semver, Semver) bool
isIP: is_ip (string) bool
isInteger: quantity_is_integer .(Quantity) bool
isLessThan: quantity_is_less_than .(Quantity, Quantity) bool; semver_is_less_than .(Semver, Semver) bool
isLinkLocalMulticast: ip_is_link_local_multicast .(IP) bool
isLinkLocalUnicast: ip_is_link_local_unicast .(IP) bool
isLoopback: ip_is_loopback .(IP) bool
isQuantity: is_quantity_string (string) bool
isSemver: is_semver_string (string) bool; is_semver_string_bool (string, bool) bool
isURL: is_url_string (string) bool
isUnspecified: ip_is_unspecified .(IP) bool
join: list_join .(list(string)) string; list_join_string .(list(string), string) string
labelSelector: authorizer_labelselector .(ResourceCheck, string) ResourceCheck
last: list_last .(list(V)) optional(V)
lastIndexOf: string_last_index_of_string .(string, string) int;
    string_last_index_of_string_int .(string, string, int) int; list_a_last_index_of_int .(list(A), A) int
lists.range: lists_range (int) list(int)
lowerAscii: string_lower_ascii .(string) string
major: semver_major .(Semver) int
masked: cidr_masked .(CIDR) CIDR
matches: matches (string, string) bool; matches_string .(string, string) bool
minor: semver_minor .(Semver) int
name: resourcecheck_name .(ResourceCheck, string) ResourceCheck
namespace: resourcecheck_namespace .(ResourceCheck, string) ResourceCheck
optional.none: optional_none () optional(V)
optional.of: optional_of (V) optional(V)
optional.ofNonZeroValue: optional_ofNonZeroValue (V) optional(V)
optional.unwrap: optional_unwrap (list(optional(V))) list(V)
or: optional_or_optional .(optional(V), optional(V)) optional(V)
orValue: optional_orValue_value .(optional(V), V) V
patch: semver_patch .(Semver) int
path: authorizer_path .(Authorizer, string) PathCheck
prefixLength: cidr_prefix_length .(CIDR) int
quantity: string_to_quantity (string) Quantity
reason: decision_reason .(Decision) string
replace: string_replace_string_string .(string, string, string) string;
    string_replace_string_string_int .(string, string, string, int) string
resource: groupcheck_resource .(GroupCheck, string) ResourceCheck
reverse: list_reverse .(list(T)) list(T)
semver: string_to_semver (string) Semver; string_bool_to_semver (string, bool) Semver
serviceAccount: authorizer_serviceaccount .(Authorizer, string, string) Authorizer
sets.contains: list_sets_contains_list (list(T), list(T)) bool
sets.equivalent: list_sets_equivalent_list (list(T), list(T)) bool
sets.intersects: list_sets_intersects_list (list(T), list(T)) bool
sign: quantity_sign (Quantity) int
size: size_bytes (bytes) int; bytes_size .(bytes) int; size_list (list(A)) int; list_size .(list(A)) int;
    size_map (map(A, B)) int; map_size .(map(A, B)) int; size_string (string) int; string_size .(string) int
slice: list_slice .(list(T), int, int) list(T)
split: string_split_string .(string, string) list(string);
    string_split_string_int .(string, string, int) list(string)
startsWith: starts_with_string .(string, string) bool
string: string_to_string (string) string; bool_to_string (bool) string; bytes_to_string (bytes) string;
    double_to_string (double) string; duration_to_string (duration) string; int64_to_string (int) string;
    timestamp_to_string (timestamp) string; uint64_to_string (uint) string; ip_to_string (IP) string;
    cidr_to_string (CIDR) string
strings.quote: strings_quote (string) string
sub: quantity_sub .(Quantity, Quantity) Quantity; quantity_sub_int .(Quantity, int) Quantity
subresource: resourcecheck_subresource .(ResourceCheck, string) ResourceCheck
substring: string_substring_int .(string, int) string; string_substring_int_int .(string, int, int) string
timestamp: timestamp_to_timestamp (timestamp) timestamp; int64_to_timestamp (int) timestamp;
    string_to_timestamp (string) timestamp
trim: string_trim .(string) string
type: type (A) type(A)
uint: uint64_to_uint64 (uint) uint; double_to_uint64 (double) uint; int64_to_uint64 (int) uint;
    string_to_uint64 (string) uint
unwrapOpt: optional_unwrapOpt .(list(optional(V))) list(V)
upperAscii: string_upper_ascii .(string) string
url: string_to_url (string) URL
validate: format-validate .(Format, string) optional(list(string))
value: optional_value .(optional(V)) V
"""
_ORDERS: Final = {"_<_": "less", "_<=_": "less_equals", "_>_": "greater", "_>=_": "greater_equals"}
_ORDERED: Final = """
_bool bool bool|_int64 int int|_int64_double int double|_int64_uint64 int uint|_uint64 uint uint|
_uint64_double uint double|_uint64_int64 uint int|_double double double|_double_int64 double int|
_double_uint64 double uint|_string string string|_bytes bytes bytes|_timestamp timestamp timestamp|
_duration duration duration
"""
_COMPARABLE: Final = ("int", "uint", "double", "bool", "duration", "timestamp", "string", "bytes")
_SUMMABLE: Final = ("int", "uint", "double", "duration")
# What each is called when it is shown, and the length that its cost goes by.
FORMATS: Final = {
    "byte": ("byte", 84),
    "date": ("date", 71),
    "datetime": ("datetime", 71),
    "dns1035Label": ("DNS1035Label", 30),
    "dns1035LabelPrefix": ("DNS1035LabelPrefix", 30),
    "dns1123Label": ("DNS1123Label", 30),
    "dns1123LabelPrefix": ("DNS1123LabelPrefix", 30),
    "dns1123Subdomain": ("DNS1123Subdomain", 60),
    "dns1123SubdomainPrefix": ("DNS1123SubdomainPrefix", 60),
    "labelValue": ("LabelValue", 40),
    "qualifiedName": ("QualifiedName", 60),
    "uri": ("URI", 1103),
    "uuid": ("uuid", 70),
}


@dataclass(frozen=True, slots=True)
class Overload:
    """An overload of a function.

    Attributes:
        function: its name.
        id: what the rules of cost know it by.
        member: written as `<first>.name(...)`, otherwise `name(<first>, ...)`.
    """

    function: str
    id: str
    member: bool
    parameters: tuple[CELType, ...]
    result: CELType

    @property
    def variables(self) -> frozenset[CELType]:
        """Return the type variables of its parameters and its result."""
        return frozenset(variable for kind in (*self.parameters, self.result) for variable in _variables(kind))


@cache
def functions(known: KnownToCEL) -> dict[str, tuple[Overload, ...]]:
    """The functions of a release's environment."""
    declared: dict[str, list[Overload]] = {}
    for overload in (*_written(), *_orders(), *_of_lists(), *_formats()):
        if known.declares(overload.function, overload.id):
            declared.setdefault(overload.function, []).append(overload)
    return {name: tuple(overloads) for name, overloads in declared.items()}


def _variables(kind: CELType) -> Iterator[CELType]:
    if kind.kind is TypeKind.VARIABLE:
        yield kind
    for parameter in kind.parameters:
        yield from _variables(parameter)


def _overload(function: str, id_: str, parameters: list[str], result: str, *, member: bool = False) -> Overload:
    return Overload(function, id_, member, tuple(map(type_from, parameters)), type_from(result))


def _written() -> Iterator[Overload]:
    function = ""
    for line in _TABLE.strip().splitlines():
        if not line.startswith(" "):
            function, _, line = line.partition(": ")  # noqa: PLW2901 - the rest of it
        for written in filter(None, map(str.strip, line.split(";"))):
            id_, _, rest = written.partition(" ")
            parameters, _, result = rest.rpartition(") ")
            member, _, parameters = parameters.partition("(")
            yield _overload(function, id_, _split(parameters), result, member=member == ".")


def _split(parameters: str) -> list[str]:
    """Return the parameters, split at the commas outside brackets."""
    parts, depth = [""], 0
    for character in parameters:
        depth += (character == "(") - (character == ")")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part]


def _orders() -> Iterator[Overload]:
    for function, prefix in _ORDERS.items():
        for line in _ORDERED.replace("\n", "").split("|"):
            suffix, *parameters = line.split()
            yield _overload(function, prefix + suffix, parameters, "bool")


def _of_lists() -> Iterator[Overload]:
    for kind in _COMPARABLE:
        name = type_from(kind).name
        yield _overload("isSorted", f"list_{kind}_is_sorted_bool", [f"list({kind})"], "bool", member=True)
        yield _overload("min", f"list_{kind}_min_{kind}", [f"list({kind})"], kind, member=True)
        yield _overload("max", f"list_{kind}_max_{kind}", [f"list({kind})"], kind, member=True)
        yield _overload("sort", f"list_{name}_sort", [f"list({kind})"], f"list({kind})", member=True)
        keys = ["list(T)", f"list({kind})"]
        yield _overload("@sortByAssociatedKeys", f"list_{name}_sortByAssociatedKeys", keys, "list(T)", member=True)
    for kind in _SUMMABLE:
        yield _overload("sum", f"list_{kind}_sum_{kind}", [f"list({kind})"], kind, member=True)


def _formats() -> Iterator[Overload]:
    for name in FORMATS:
        yield _overload(f"format.{name}", f"format.{name}", [], "Format")


# The types, and when one can stand for another (cel-go: common/types, checker).


class TypeKind(Enum):
    """The kinds of types. ANY and DYN are different, because some rules apply to only one of them."""

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
    """Return the type of a list."""
    return CELType(TypeKind.LIST, "list", (element,))


def map_of(key: CELType, value: CELType) -> CELType:
    """Return the type of a map."""
    return CELType(TypeKind.MAP, "map", (key, value))


def optional_of(value: CELType) -> CELType:
    """Return the type of an optional value."""
    return CELType(TypeKind.OPAQUE, OPTIONAL, (value,))


def type_of(kind: CELType) -> CELType:
    """Return the type of a type."""
    return CELType(TypeKind.TYPE, "type", (kind,))


def variable(name: str) -> CELType:
    """Return a type variable, which the checker resolves."""
    return CELType(TypeKind.VARIABLE, name)


def type_from(text: str) -> CELType:
    """Return the type for its text, such as `map(K, list(int))`; a single letter is a type variable."""
    words = iter([*_WORDS.findall(text), ""])
    return _parsed(next(words), words)[0]


def _parsed(word: str, words: Iterator[str]) -> tuple[CELType, str]:
    """Return the type that begins with `word`, and the word after it."""
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
    """Return the more general of two types, one of which can stand for the other."""
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
    """The type variables of an expression and the types to which they are resolved so far."""

    def __init__(self) -> None:
        """Start with no variable resolved."""
        self._known: dict[CELType, CELType] = {}

    def applied(self, kind: CELType, *, last: bool = False) -> CELType:
        """Return a type with its variables replaced; with `last`, unresolved variables become DYN."""
        if kind in self._known:
            return self.applied(self._known[kind], last=last)
        if kind.kind is TypeKind.VARIABLE:
            return DYN if last else kind
        if not kind.parameters:
            return kind
        parameters = tuple(self.applied(parameter, last=last) for parameter in kind.parameters)
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
        return all(self._independent(variable_, parameter) for parameter in kind.parameters)


def _can_be_null(kind: CELType) -> bool:
    return kind.kind in (*_NULLABLE, TypeKind.NULL) or kind.nullable
