"""The parser: from source to syntax tree, with the tokens, the grammar, the macros and the limits of cel-go.

Kubernetes accepts 250 levels of each rule of the grammar within itself, and as many operators within one another.
Sources: cel-spec (langdef.md), cel-go (parser, ext, cel).
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Final, TypeAlias

from dranode.sim.cel.syntax import (
    ACCUMULATOR,
    UNUSED,
    CallExpr,
    CELCompileError,
    Comprehension,
    Expr,
    Ident,
    ListLiteral,
    Literal,
    MapEntry,
    MapLiteral,
    MessageLiteral,
    Select,
    children,
)
from dranode.sim.cel.values import INT64, UINT64, UInt

_ESCAPE: Final = r"\\(?:[abfnrtv\"'\\?`]|[0-3][0-7][0-7]|[xX][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})"
_STRING: Final = "|".join(
    (
        rf'"""(?:{_ESCAPE}|[^\\])*?"""',
        rf"'''(?:{_ESCAPE}|[^\\])*?'''",
        rf'"(?:{_ESCAPE}|[^\\"\n\r])*"',
        rf"'(?:{_ESCAPE}|[^\\'\n\r])*'",
    )
)
_RAW: Final = r'''[rR](?:"""[\s\S]*?"""|\'\'\'[\s\S]*?\'\'\'|"[^"\n\r]*"|'[^'\n\r]*')'''
_TOKEN: Final = re.compile(
    "|".join(
        (
            r"(?P<space>[\t \r\n\f]+|//[^\n]*)",
            rf"(?P<bytes>[bB](?:{_RAW}|{_STRING}))",
            rf"(?P<string>{_RAW}|{_STRING})",
            r"(?P<double>[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|\.[0-9]+(?:[eE][+-]?[0-9]+)?)",
            r"(?P<uint>0x[0-9a-fA-F]+[uU]|[0-9]+[uU])",
            r"(?P<int>0x[0-9a-fA-F]+|[0-9]+)",
            r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)",
            r"(?P<escaped>`[A-Za-z0-9_.\-/ ]+`)",
            r"(?P<sign>==|!=|<=|>=|&&|\|\||[<>\[\]{}().,\-!?:+*/%])",
        )
    )
)
_SIMPLE: Final = {"a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11}
_ESCAPES: Final = re.compile(_ESCAPE)
_SURROGATES: Final = range(0xD800, 0xE000)
_LARGEST: Final = 0x10FFFF


@dataclass(frozen=True, slots=True)
class Token:
    """A token: its kind (`name`, `int`, `sign` ... or `end`), its text, and its offset in characters."""

    kind: str
    text: str
    start: int


def tokens(source: str) -> Iterator[Token]:
    """Return the tokens of the source, without spaces and comments, and the end.

    Raises:
        CELCompileError: something is none.
    """
    position = 0
    while position < len(source):
        match = _TOKEN.match(source, position)
        if match is None:
            raise CELCompileError(f"Syntax error: token recognition error at: {source[position : position + 10]!r}")
        if match.lastgroup != "space":
            kind = "sign" if match.lastgroup == "name" and match[0] == "in" else match.lastgroup or ""
            yield Token(kind, match[0], position)
        position = match.end()
    yield Token("end", "<EOF>", position)


def string_of(text: str) -> str:
    """Return the value of a string literal.

    Raises:
        CELCompileError: it has the code of no character.
    """
    raw, body = _unquoted(text)
    return body if raw else _ESCAPES.sub(lambda found: _character(found[0]), body)


def bytes_of(text: str) -> bytes:
    """Return the value of a bytes literal: numeric escapes are bytes, and everything else is UTF-8.

    Raises:
        CELCompileError: it has an escape of a character's code.
    """
    raw, body = _unquoted(text[1:])
    if raw:
        return body.encode()
    parts: list[bytes] = []
    end = 0
    for escape in _ESCAPES.finditer(body):
        parts += (body[end : escape.start()].encode(), _byte(escape[0]))
        end = escape.end()
    return b"".join((*parts, body[end:].encode()))


def _unquoted(text: str) -> tuple[bool, str]:
    """Return whether it is raw, and what stands between the quotes, with line ends as cel-go has them."""
    raw = text[0] in "rR"
    text = (text[1:] if raw else text).replace("\r\n", "\n").replace("\r", "\n")
    quotes = 3 if text[:3] in ('"""', "'''") and len(text) >= 6 else 1  # noqa: PLR2004 - two times three quotes
    return raw, text[quotes:-quotes]


