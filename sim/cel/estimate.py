"""The greatest cost that an expression can have, which the API server bounds (cel-go: checker/cost.go).

Sizes are bounds; what is not known can be anything. What a device has is bounded by the API. Sources beside the
checker's: k8s.io/dynamic-resource-allocation/cel/compile.go (sizes), and those of call_estimates.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from dranode.sim.cel.call_estimates import MOST, NOTHING, ONE, UNKNOWN, Estimate, Extent, Operand, exactly, of_call
from dranode.sim.cel.checker import Checked
from dranode.sim.cel.costs import LIST, MAP, STRUCT
from dranode.sim.cel.declarations import KnownToCEL
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
from dranode.sim.cel.types import BOOL, DOUBLE, DURATION, INT, OPTIONAL, TIMESTAMP, UINT, CELType, TypeKind

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
    """The size of a part of a device; None of what is no such part."""
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
    """The sizes of what a list or map holds."""

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
                return sum((self.cost(one.value) for one in node.fields), exactly(STRUCT))
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
        costs, operands = [], []
        for one in node.arguments:
            costs.append(self.cost(one))
            operands.append(self._operand(one))
        total = NOTHING
        target = None
        if node.target is not None:
            total = self.cost(node.target)
            target = self._operand(node.target)
        cost = Extent(MOST, 0)
        size: Extent | None = None
        for overload in self.checked.overloads[node]:
            estimate = self._of_overload(node, overload.id, target, operands, costs)
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

    def _of_overload(
        self, node: CallExpr, overload: str, target: Operand | None, operands: list[Operand], costs: list[Extent]
    ) -> Estimate:
        """The cost of one overload with that of its arguments."""
        match overload:
            case "logical_or" | "logical_and":
                left, right = costs
                return Estimate(Extent(left.least, (left + right).most))
            case "conditional":
                return self._conditional(node, operands, costs)
            case "add_string" | "add_bytes" | "add_list":
                self._added_entries(node)
        arguments = NOTHING
        for one in costs:
            arguments += one
        estimate = of_call(node.function, overload, target, operands, self.known)
        return Estimate(estimate.cost + arguments, estimate.size)

    def _conditional(self, node: CallExpr, operands: list[Operand], costs: list[Extent]) -> Estimate:
        _, then, otherwise = node.arguments
        one, two = self._entries_of(then), self._entries_of(otherwise)
        if one is not None and two is not None:
            self.entries[node] = one | two
        return Estimate(costs[0] + (costs[1] | costs[2]), (operands[1].size or UNKNOWN) | (operands[2].size or UNKNOWN))

    def _added_entries(self, node: CallExpr) -> None:
        one, two = (self._entries_of(argument) for argument in node.arguments)
        if one is not None and two is not None:
            self.entries[node] = one | two

    def _operand(self, node: Expr) -> Operand:
        path = self._path(node)
        if path and path[0] in (ACCUMULATOR, "__result__"):
            path = ()
        literal: Any = node.value if isinstance(node, Literal) else None
        return Operand(self.checked.types[node], self.size(node), path, literal, device_size)

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
        # The condition before the step: what it learns of sizes is known then.
        each = self.cost(node.condition)
        each = self.cost(node.step) + each
        for name in names:
            self.variables[name].pop()
        cost += self.cost(node.result)
        self.variables[node.accumulator].pop()
        count = self.size(node.over) or UNKNOWN
        cost += count * each
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

    # --- what is known of nodes ---

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
