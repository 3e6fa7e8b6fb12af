r"""YAML syntax as the library behind runtimes reads it: go.yaml.in/yaml v2, a libyaml port that knows YAML 1.1.

PyYAML is of the same family; what is here is where the two differ. Runtimes parse JSON files with it too, so these
differences decide which JSON loads: tabs may separate tokens, `\/` and surrogate escapes are no escapes, and nothing
after the first document is looked at. Input is taken in the same small pieces, because a byte that cannot be text
is only noticed in a piece that is reached.
"""

# mypy: allow-untyped-calls
# (the stubs of PyYAML leave most of its methods without types)

from __future__ import annotations

import io
import string
from typing import Any, Final

from yaml.parser import Parser, ParserError
from yaml.reader import Reader
from yaml.scanner import Scanner, ScannerError
from yaml.tokens import DirectiveToken, ScalarToken, TagToken

# No document of any use nests deeper than ten levels; the Go library gives up at 10,000.
DEPTH_LIMIT: Final = 100
_PIECE: Final = 512  # bytes that the Go library reads and checks at a time
_BREAKS: Final = "\r\n\x85\u2028\u2029"
_BLANKS_AND_END: Final = "\0 \t" + _BREAKS
_FLOW_INDICATORS: Final = ",?[]{}"
_WORD_CHARACTERS: Final = string.ascii_letters + string.digits + "-_"
_TAG_CHARACTERS: Final = _WORD_CHARACTERS + ";/?:@&=+$,.!~*'()[]%"
_SURROGATES: Final = range(0xD800, 0xE000)
_BYTE_ORDER_MARK: Final = "\ufeff"


