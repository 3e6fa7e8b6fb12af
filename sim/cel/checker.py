"""The type checker: which overloads each call has, and what type each node is of, as cel-go's checker finds them.

Literals are checked as Kubernetes does when it compiles (cel-go: cel/validator.go, ext/formatting.go).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from dranode.sim.cel.declarations import (
    ANY,
    BOOL,
    BYTES,
    CIDR,
    DEVICE,
    DOUBLE,
    DURATION,
    DYN,
    EMPTY,
    ERROR,
    INT,
    IP,
    NULL,
    QUANTITY,
    STRING,
    TIMESTAMP,
    UINT,
    CELType,
    KnownToCEL,
    Overload,
    Substitutions,
    TypeKind,
    functions,
    is_dyn,
    list_of,
    map_of,
    most_general,
    optional_of,
    type_of,
    unwrapped,
    variable,
)
from dranode.sim.cel.messages import CONSTANTS, MessageKind, messages
from dranode.sim.cel.strings import check_format, compiled
from dranode.sim.cel.syntax import (
    CallExpr,
    CELCompileError,
    Comprehension,
    Expr,
    Ident,
    ListLiteral,
    Literal,
    MapLiteral,
    MessageLiteral,
    Select,
    children,
    walk,
)
from dranode.sim.cel.values import TypeValue, UInt, to_duration, to_timestamp

_Scope: TypeAlias = dict[str, CELType]

_LITERALS: Final[dict[type, CELType]] = {
    type(None): NULL,
    bool: BOOL,
    int: INT,
    UInt: UINT,
    float: DOUBLE,
    str: STRING,
    bytes: BYTES,
}
_DEVICE: Final = "device"
_TYPES: Final = {
    **{kind.name: kind for kind in (BOOL, BYTES, DOUBLE, DURATION, INT, NULL, STRING, TIMESTAMP, UINT)},
    "list": list_of(DYN),
    "map": map_of(DYN, DYN),
    "type": type_of(DYN),
    "optional_type": optional_of(DYN),
    **{kind.name: kind for kind in (IP, CIDR, EMPTY)},
}


@dataclass(slots=True)
class Checked:
    """The result of the checker.

    Attributes:
        types: of each node.
        overloads: of each call.
        constants: names that are types or constants.
        messages: what each message literal makes.
    """

    tree: Expr
    types: dict[Expr, CELType] = field(default_factory=dict)
    overloads: dict[Expr, tuple[Overload, ...]] = field(default_factory=dict)
    constants: dict[Expr, Any] = field(default_factory=dict)
    messages: dict[Expr, MessageKind] = field(default_factory=dict)

    @property
    def result(self) -> CELType:
        """Return the type of the whole expression."""
        return self.types[self.tree]


def device_fields(known: KnownToCEL) -> Mapping[str, CELType]:
    """The fields of `device`."""
    attribute = DYN if known.lists else ANY
    shares = {"allowMultipleAllocations": BOOL} if known.shares else {}
    return {
        "driver": STRING,
        "attributes": map_of(STRING, map_of(STRING, attribute)),
        "capacity": map_of(STRING, map_of(STRING, QUANTITY)),
        **shares,
    }


def checked_tree(tree: Expr, known: KnownToCEL) -> Checked:
    """Return the types of the nodes of a tree.

    Raises:
        CELCompileError: something is not declared, or is called with other types than it takes.
    """
    checker = _Checker(tree, known)
    checker.check(tree)
    checked = checker.checked
    checked.types = {node: checker.known.applied(kind, last=True) for node, kind in checked.types.items()}
    return checked


class _Checker:
    def __init__(self, tree: Expr, known: KnownToCEL) -> None:
        self.checked = Checked(tree)
        self.functions = functions(known)
        self.fields = device_fields(known)
        self.messages = messages(DEVICE, self.fields, known)
        self.newer = known.cel_go_29
        self.scopes: list[_Scope] = []
        self.known = Substitutions()
        self.variables = 0

    def check(self, node: Expr) -> CELType:
        kind = self._kind(node)
        self.checked.types[node] = kind
        return kind

    def _kind(self, node: Expr) -> CELType:  # noqa: PLR0911 - one for each kind
        match node:
            case Literal():
                return _LITERALS[type(node.value)]
            case Ident():
                return self._named(node, node.name)
            case Select():
                return self._select(node)
            case CallExpr():
                return self._call(node)
            case ListLiteral():
                return self._list(node)
            case MapLiteral():
                return self._map(node)
            case MessageLiteral():
                return self._message(node)
            case Comprehension():
                return self._loop(node)

    @staticmethod
    def _undeclared(name: str) -> CELCompileError:
        return CELCompileError(f"undeclared reference to '{name}' (in container '')")

    # --- names ---

    def _named(self, node: Expr, name: str) -> CELType:
        kind = self._lookup(node, name)
        if kind is None:
            raise self._undeclared(name)
        return kind

    def _lookup(self, node: Expr, name: str) -> CELType | None:
        """Return the type of a name. Loop variables may hide it; since cel-go 0.29 a leading dot ignores them."""
        plain = name.removeprefix(".")
        first = plain.partition(".")[0]
        hides = next((scope for scope in reversed(self.scopes) if first in scope), None)
        if hides is not None and not (self.newer and name.startswith(".")):
            if first == plain:
                return hides[plain]
            if self.newer:
                return None
        if plain == _DEVICE:
            return DEVICE
        if plain in CONSTANTS:
            self.checked.constants[node] = CONSTANTS[plain]
            return INT
        if plain not in _TYPES:
            return None
        if hides is not None and self.newer:
            raise CELCompileError(f"program instantiation failed: reference to undefined type: {name}")
        self.checked.constants[node] = TypeValue(plain)
        return type_of(_TYPES[plain])

    def _select(self, node: Select) -> CELType:
        name = None if node.test_only else dotted_name(node)
        if name is not None:
            kind = self._lookup(node, name)
            if kind is not None:
                return kind
        kind = self._field(node.operand, node.field, optional=False)
        return BOOL if node.test_only else self.known.applied(kind)

    def _field(self, operand: Expr, name: str, *, optional: bool) -> CELType:
        inside, was_optional = unwrapped(self.known.applied(self.check(operand)))
        match inside.kind:
            case TypeKind.MAP:
                kind = inside.parameters[1]
            case TypeKind.STRUCT:
                kind = self._struct_field(inside, name)
            case TypeKind.VARIABLE:
                self.known.fits(DYN, inside)
                kind = DYN
            case TypeKind.DYN | TypeKind.ANY | TypeKind.ERROR:
                kind = DYN
            case _:
                raise CELCompileError(f"type '{inside}' does not support field selection")
        return optional_of(kind) if was_optional or optional else kind

    def _struct_field(self, struct: CELType, name: str) -> CELType:
        if struct != DEVICE:
            raise CELCompileError(f"unexpected failed resolution of '{struct}'")
        if name not in self.fields:
            raise CELCompileError(f"undefined field '{name}'")
        return self.fields[name]

    # --- calls ---

    def _call(self, node: CallExpr) -> CELType:
        if node.function == "_?._":
            operand, name = node.arguments
            self.checked.types[name] = STRING
            self.checked.overloads[node] = self.functions["_?._"]
            kind = self._field(operand, text_of(name), optional=True)
            return self.known.applied(kind)
        for argument in node.arguments:
            self.check(argument)
        if node.target is not None:
            self._take_namespace(node)
        if node.target is not None:
            self.check(node.target)
        overloads = self.functions.get(node.function.removeprefix("."))
        if overloads is None:
            raise CELCompileError(f"undeclared reference to '{node.function}' (in container '')")
        return self._resolved(node, overloads)

    def _take_namespace(self, node: CallExpr) -> None:
        """Return the type of `a.b(c)` if `a.b` is the name of a function."""
        prefix = dotted_name(node.target) if node.target is not None else None
        if prefix is not None and f"{prefix}.{node.function}".removeprefix(".") in self.functions:
            node.function = f"{prefix}.{node.function}".removeprefix(".")
            node.target = None

    def _resolved(self, node: CallExpr, overloads: Sequence[Overload]) -> CELType:
        arguments = [node.target, *node.arguments] if node.target is not None else node.arguments
        kinds = tuple(self.checked.types[argument] for argument in arguments)
        result: CELType | None = None
        fitting: list[Overload] = []
        for overload in overloads:
            if overload.member != (node.target is not None):
                continue
            fresh = Substitutions()
            for type_variable in sorted(overload.variables, key=lambda kind: kind.name):
                fresh.all_fit((self._variable(),), (type_variable,))
            parameters = tuple(fresh.applied(parameter) for parameter in overload.parameters)
            if not self.known.all_fit(kinds, parameters):
                continue
            fitting.append(overload)
            resolved = self.known.applied(fresh.applied(overload.result))
            if result is None:
                result = resolved
            elif not is_dyn(result) and resolved != result:
                result = DYN
        if result is None:
            shown = ", ".join(str(self.known.applied(kind, last=True)) for kind in kinds)
            raise CELCompileError(f"found no matching overload for '{node.function}' applied to '({shown})'")
        self.checked.overloads[node] = tuple(fitting)
        return result

    def _variable(self) -> CELType:
        self.variables += 1
        return variable(f"_var{self.variables - 1}")

    # --- literals ---

    def _list(self, node: ListLiteral) -> CELType:
        joined: CELType | None = None
        for index, element in enumerate(node.elements):
            kind = self._entry(self.check(element), optional=index in node.optional)
            joined = self._joined(joined, kind)
        return list_of(joined or self._variable())

    def _map(self, node: MapLiteral) -> CELType:
        key: CELType | None = None
        value: CELType | None = None
        for entry in node.entries:
            key = self._joined(key, self.check(entry.key))
            value = self._joined(value, self._entry(self.check(entry.value), optional=entry.optional))
        return map_of(key or self._variable(), value or self._variable())

    def _message(self, node: MessageLiteral) -> CELType:
        message = self.messages.get(node.name.removeprefix("."))
        if message is None:
            raise self._undeclared(node.name)
        for entry in node.fields:
            field_name = text_of(entry.key)
            kind = self._entry(self.check(entry.value), optional=entry.optional)
            field_ = message.fields.get(field_name)
            if field_ is None:
                raise CELCompileError(f"undefined field '{field_name}'")
            if not self.known.fits(field_.kind, kind):
                raise CELCompileError(
                    f"expected type of field '{field_name}' is '{field_.kind}' but provided type is '{kind}'"
                )
        self.checked.messages[node] = message
        return message.result

    def _entry(self, kind: CELType, *, optional: bool) -> CELType:
        if not optional:
            return kind
        inside, was_optional = unwrapped(kind)
        if not was_optional and not is_dyn(kind):
            raise CELCompileError(f"expected type '{optional_of(kind)}' but found '{kind}'")
        return inside

    def _joined(self, before: CELType | None, kind: CELType) -> CELType:
        if before is None:
            return kind
        return most_general(before, kind) if self.known.fits(before, kind) else DYN

    # --- loops ---

    def _loop(self, node: Comprehension) -> CELType:
        self.check(node.over)
        start = self.check(node.start)
        over = self.known.applied(self.checked.types[node.over])
        self.scopes.append({node.accumulator: start})
        self.scopes.append(self._loop_variables(node, over))
        self._assert(node.condition, BOOL)
        self._assert(node.step, start)
        self.scopes.pop()
        result = self.check(node.result)
        self.scopes.pop()
        return self.known.applied(result)

    def _loop_variables(self, node: Comprehension, over: CELType) -> _Scope:
        one: CELType
        two: CELType
        match over.kind:
            case TypeKind.LIST:
                (element,) = over.parameters
                one, two = (INT, element) if node.variable2 else (element, ERROR)
            case TypeKind.MAP:
                one, two = over.parameters
            case TypeKind.DYN | TypeKind.ERROR | TypeKind.VARIABLE:
                self.known.fits(DYN, over)
                one = two = DYN
            case _:
                raise CELCompileError(
                    f"expression of type '{over}' cannot be range of a comprehension (must be list, map, or dynamic)"
                )
        return {node.variable: one, node.variable2: two} if node.variable2 else {node.variable: one}

    def _assert(self, node: Expr, kind: CELType) -> None:
        actual = self.check(node)
        if not self.known.fits(kind, actual):
            raise CELCompileError(f"expected type '{kind}' but found '{actual}'")


def dotted_name(node: Expr) -> str | None:
    """Return `a.b.c` for a chain of selections."""
    names: list[str] = []
    while isinstance(node, Select) and not node.test_only:
        names.append(node.field)
        node = node.operand
    if not isinstance(node, Ident):
        return None
    return ".".join((node.name, *reversed(names)))


def text_of(node: Expr) -> str:
    """Return the text of a literal."""
    value: Any = node.value if isinstance(node, Literal) else None
    return str(value)


_READERS: dict[str, Any] = {"duration": to_duration, "timestamp": to_timestamp, "matches": compiled}


def check_literals(checked: Checked) -> None:
    """Check the literals.

    Raises:
        CELCompileError: one cannot be what it is used as, or a list or map has literals of different types.
    """
    for node in walk(checked.tree):
        if isinstance(node, CallExpr):
            _check_literal(node)
            _check_format(checked, node)
    for node in _outside_of_format(checked.tree):
        if isinstance(node, ListLiteral):
            kinds = [_kind(checked, one, optional=at in node.optional) for at, one in enumerate(node.elements)]
            _check_alike(kinds)
        elif isinstance(node, MapLiteral):
            _check_alike([checked.types[entry.key] for entry in node.entries])
            _check_alike([_kind(checked, entry.value, optional=entry.optional) for entry in node.entries])


def _check_literal(call: CallExpr) -> None:
    read = _READERS.get(call.function)
    if read is None or not call.arguments or not isinstance(call.arguments[0], Literal):
        return
    value = call.arguments[0].value
    if call.function == "matches" and not isinstance(value, str):
        return
    try:
        read(value)
    except ValueError as error:
        raise CELCompileError(f"invalid {call.function} argument: {error}") from error


def _check_format(checked: Checked, call: CallExpr) -> None:
    if call.function != "format" or not isinstance(call.target, Literal) or not isinstance(call.target.value, str):
        return
    (arguments,) = call.arguments
    if not isinstance(arguments, ListLiteral):
        return
    try:
        check_format(call.target.value, arguments.elements, checked.types.__getitem__)
    except ValueError as error:
        raise CELCompileError(str(error)) from error


def _outside_of_format(node: Expr) -> Iterator[Expr]:
    """Yield the nodes that are not arguments of format(), which takes values of any type."""
    todo = [node]
    while todo:
        node = todo.pop()
        if isinstance(node, CallExpr) and node.function == "format":
            continue
        yield node
        todo += children(node)


def _kind(checked: Checked, node: Expr, *, optional: bool) -> CELType:
    kind = checked.types[node]
    if not optional:
        return kind
    inside, was_optional = unwrapped(kind)
    if not was_optional:
        raise CELCompileError(f"an optional element of type '{kind}', on which Kubernetes panics")
    return inside


def _check_alike(kinds: Sequence[CELType]) -> None:
    for kind in kinds[1:]:
        if kind != kinds[0]:
            raise CELCompileError(f"expected type '{kinds[0]}' but found '{kind}'")