def _character(escape: str) -> str:
    code = _code(escape)
    if code in _SURROGATES or code > _LARGEST:
        raise CELCompileError(f"invalid unicode code point: {escape}")
    return chr(code)


def _byte(escape: str) -> bytes:
    if escape[1] in "uU":
        raise CELCompileError(f"unable to unescape string: {escape} in bytes")
    return bytes([_code(escape)])


def _code(escape: str) -> int:
    kind = escape[1]
    if kind in "xXuU":
        return int.from_bytes(bytes.fromhex(escape[2:]))
    if kind.isdigit():
        return int(escape[1:], 8)
    return _SIMPLE.get(kind, ord(kind))


_Macro: TypeAlias = Callable[[Expr, list[Expr]], Expr | None]

_SORTED: Final = "@__sortBy_input__"
_FORBIDDEN: Final = (ACCUMULATOR, "__result__")


def expanded(node: Expr) -> Expr:
    """Return the tree with macros replaced by loops.

    Raises:
        CELCompileError: a macro has other arguments than it takes.
    """
    match node:
        case Select():
            node.operand = expanded(node.operand)
        case ListLiteral():
            node.elements = [expanded(element) for element in node.elements]
        case MapLiteral():
            node.entries = [
                MapEntry(expanded(entry.key), expanded(entry.value), entry.optional) for entry in node.entries
            ]
        case MessageLiteral():
            node.fields = [MapEntry(field.key, expanded(field.value), field.optional) for field in node.fields]
        case CallExpr():
            node.target = None if node.target is None else expanded(node.target)
            node.arguments = [expanded(argument) for argument in node.arguments]
            return _called(node) or node
    return node


def _called(call: CallExpr) -> Expr | None:
    if call.target is None:
        return _has(call.arguments) if call.function == "has" and len(call.arguments) == 1 else None
    macro = _MACROS.get((call.function, len(call.arguments)))
    return macro(call.target, call.arguments) if macro else None


def _accumulated() -> Expr:
    return Ident(ACCUMULATOR)


def _has(arguments: list[Expr]) -> Expr:
    (argument,) = arguments
    if not isinstance(argument, Select):
        raise CELCompileError("invalid argument to has() macro")
    return Select(argument.operand, argument.field, test_only=True)


def _variable(node: Expr) -> str:
    if not isinstance(node, Ident):
        raise CELCompileError("argument must be a simple name")
    if node.name in _FORBIDDEN:
        raise CELCompileError("iteration variable overwrites accumulator variable")
    return node.name


def _variables(nodes: Sequence[Expr]) -> tuple[str, str | None]:
    first, *rest = map(_variable, nodes)
    if rest == [first]:
        raise CELCompileError(f"duplicate variable name: {first}")
    return first, rest[0] if rest else None


def _loop(  # noqa: PLR0917 - in the order in which they run
    over: Expr, variables: Sequence[Expr], start: Expr, condition: Expr, step: Expr, result: Expr
) -> Expr:
    first, second = _variables(variables)
    return Comprehension(over, first, second, ACCUMULATOR, start, condition, step, result)


def _bound(name: str, value: Expr, result: Expr) -> Expr:
    """Return `result` with the variable `name` bound to `value`."""
    return Comprehension(ListLiteral([]), UNUSED, None, name, value, Literal(value=False), Ident(name), result)