class GoSyntax(Reader, Scanner, Parser):
    """Reader, scanner and parser of PyYAML with the Go library's rules where they differ."""

    ESCAPE_REPLACEMENTS = {  # type: ignore[misc] # noqa: RUF012 - PyYAML's own table, less "/" and with "'"
        **{name: text for name, text in Scanner.ESCAPE_REPLACEMENTS.items() if name != "/"},
        "'": "'",
    }

    def __init__(self, data: bytes) -> None:
        Reader.__init__(self, io.BytesIO(data))
        Scanner.__init__(self)
        Parser.__init__(self)

    def update_raw(self, size: int = _PIECE) -> None:
        """Take as many bytes at a time as the library; those of a character that was cut count."""
        if room := size - len(self.raw_buffer or b""):
            super().update_raw(room)

    def _error(self, problem: str) -> ScannerError:
        return ScannerError(None, None, problem, self.get_mark())

    def _at(self, characters: str, index: int = 0) -> bool:
        return self.peek(index) in characters

    def fetch_flow_collection_start(self, TokenClass: Any) -> None:  # noqa: N803 - PyYAML's name
        """Refuse what nests too deeply."""
        if self.flow_level >= DEPTH_LIMIT:
            raise self._error(f"is nested more than {DEPTH_LIMIT} levels deep")
        super().fetch_flow_collection_start(TokenClass)

    def fetch_flow_collection_end(self, TokenClass: Any) -> None:  # noqa: N803 - PyYAML's name
        """Take a bracket that closes nothing, as behind a document, for no change of the level."""
        level = self.flow_level
        super().fetch_flow_collection_end(TokenClass)
        self.flow_level = max(level - 1, 0)

    def scan_ahead(self, tokens: int) -> None:
        """Scan so many tokens behind the next one, as far as there are any; what is no token is an error."""
        while not self.done and (self.need_more_tokens() or len(self.tokens) <= tokens):
            self.fetch_more_tokens()

    def add_indent(self, column: int) -> bool:
        """Refuse what nests too deeply."""
        if len(self.indents) >= DEPTH_LIMIT:
            raise self._error(f"is nested more than {DEPTH_LIMIT} levels deep")
        return super().add_indent(column)

    def scan_to_next_token(self) -> None:
        """Pass blanks and comments; a tab may not stand where it would count as indentation."""
        if self.index == 0 and self._at(_BYTE_ORDER_MARK):
            self.forward()
        while True:
            # A slip of the library: a second mark makes it drop the first character of every line near it.
            if self.column == 0 and self.buffer.startswith(2 * _BYTE_ORDER_MARK) and not self._at("\0"):
                self.forward()
            while self._at(" ") or (self._at("\t") and (self.flow_level or not self.allow_simple_key)):
                self.forward()
            if self._at("#"):
                while not self._at("\0" + _BREAKS):
                    self.forward()
            if not self.scan_line_break():
                return
            if not self.flow_level:
                self.allow_simple_key = True

    def scan_directive(self) -> DirectiveToken:
        """Read a directive, whose parts tabs may part; refuse those that YAML does not define."""
        length = 0
        while not self._at("\0" + _BREAKS, length):
            length += 1
        line = self.buffer[self.pointer : self.pointer + length]
        self.buffer = self.buffer[: self.pointer] + line.replace("\t", " ") + self.buffer[self.pointer + length :]
        token = super().scan_directive()
        if token.name not in ("YAML", "TAG"):
            raise self._error(f"%{token.name} is not a directive")
        return token

    def process_directives(self) -> Any:
        """Refuse YAML 1.2."""
        directives = super().process_directives()
        if self.yaml_version not in (None, (1, 1)):
            raise ParserError(None, None, "only %YAML 1.1 is read", self.get_mark())
        return directives

    def scan_tag(self) -> TagToken:
        """Read a tag, which a tab may follow."""
        start = self.get_mark()
        handle: str | None = None
        if self._at("<", 1):
            self.forward(2)
            suffix = self.scan_tag_uri("tag", start)
            if not self._at(">"):
                raise self._error("a tag that begins with !< must end with >")
            self.forward()
        else:
            length = 1
            while self._at(_WORD_CHARACTERS, length):
                length += 1
            is_handle = self._at("!", length)
            handle = self.prefix(length + is_handle)
            self.forward(len(handle))
            suffix = self.scan_tag_uri("tag", start) if is_handle or self._at(_TAG_CHARACTERS) else ""
            if not is_handle:
                handle, suffix = ("!", handle[1:] + suffix) if handle[1:] + suffix else (None, "!")
        if not self._at(_BLANKS_AND_END):
            raise self._error("a tag must be followed by a space or a line break")
        return TagToken((handle, suffix), start, self.get_mark())

    def scan_flow_scalar(self, style: str) -> ScalarToken:
        """Refuse escapes of halves of surrogate pairs and beyond Unicode."""
        try:
            token = super().scan_flow_scalar(style)
        except (ValueError, OverflowError) as error:
            raise self._error("an escape is no character") from error
        if any(ord(character) in _SURROGATES for character in token.value):
            raise self._error("a surrogate escape is no character; write the character itself")
        return token

    def scan_block_scalar_indicators(self, start_mark: Any) -> tuple[bool | None, int | None]:
        """Read `+`, `-` and the indentation, which a tab may follow."""
        del start_mark
        chomping, increment = None, None
        for _ in range(2):
            if chomping is None and self._at("+-"):
                chomping = self.peek() == "+"
            elif increment is None and self._at("123456789"):
                increment = int(self.peek())
            else:
                break
            self.forward()
        return chomping, increment

    def scan_block_scalar_ignored_line(self, start_mark: Any) -> None:
        """Pass a comment, before which tabs may stand."""
        while self._at("\t "):
            self.forward()
        super().scan_block_scalar_ignored_line(start_mark)

    def scan_block_scalar_indentation(self) -> Any:
        """Refuse a tab among the spaces that set the indentation."""
        result = super().scan_block_scalar_indentation()
        if self._at("\t"):
            raise self._error("a tab stands where the indentation of a block is expected")
        return result

    def scan_plain(self) -> ScalarToken:
        """Read a plain scalar; inside brackets a `:` ends it only before a blank."""
        start = end = self.get_mark()
        chunks: list[str] = []
        spaces: list[str] = []
        while not self._at("#"):
            length = 0
            while not self._ends_plain(length):
                length += 1
            if not length:
                break
            self.allow_simple_key = False
            chunks += [*spaces, self.prefix(length)]
            self.forward(length)
            end = self.get_mark()
            spaces = self.scan_plain_spaces(self.indent + 1, start)
            if not spaces or (not self.flow_level and self.column <= self.indent):
                break
        return ScalarToken("".join(chunks), True, start, end)  # noqa: FBT003 - PyYAML's signature

    def _ends_plain(self, index: int) -> bool:
        if self._at(":", index):
            return self._at(_BLANKS_AND_END, index + 1)
        return self._at(_BLANKS_AND_END, index) or bool(self.flow_level and self._at(_FLOW_INDICATORS, index))

    def scan_plain_spaces(self, indent: int, start_mark: Any) -> list[str]:
        """Read what stands between two words of a plain scalar, tabs too."""
        del start_mark
        blanks, breaks = "", list[str]()
        while self._at(" \t" + _BREAKS):
            if self._at(_BREAKS):
                breaks.append(self.scan_line_break())
                self.allow_simple_key = True
                continue
            if breaks and self._at("\t") and self.column < indent:
                raise self._error("a tab stands where indentation is expected")
            blanks += self.peek()
            self.forward()
        if not breaks:
            return [blanks] if blanks else []
        if self.column == 0 and self.prefix(3) in ("---", "...") and self._at(_BLANKS_AND_END, 3):
            return []
        # A single line break is a space, more of them are one less.
        first, *rest = breaks
        return [first, *rest] if first != "\n" else rest or [" "]
