"""The parser: from source to syntax tree, with the grammar, the macros and the limits of cel-go.

Kubernetes accepts 250 levels of each rule of the grammar within itself, and as many operators within one another.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from dranode.sim.cel.errors import CELCompileError
from dranode.sim.cel.macros import expanded
from dranode.sim.cel.syntax import (
    CallExpr,
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
from dranode.sim.cel.tokens import Token, bytes_of, string_of, tokens
from dranode.sim.cel.values import INT64, UINT64, UInt

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
    """The syntax tree of the source, in which macros are expanded; `escapes`: names can stand in backticks.

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
        """The name of the message that begins here, whose brace is then taken."""
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
        """Take the comma that alone may stand between two brackets."""
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