def _all(over: Expr, arguments: list[Expr]) -> Expr:
    condition = CallExpr("@not_strictly_false", [_accumulated()])
    step = CallExpr("_&&_", [_accumulated(), arguments[-1]])
    return _loop(over, arguments[:-1], Literal(value=True), condition, step, _accumulated())


def _exists(over: Expr, arguments: list[Expr]) -> Expr:
    condition = CallExpr("@not_strictly_false", [CallExpr("!_", [_accumulated()])])
    step = CallExpr("_||_", [_accumulated(), arguments[-1]])
    return _loop(over, arguments[:-1], Literal(value=False), condition, step, _accumulated())


def _exists_one(over: Expr, arguments: list[Expr]) -> Expr:
    step = _if(arguments[-1], CallExpr("_+_", [_accumulated(), Literal(1)]))
    result = CallExpr("_==_", [_accumulated(), Literal(1)])
    return _loop(over, arguments[:-1], Literal(0), Literal(value=True), step, result)


def _if(condition: Expr | None, step: Expr) -> Expr:
    return step if condition is None else CallExpr("_?_:_", [condition, step, _accumulated()])


def _collected(over: Expr, variables: Sequence[Expr], condition: Expr | None, element: Expr) -> Expr:
    step = _if(condition, CallExpr("_+_", [_accumulated(), ListLiteral([element])]))
    return _loop(over, variables, ListLiteral([]), Literal(value=True), step, _accumulated())


def _map(over: Expr, arguments: list[Expr]) -> Expr:
    variable, *condition, element = arguments
    return _collected(over, [variable], condition[0] if condition else None, element)


def _filter(over: Expr, arguments: list[Expr]) -> Expr:
    variable, condition = arguments
    return _collected(over, [variable], condition, variable)


def _transform_list(over: Expr, arguments: list[Expr]) -> Expr:
    one, two, *condition, element = arguments
    return _collected(over, [one, two], condition[0] if condition else None, element)


def _transform_map(over: Expr, arguments: list[Expr]) -> Expr:
    one, two, *condition, value = arguments
    key = Ident(_variables([one, two])[0])
    return _inserted(over, [one, two], condition, [key, value])


def _transform_entry(over: Expr, arguments: list[Expr]) -> Expr:
    one, two, *condition, entry = arguments
    return _inserted(over, [one, two], condition, [entry])


def _inserted(over: Expr, variables: Sequence[Expr], condition: list[Expr], inserted: list[Expr]) -> Expr:
    step = _if(condition[0] if condition else None, CallExpr("cel.@mapInsert", [_accumulated(), *inserted]))
    return _loop(over, variables, MapLiteral([]), Literal(value=True), step, _accumulated())


def _sort_by(target: Expr, arguments: list[Expr]) -> Expr:
    if isinstance(target, (Literal, MapLiteral, MessageLiteral)):
        raise CELCompileError(
            "sortBy can only be applied to a list, identifier, comprehension, call or select expression"
        )
    keys = _map(Ident(_SORTED), arguments)
    return _bound(_SORTED, target, CallExpr("@sortByAssociatedKeys", [keys], Ident(_SORTED)))


def _bind(target: Expr, arguments: list[Expr]) -> Expr | None:
    if not (isinstance(target, Ident) and target.name == "cel"):
        return None
    name, value, result = arguments
    if not isinstance(name, Ident):
        raise CELCompileError("cel.bind() variable names must be simple identifiers")
    return _bound(name.name, value, result)


def _optional_map(target: Expr, arguments: list[Expr]) -> Expr:
    return _if_present("optMap", target, arguments, lambda value: CallExpr("optional.of", [value]))


