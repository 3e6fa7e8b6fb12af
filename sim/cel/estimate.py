"""Estimates the greatest cost of an expression, which the API server limits (cel-go: checker/cost.go).

Sizes are bounds; what is not known can be anything. What a device has is bounded by the API. Sources:
k8s.io/dynamic-resource-allocation/cel/compile.go (sizes); for calls cel-go (checker/cost.go, ext/lists.go, ext/sets.go)
and k8s.io/apiserver/pkg/cel/library/cost.go.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from dranode.sim.cel.checker import Checked
from dranode.sim.cel.costs import LIST, MAP, ORDERED_KINDS, REGEX, STRUCT, TRAVERSAL
from dranode.sim.cel.declarations import (
    BOOL,
    CIDR,
    DOUBLE,
    DURATION,
    FORMAT,
    INT,
    IP,
    OPTIONAL,
    QUANTITY,
    SEMVER,
    TIMESTAMP,
    UINT,
    URL,
    CELType,
    KnownToCEL,
    TypeKind,
)
from dranode.sim.cel.syntax import (
    ACCUMULATOR,
    CallExpr,
    Comprehension,
    Expr,
    Ident,
    ListLiteral,
    Literal,
    MapLiteral,
    MessageLiteral,
    Select,
)

Path: TypeAlias = tuple[str, ...]

_SCALARS: Final = (BOOL, DOUBLE, DURATION, INT, TIMESTAMP, UINT)
_ENTRIES: Final = 32
_DOMAIN: Final = 63
_ID: Final = 32
_VALUE: Final = 64
_MAPS: Final = {"attributes": _VALUE, "capacity": 0}
_FIELDS: Final = {"driver": _DOMAIN, "allowMultipleAllocations": 1}


def greatest_cost(checked: Checked, known: KnownToCEL) -> int:
    """Return what the expression costs at most."""
    return _Estimator(checked, known).cost(checked.tree).most


def device_size(path: Path) -> Extent | None:
    """Return the size of a part of a device; None for anything else."""
    match path:
        case ("device",):
            most = 0
        case ("device", name) if name in _FIELDS:
            most = _FIELDS[name]
        case ("device", name) if name in _MAPS:
            most = _ENTRIES
        case ("device", name, "@keys") if name in _MAPS:
            most = _DOMAIN
        case ("device", name, "@values" | "@items") if name in _MAPS:
            most = _ENTRIES
        case ("device", name, "@values" | "@items", "@keys") if name in _MAPS:
            most = _ID
        case ("device", name, "@values" | "@items", "@values" | "@items") if name in _MAPS:
            most = _MAPS[name]
        case ("device", "attributes", "@values" | "@items", _):
            most = _VALUE
        case _:
            return None
    return Extent(0, most)


@dataclass(frozen=True, slots=True)
class _Entries:
    """The sizes of the elements of a list, or of the keys and values of a map."""

    kind: TypeKind
    key: Extent
    value: Extent

    def __or__(self, other: _Entries) -> _Entries:
        return _Entries(self.kind, self.key | other.key, self.value | other.value)


@dataclass(frozen=True, slots=True)
class _Variable:
    path: Path
    size: Extent | None = None
    entries: _Entries | None = None


@dataclass(slots=True)
class _Estimator:
    checked: Checked
    known: KnownToCEL
    paths: dict[Expr, Path] = field(default_factory=dict)
    sizes: dict[Expr, Extent] = field(default_factory=dict)
    entries: dict[Expr, _Entries] = field(default_factory=dict)
    variables: dict[str, list[_Variable]] = field(default_factory=dict)

    def cost(self, node: Expr) -> Extent:  # noqa: PLR0911 - one for each kind
        match node:
            case Ident():
                self.paths[node] = self._path_of(node.name)
                return ONE
            case Select() if node not in self.checked.constants:
                return self._select(node)
            case Select():
                return ONE
            case CallExpr():
                return self._call(node)
            case ListLiteral():
                return self._list(node)
            case MapLiteral():
                return self._map(node)
            case MessageLiteral():
                return sum((self.cost(field.value) for field in node.fields), exactly(STRUCT))
            case Comprehension():
                return self._bind(node) if node.binds else self._loop(node)
            case _:
                return NOTHING

    def _path_of(self, name: str) -> Path:
        variable = self._variable(name)
        return (name.removeprefix("."),) if variable is None else variable.path

    def _select(self, node: Select) -> Extent:
        cost = self.cost(node.operand)
        if node.test_only:
            return cost
        if self.checked.types[node.operand].kind in (TypeKind.MAP, TypeKind.STRUCT):
            cost += ONE
        self.paths[node] = (*self._path(node.operand), node.field)
        return cost

    # --- calls ---

    def _call(self, node: CallExpr) -> Extent:
        if node.function == "dyn":
            (argument,) = node.arguments
            cost = self.cost(argument) + ONE
            self._copy(node, argument)
            return cost
        # Estimate the target last, because its cost depends on the sizes found in the arguments.
        costs = [self.cost(argument) for argument in node.arguments]
        operands = [self._operand(argument) for argument in node.arguments]
        total = NOTHING
        if node.target is not None:
            total = self.cost(node.target)
            operands.insert(0, self._operand(node.target))
        cost = Extent(MOST, 0)
        size: Extent | None = None
        for overload in self.checked.overloads[node]:
            estimate = self._of_overload(node, overload.id, operands, costs)
            cost |= estimate.cost
            if estimate.size is not None:
                size = estimate.size if size is None else size | estimate.size
            size = self._indexed(node, overload.id, size)
            if size is None:
                size = self.size(node)
        self._set_size(node, size)
        return total + cost

    def _indexed(self, node: CallExpr, overload: str, size: Extent | None) -> Extent | None:
        if overload not in ("index_list", "index_map"):
            return size
        inside = self._entries_of(node.arguments[0])
        part = "@items" if overload == "index_list" else "@values"
        self.paths[node] = (*self._path(node.arguments[0]), part)
        return None if inside is None else inside.value

    def _of_overload(self, node: CallExpr, overload: str, operands: list[Operand], costs: list[Extent]) -> Estimate:
        """Return the cost of an overload, including that of its arguments."""
        match overload:
            case "logical_or" | "logical_and":
                left, right = costs
                return Estimate(Extent(left.least, (left + right).most))
            case "conditional":
                return self._conditional(node, operands, costs)
            case "add_string" | "add_bytes" | "add_list":
                self._join_entries(node, *node.arguments)
        estimate = of_call(node.function, overload, operands, self.known)
        return Estimate(sum(costs, estimate.cost), estimate.size)

    def _conditional(self, node: CallExpr, operands: list[Operand], costs: list[Extent]) -> Estimate:
        _, then, otherwise = node.arguments
        self._join_entries(node, then, otherwise)
        return Estimate(costs[0] + (costs[1] | costs[2]), operands[1].size | operands[2].size)

    def _join_entries(self, node: CallExpr, first: Expr, second: Expr) -> None:
        """Record that a node can have the elements of either of two others."""
        one, two = self._entries_of(first), self._entries_of(second)
        if one is not None and two is not None:
            self.entries[node] = one | two

    def _operand(self, node: Expr) -> Operand:
        path = self._path(node)
        if path and path[0] in (ACCUMULATOR, "__result__"):
            path = ()
        literal: Any = node.value if isinstance(node, Literal) else None
        size = self.size(node)
        return Operand(self.checked.types[node], size or UNKNOWN, size is not None, path, literal)

    # --- literals ---

    def _list(self, node: ListLiteral) -> Extent:
        cost, size = NOTHING, Extent(MOST if node.elements else 0, 0)
        for element in node.elements:
            cost += self.cost(element)
            size |= self.size(element) or UNKNOWN
        self.entries[node] = _Entries(TypeKind.LIST, ONE, size)
        return cost + exactly(LIST)

    def _map(self, node: MapLiteral) -> Extent:
        cost = NOTHING
        key = value = Extent(MOST if node.entries else 0, 0)
        for entry in node.entries:
            cost += self.cost(entry.key) + self.cost(entry.value)
            key |= self.size(entry.key) or UNKNOWN
            value |= self.size(entry.value) or UNKNOWN
        self.entries[node] = _Entries(TypeKind.MAP, key, value)
        return cost + exactly(MAP)

    # --- loops ---

    def _loop(self, node: Comprehension) -> Extent:
        cost = self.cost(node.over) + self.cost(node.start)
        self._push(node.accumulator, self._local(node.start))
        names = self._loop_variables(node)
        for name, variable in names.items():
            self._push(name, variable)
        # Estimate the condition before the step, so that the step can use the sizes found there.
        iteration = self.cost(node.condition)
        iteration = self.cost(node.step) + iteration
        for name in names:
            self.variables[name].pop()
        cost += self.cost(node.result)
        self.variables[node.accumulator].pop()
        count = self.size(node.over) or UNKNOWN
        cost += count * iteration
        if isinstance(node.start, Literal):
            self._set_size(node, self.size(node.start))
        elif isinstance(node.start, (ListLiteral, MapLiteral)):
            self.sizes[node] = count
            entries = self._entries_of(node.step)
            if entries is not None:
                self.entries[node] = entries
        return cost

    def _loop_variables(self, node: Comprehension) -> dict[str, _Variable]:
        entries = self._entries_of(node.over)
        path = self._path(node.over)
        is_list = (entries.kind if entries else self.checked.types[node.over].kind) is TypeKind.LIST
        key = _Variable((*path, "@indices" if is_list else "@keys"), entries.key if entries else None)
        value = _Variable((*path, "@items" if is_list else "@values"), entries.value if entries else None)
        if node.variable2 is not None:
            return {node.variable: key, node.variable2: value}
        return {node.variable: value if is_list else key}

    def _bind(self, node: Comprehension) -> Extent:
        cost = self.cost(node.over) + self.cost(node.start)
        self._push(node.accumulator, self._local(node.start))
        cost += self.cost(node.result)
        self.variables[node.accumulator].pop()
        self._copy(node, node.result)
        return cost

    def _local(self, node: Expr) -> _Variable:
        return _Variable(self._path(node), self.size(node), self._entries_of(node))

    def _push(self, name: str, variable: _Variable) -> None:
        self.variables.setdefault(name, []).append(variable)

    def _variable(self, name: str) -> _Variable | None:
        known = self.variables.get(name)
        return known[-1] if known else None

    # --- facts about nodes ---

    def _path(self, node: Expr) -> Path:
        if isinstance(node, Ident):
            variable = self._variable(node.name)
            if variable is not None:
                return variable.path
        return self.paths.get(node, ())

    def size(self, node: Expr) -> Extent | None:
        if node in self.sizes:
            return self.sizes[node]
        literal = _literal_size(node)
        if literal is not None:
            return literal
        path = self._path(node)
        device = device_size(path) if path else None
        if device is not None:
            self.sizes[node] = device
            return device
        if _is_scalar(self.checked.types[node]):
            return ONE
        variable = self._variable(node.name) if isinstance(node, Ident) else None
        return None if variable is None else variable.size

    def _entries_of(self, node: Expr) -> _Entries | None:
        if node in self.entries:
            return self.entries[node]
        variable = self._variable(node.name) if isinstance(node, Ident) else None
        return None if variable is None else variable.entries

    def _set_size(self, node: Expr, size: Extent | None) -> None:
        if size is not None:
            self.sizes[node] = size

    def _copy(self, node: Expr, source: Expr) -> None:
        self._set_size(node, self.size(source))
        entries = self._entries_of(source)
        if entries is not None:
            self.entries[node] = entries


def _literal_size(node: Expr) -> Extent | None:
    match node:
        case Literal(value=str() | bytes()):
            return exactly(len(node.value))
        case Literal():
            return ONE
        case ListLiteral():
            return exactly(len(node.elements))
        case MapLiteral():
            return exactly(len(node.entries))
    return None


def _is_scalar(kind: CELType) -> bool:
    if kind.kind is TypeKind.OPAQUE and kind.name == OPTIONAL:
        return _is_scalar(kind.parameters[0])
    return kind in _SCALARS


# Calls: the greatest cost and the size of the result, from the sizes of the arguments.


MOST: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Extent:
    """A range from `least` to `most`, of a size or a cost."""

    least: int
    most: int

    def __add__(self, other: Extent) -> Extent:
        """Return the bounds of the sum."""
        return Extent(min(self.least + other.least, MOST), min(self.most + other.most, MOST))

    def __mul__(self, other: Extent) -> Extent:
        """Return the bounds of the product."""
        return Extent(min(self.least * other.least, MOST), min(self.most * other.most, MOST))

    def __or__(self, other: Extent) -> Extent:
        """Return the bounds that include both ranges."""
        return Extent(min(self.least, other.least), max(self.most, other.most))

    def scaled(self, factor: float) -> Extent:
        """Return the bounds multiplied by a factor, rounded up."""
        return Extent(_scaled(self.least, factor), _scaled(self.most, factor))


def _scaled(number: int, factor: float) -> int:
    product = math.ceil(float(number) * factor) if number and factor else 0
    return min(product, MOST)


def exactly(number: int) -> Extent:
    """Return a range of a single number."""
    return Extent(number, number)


UNKNOWN: Final = Extent(0, MOST)
NOTHING: Final = Extent(0, 0)
ONE: Final = Extent(1, 1)


@dataclass(frozen=True, slots=True)
class Estimate:
    """The bounds of a cost, and of the size of the result if it is known."""

    cost: Extent
    size: Extent | None = None


@dataclass(frozen=True, slots=True)
class Operand:
    """An argument of a call; of a method, the value before the dot is the first.

    Attributes:
        size: the bounds of its size.
        sized: whether anything is known of that size.
        path: where it is in a device; empty if it is not part of one.
        literal: its value if it is a literal.
    """

    type: CELType
    size: Extent
    sized: bool
    path: Path
    literal: Any

    @property
    def element(self) -> Operand | None:
        """Return an operand that stands for any element; None if the type says nothing about elements."""
        if not self.type.parameters:
            return None
        path = (*self.path, "@items") if self.path else ()
        size = device_size(path) if path else None
        return Operand(self.type.parameters[0], size or UNKNOWN, size is not None, path, None)

    def number(self, otherwise: int) -> int:
        """Return the literal number, 0 for a negative one; `otherwise` if it is not a literal."""
        return max(self.literal, 0) if type(self.literal) is int else otherwise


EstimateRule: TypeAlias = Callable[[Sequence[Operand]], Estimate]

# MaxFormatSize and MaxNameFormatRegexSize of k8s.io/apiserver/pkg/cel: the limits of a named format and its expression.
_MAX_FORMAT: Final = 64
_MAX_FORMAT_REGEX: Final = 128
_MAX_INCLUDES: Final = 48
_CHECK: Final = 350_000
# An address has 4 bytes or 16.
_ADDRESS: Final = Extent(4, 16)


def of_call(function: str, overload: str, operands: Sequence[Operand], known: KnownToCEL) -> Estimate:
    """Return what the call itself costs, without its arguments."""
    if function == "includes" and not known.cel_go_29:
        return Estimate(Extent(0, _MAX_INCLUDES))
    if overload == "matches" and not known.cel_go_29:
        return Estimate(ONE)
    rule = _OVERLOADS.get(overload) or _FUNCTIONS.get(function) or _STANDARD.get(overload)
    return rule(operands) if rule else Estimate(ONE)


def _always(cost: Extent) -> EstimateRule:
    return lambda _: Estimate(cost)


def _in_proportion(number: int, factor: float = TRAVERSAL) -> EstimateRule:
    """Return a cost that is proportional to the size of one operand."""
    return lambda operands: Estimate(operands[number].size.scaled(factor))


# --- lists and sets ---


def _allocating(factor: float, size: Extent) -> Estimate:
    return Estimate(size.scaled(factor) + ONE + exactly(LIST), size)


def _sliced(operands: Sequence[Operand]) -> Estimate:
    values, start, end = operands
    # cel-go subtracts unsigned numbers of 64 bits, which wrap around.
    return _allocating(1, exactly((end.number(values.size.most) - start.number(0)) % (MOST + 1)))


def _flattened(operands: Sequence[Operand]) -> Estimate:
    values, *depth = operands
    return _allocating(float(depth[0].number(MOST)) if depth else 1.0, values.size)


def _compared_pairs(number: int, factor: float) -> EstimateRule:
    """Return the cost of comparing each element of a list with every other one."""
    return lambda operands: _allocating(factor, operands[number].size * operands[number].size)


def _sets(factor: float) -> EstimateRule:
    return lambda operands: Estimate((operands[0].size * operands[1].size).scaled(factor) + ONE)


def _traversed(operands: Sequence[Operand]) -> Estimate:
    size, element = operands[0].size, operands[0].element
    if element is None:
        return Estimate(size.scaled(TRAVERSAL))
    is_text = element.type.kind in (TypeKind.STRING, TypeKind.BYTES)
    return Estimate(size * (ONE + element.size.scaled(TRAVERSAL) if is_text else ONE))


def _includes(operands: Sequence[Operand]) -> Estimate:
    return _traversed(operands) if operands[0].element is not None else Estimate(operands[0].size)


def _orders() -> dict[str, EstimateRule]:
    rules: dict[str, EstimateRule] = {}
    for kind in ORDERED_KINDS:
        factor = 2 + TRAVERSAL if kind in ("string", "bytes") else 2.0
        rules[f"list_{kind}_sort"] = _compared_pairs(0, factor)
        rules[f"list_{kind}_sortByAssociatedKeys"] = _compared_pairs(1, factor)
    return rules


# --- strings and bytes ---


def _transformed(operands: Sequence[Operand]) -> Estimate:
    size = operands[0].size
    return Estimate(size.scaled(TRAVERSAL), size)


def _replaced(operands: Sequence[Operand]) -> Estimate:
    """The result is longest where the shortest old part is replaced by the longest new one, and the other way round."""
    size, old, new = (operand.size for operand in operands[:3])
    kept_most = kept_least = 0
    if old.least == 0:
        most, kept_most = min(size.most + 1, MOST), size.most
    elif new.most <= old.least:
        most, kept_most = 0, size.most
    else:
        most = math.ceil(float(size.most) / float(old.least))
    if old.most == 0:
        least, kept_least = min(size.least + 1, MOST), size.least
    elif old.most <= new.least:
        least, kept_least = 0, size.least
    else:
        least = math.ceil(float(size.least) / float(old.most))
    result = Extent(least, min(most, MOST)) * new + Extent(kept_least, kept_most)
    return Estimate(size.scaled(2 * TRAVERSAL), result)


def _split(operands: Sequence[Operand]) -> Estimate:
    text, _, *limit = operands
    most = limit[0].literal % (MOST + 1) if limit and type(limit[0].literal) is int else text.size.most
    return Estimate(text.size.scaled(2 * TRAVERSAL), Extent(0, most))


def _joined(operands: Sequence[Operand]) -> Estimate:
    values, *separator = operands
    count, element = values.size, values.element
    size = NOTHING if element is None else count * element.size
    if separator:
        size += separator[0].size * Extent(max(count.least - 1, 0), max(count.most - 1, 0))
    return Estimate(size.scaled(TRAVERSAL), size)


def _matches(operands: Sequence[Operand]) -> Estimate:
    text, pattern = operands[:2]
    return Estimate((text.size + ONE).scaled(TRAVERSAL) * pattern.size.scaled(REGEX))


def _searched(operands: Sequence[Operand]) -> Estimate:
    return Estimate(_matches(operands).cost, Extent(0, operands[0].size.most))


def _to_bytes(operands: Sequence[Operand]) -> Estimate:
    size = operands[0].size
    return Estimate(size.scaled(TRAVERSAL), Extent(size.least, size.most * 4 % (MOST + 1)))  # UTF-8 takes up to 4 bytes


def _to_string(operands: Sequence[Operand]) -> Estimate:
    size = operands[0].size
    return Estimate(size.scaled(TRAVERSAL), Extent(size.least // 4, size.most))


def _quoted(operands: Sequence[Operand]) -> Estimate:
    size = operands[0].size
    return Estimate(size.scaled(TRAVERSAL), Extent(size.least + 2, (size.most * 2 + 2) % (MOST + 1)))


def _contains(operands: Sequence[Operand]) -> Estimate:
    return Estimate(operands[0].size.scaled(TRAVERSAL) * operands[1].size.scaled(TRAVERSAL))


def _added(operands: Sequence[Operand]) -> Estimate:
    size = operands[0].size + operands[1].size
    return Estimate(size.scaled(TRAVERSAL), size)


def _added_lists(operands: Sequence[Operand]) -> Estimate:
    return Estimate(ONE, operands[0].size + operands[1].size)


# --- comparisons, and what Kubernetes adds ---


def _compared(operands: Sequence[Operand]) -> Estimate:
    left, right = operands
    if left.type.name == right.type.name:
        if left.type in (IP, CIDR, QUANTITY, SEMVER):
            return Estimate(ONE)
        if left.type == FORMAT:
            return Estimate(Extent(1, _MAX_FORMAT).scaled(TRAVERSAL))
        if left.type == URL:
            # The estimator of Kubernetes takes 1 for a URL whose size is unknown.
            return Estimate(Extent(1, right.size.most if right.sized else 1).scaled(TRAVERSAL))
    return _smaller(operands)


def _smaller(operands: Sequence[Operand]) -> Estimate:
    most = min(operand.size.most for operand in operands)
    return Estimate(Extent(1 if most else 0, most).scaled(TRAVERSAL))


def _contained(cost: Extent) -> EstimateRule:
    """Return the cost of a call whose second operand is text that has to be parsed first."""
    return lambda operands: Estimate(cost + operands[1].size.scaled(TRAVERSAL))


def _validated(operands: Sequence[Operand]) -> Estimate:
    return Estimate(operands[1].size.scaled(TRAVERSAL).scaled(_MAX_FORMAT_REGEX * REGEX))


_IN_NETWORK: Final = (_ADDRESS + _ADDRESS).scaled(TRAVERSAL)
_NETWORK_IN_NETWORK: Final = _IN_NETWORK + _ADDRESS.scaled(TRAVERSAL) + ONE
_OVERLOADS: Final[dict[str, EstimateRule]] = {
    "list_slice": _sliced,
    "lists_range": lambda operands: _allocating(1, exactly(operands[0].number(MOST))),
    "list_reverse": lambda operands: _allocating(1, operands[0].size),
    "list_flatten": _flattened,
    "list_flatten_int": _flattened,
    "list_distinct": _compared_pairs(0, 2),
    **_orders(),
    "list_sets_contains_list": _sets(1),
    "list_sets_intersects_list": _sets(1),
    "list_sets_equivalent_list": _sets(2),
    "cidr_ip": _always(ONE),
    "cidr_contains_ip_string": _contained(_IN_NETWORK),
    "cidr_contains_cidr_string": _contained(_NETWORK_IN_NETWORK),
}
_FUNCTIONS: Final[dict[str, EstimateRule]] = {
    "check": _always(exactly(_CHECK)),
    **dict.fromkeys(("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"), _traversed),
    "includes": _includes,
    **dict.fromkeys(("url", "lowerAscii", "upperAscii", "substring", "trim"), _transformed),
    "replace": _replaced,
    "split": _split,
    "join": _joined,
    **dict.fromkeys(("find", "findAll"), _searched),
    **dict.fromkeys(("cidr", "ip", "isIP", "isCIDR"), _in_proportion(0)),
    **dict.fromkeys(("quantity", "isQuantity", "semver", "isSemver"), _in_proportion(0)),
    "ip.isCanonical": _in_proportion(0, 2 * TRAVERSAL),
    "containsIP": _always(_IN_NETWORK),
    "containsCIDR": _always(_NETWORK_IN_NETWORK),
    "validate": _validated,
}
_ORDERED: Final = [f"{order}{kind}" for order in ("less", "greater") for kind in ("_string", "_bytes")]
_STANDARD: Final[dict[str, EstimateRule]] = {
    "string_format": _in_proportion(0),
    "string_to_bytes": _to_bytes,
    "bytes_to_string": _to_string,
    "strings_quote": _quoted,
    **dict.fromkeys(("starts_with_string", "ends_with_string"), _in_proportion(1)),
    "in_list": _in_proportion(1, 1),
    **dict.fromkeys(("matches", "matches_string"), _matches),
    "contains_string": _contains,
    **dict.fromkeys(("add_string", "add_bytes"), _added),
    "add_list": _added_lists,
    **dict.fromkeys(_ORDERED, _smaller),
    **dict.fromkeys([name.replace("_", "_equals_", 1) for name in _ORDERED], _smaller),
    "equals": _compared,
    "not_equals": _smaller,
}