def _if_present(macro: str, target: Expr, arguments: list[Expr], then: Callable[[Expr], Expr]) -> Expr:
    name, result = arguments
    if not isinstance(name, Ident):
        raise CELCompileError(f"{macro}() variable name must be a simple identifier")
    value = CallExpr("value", [], deepcopy(target))  # facts about nodes are stored by identity, so copy it
    present = CallExpr("hasValue", [], target)
    return CallExpr("_?_:_", [present, then(_bound(name.name, value, result)), CallExpr("optional.none", [])])


_MACROS: Final[dict[tuple[str, int], _Macro]] = {
    ("all", 2): _all,
    ("all", 3): _all,
    ("exists", 2): _exists,
    ("exists", 3): _exists,
    ("exists_one", 2): _exists_one,
    ("exists_one", 3): _exists_one,
    ("existsOne", 3): _exists_one,
    ("map", 2): _map,
    ("map", 3): _map,
    ("filter", 2): _filter,
    ("transformList", 3): _transform_list,
    ("transformList", 4): _transform_list,
    ("transformMap", 3): _transform_map,
    ("transformMap", 4): _transform_map,
    ("transformMapEntry", 3): _transform_entry,
    ("transformMapEntry", 4): _transform_entry,
    ("sortBy", 2): _sort_by,
    ("bind", 3): _bind,
    ("optMap", 2): _optional_map,
    ("optFlatMap", 2): lambda target, arguments: _if_present("optFlatMap", target, arguments, lambda value: value),
}


_MAX_DEPTH: Final = 250
_RELATIONS: Final = {"<": "_<_", "<=": "_<=_", ">=": "_>=_", ">": "_>_", "==": "_==_", "!=": "_!=_", "in": "@in"}
_SUMS: Final = {"+": "_+_", "-": "_-_"}
_PRODUCTS: Final = {"*": "_*_", "/": "_/_", "%": "_%_"}
_CONSTANTS: Final = {"true": True, "false": False, "null": None}
_COUNTED: Final = {*_RELATIONS.values(), *_SUMS.values(), *_PRODUCTS.values(), "_?_:_", "_[_]", "_[?_]", "_?._"}
_TOO_DEEP: Final = f"expression recursion limit exceeded: {_MAX_DEPTH}"
_RESERVED: Final = frozenset(
    {
        *("as", "break", "const", "continue", "else", "false", "for", "function", "if", "import", "in", "let", "loop"),
        *("namespace", "null", "package", "return", "true", "var", "void", "while"),
    }
)


def parse(source: str, *, escapes: bool) -> Expr:
    """Return the syntax tree of the source with macros expanded; with `escapes`, names may be in backticks.

    Raises:
        CELCompileError: the source is no expression.
    """
    parser = _Parser(source, escapes=escapes)
    tree = parser.expression()
    parser.expect("<EOF>")
    _check_depth(tree)
    return expanded(tree)


class _Parser:
    """Recursive descent; one method for a rule of the grammar."""

    def __init__(self, source: str, *, escapes: bool) -> None:
        self.escapes = escapes
        self.words: list[Token] = list(tokens(source))
        self.at = 0
        self.depths: dict[str, int] = {}

    def expression(self) -> Expr:
        with self.entered("expr"):
            condition = self.disjunction()
            if not self.took("?"):
                return condition
            then = self.disjunction()
            self.expect(":")
            return CallExpr("_?_:_", [condition, then, self.expression()])

    def disjunction(self) -> Expr:
        node = self.conjunction()
        while self.took("||"):
            node = CallExpr("_||_", [node, self.conjunction()])
        return node

    def conjunction(self) -> Expr:
        node = self.relation()
        while self.took("&&"):
            node = CallExpr("_&&_", [node, self.relation()])
        return node

    def relation(self) -> Expr:
        with self.entered("relation"):
            node = self.sum()
            while operator := self.took_one(_RELATIONS):
                with self.entered("relation"):
                    node = CallExpr(operator, [node, self.sum()])
            return node

    def sum(self) -> Expr:
        with self.entered("calc"):
            node = self.product()
            while operator := self.took_one(_SUMS):
                with self.entered("calc"):
                    node = CallExpr(operator, [node, self.product()])
            return node

    def product(self) -> Expr:
        node = self.unary()
        while operator := self.took_one(_PRODUCTS):
            with self.entered("calc"):
                node = CallExpr(operator, [node, self.unary()])
        return node

    def unary(self) -> Expr:
        for sign, operator in (("!", "!_"), ("-", "-_")):
            times = 0
            while self.words[self.at + times].text == sign and self.words[self.at + times].kind == "sign":
                times += 1
            # The sign of a number belongs to its literal.
            if times and not (sign == "-" and times == 1 and self._number_follows()):
                self.at += times
                member = self.member()
                return CallExpr(operator, [member]) if times % 2 else member
        return self.member()

    def _number_follows(self) -> bool:
        return self.words[self.at + 1].kind in ("int", "double")

    def member(self) -> Expr:
        node = self.primary()
        while True:
            if self.took("."):
                node = self._member_of(node)
            elif self.took("["):
                operator = "_[?_]" if self.took("?") else "_[_]"
                node = CallExpr(operator, [node, self.expression()])
                self.expect("]")
            else:
                return node

    def _member_of(self, operand: Expr) -> Expr:
        optional = self.took("?")
        word = self.take("name", "escaped")
        if word.kind == "name" and not optional and self.took("("):
            return CallExpr(self._name(word), self._arguments(), operand)
        field = self._field(word)
        return CallExpr("_?._", [operand, Literal(field)]) if optional else Select(operand, field)

    def _field(self, word: Token) -> str:
        if word.kind == "name":
            return self._name(word)
        if not self.escapes:
            raise CELCompileError("unsupported syntax: '`'")
        return word.text[1:-1]

    def _name(self, word: Token) -> str:
        if word.text in _CONSTANTS:
            raise self._unexpected(word)
        return word.text

    def primary(self) -> Expr:
        if self.took("("):
            node = self.expression()
            self.expect(")")
            return node
        if self.took("["):
            return self._list()
        if self.took("{"):
            return MapLiteral(self._entries())
        word = self.next
        if (word.kind == "name" and word.text not in _CONSTANTS) or (word.kind == "sign" and word.text == "."):
            return self._named()
        return self._literal()

    def _named(self) -> Expr:
        dot = "." if self.took(".") else ""
        start = self.at
        word = self.take("name")
        name = dot + self._name(word)
        message = self._message_name(start)
        if message is not None:
            return MessageLiteral(dot + message, self._fields())
        if word.text in _RESERVED:
            raise CELCompileError(f"reserved identifier: {word.text}")
        return CallExpr(name, self._arguments()) if self.took("(") else Ident(name)

    def _message_name(self, start: int) -> str | None:
        """Return the name of the message that begins here, and consume its brace."""
        at = start
        while self.words[at].kind == "name" and self.words[at].text not in _CONSTANTS:
            after = self.words[at + 1]
            if after.text == "{" and after.kind == "sign":
                self.at = at + 2
                return "".join(word.text for word in self.words[start : at + 1])
            if after.text != "." or after.kind != "sign":
                return None
            at += 2
        return None

    def _list(self) -> Expr:
        elements: list[Expr] = []
        optional: set[int] = set()
        self._take_comma_before("]")
        while not self.took("]"):
            if self.took("?"):
                optional.add(len(elements))
            elements.append(self.expression())
            if not self.took(","):
                self.expect("]")
                break
        return ListLiteral(elements, frozenset(optional))

    def _entries(self) -> list[MapEntry]:
        entries: list[MapEntry] = []
        self._take_comma_before("}")
        while not self.took("}"):
            optional = self.took("?")
            key = self.expression()
            self.expect(":")
            entries.append(MapEntry(key, self.expression(), optional))
            if not self.took(","):
                self.expect("}")
                break
        return entries

    def _fields(self) -> list[MapEntry]:
        fields: list[MapEntry] = []
        self._take_comma_before("}")
        while not self.took("}"):
            optional = self.took("?")
            word = self.take("name", "escaped")
            name = Literal(self._field(word))
            self.expect(":")
            fields.append(MapEntry(name, self.expression(), optional))
            if not self.took(","):
                self.expect("}")
                break
        return fields

    def _take_comma_before(self, sign: str) -> None:
        """Skip a comma directly before a closing sign."""
        self.at += self.next.text == "," and self.words[self.at + 1].text == sign

    def _arguments(self) -> list[Expr]:
        arguments: list[Expr] = []
        if self.took(")"):
            return arguments
        arguments.append(self.expression())
        while self.took(","):
            arguments.append(self.expression())
        self.expect(")")
        return arguments

    def _literal(self) -> Expr:
        sign = "-" if self.next.text == "-" and self.next.kind == "sign" and self._number_follows() else ""
        self.at += len(sign)
        word = self.next
        self.at += 1
        match word.kind:
            case "int":
                return Literal(_integer(sign + word.text))
            case "uint":
                return Literal(_unsigned(word.text[:-1]))
            case "double":
                return Literal(_double(sign + word.text))
            case "string":
                return Literal(string_of(word.text))
            case "bytes":
                return Literal(bytes_of(word.text))
            case "name" if word.text in _CONSTANTS:
                return Literal(_CONSTANTS[word.text])
        raise self._unexpected(word)

    # --- words ---

    @property
    def next(self) -> Token:
        return self.words[self.at]

    def took(self, sign: str) -> bool:
        if self.next.kind != "sign" or self.next.text != sign:
            return False
        self.at += 1
        return True

    def took_one(self, operators: dict[str, str]) -> str | None:
        operator = operators.get(self.next.text) if self.next.kind == "sign" else None
        self.at += operator is not None
        return operator

    def take(self, *kinds: str) -> Token:
        word = self.next
        if word.kind not in kinds:
            raise self._unexpected(word)
        self.at += 1
        return word

    def expect(self, text: str) -> None:
        if self.next.text != text or self.next.kind not in ("sign", "end"):
            raise self._unexpected(self.next)
        self.at += 1

    def _unexpected(self, word: Token) -> CELCompileError:
        return CELCompileError(f"Syntax error: unexpected {word.text!r} at character {word.start + 1}")

    # --- depth ---

    @contextmanager
    def entered(self, rule: str) -> Iterator[None]:
        """Within a rule of the grammar; of those that are not counted none is deeper than an expression."""
        depth = self.depths[rule] = self.depths.get(rule, 0) + 1
        if depth > _MAX_DEPTH:
            raise CELCompileError(_TOO_DEEP)
        yield
        self.depths[rule] -= 1


def _check_depth(tree: Expr) -> None:
    todo = [(tree, 0)]
    while todo:
        node, depth = todo.pop()
        operator = isinstance(node, CallExpr) and (node.target is not None or node.function in _COUNTED)
        depth += isinstance(node, Select) or operator
        if depth > _MAX_DEPTH:
            raise CELCompileError(_TOO_DEEP)
        todo += ((child, depth) for child in children(node))


def _integer(text: str) -> int:
    value = _whole(text, "int")
    if value not in INT64:
        raise CELCompileError(f"invalid int literal: {text}")
    return value


def _unsigned(text: str) -> UInt:
    value = _whole(text, "uint")
    if value not in UINT64:
        raise CELCompileError(f"invalid uint literal: {text}")
    return UInt(value)


def _whole(text: str, kind: str) -> int:
    try:
        return int(text.replace("0x", ""), 16 if "0x" in text else 10)
    except ValueError as error:  # Python reads no number of more than 4,300 digits
        raise CELCompileError(f"invalid {kind} literal: {text}") from error


def _double(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise CELCompileError(f"invalid double literal: {text}")
    return value
