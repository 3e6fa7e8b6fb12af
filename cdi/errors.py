"""The one exception of this library, and how it quotes a text of a document."""

from typing import Final

_SHOWN: Final = 80  # characters
# A document may have keys of any length. The beginning of a sentence says where the error is, its end what it is.
_LONGEST: Final = 1000
_START: Final = 600
_END: Final = 300


class CDIError(Exception):
    """A CDI document or name breaks a rule of the specification or of the reference library.

    As a string it is one line of printable characters and limited length, whatever the document contains.

    Attributes:
        path: the place in the document, in JSON notation without the root (`devices[0].name`); empty for all of it.
        message: one sentence that says what is wrong, without the place.
    """

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(_readable(f"{path}: {message}" if path else message))
        self.path = path
        self.message = message


def _readable(text: str) -> str:
    line = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    if len(line) <= _LONGEST:
        return line
    return f"{line[:_START]} ... ({len(line) - _START - _END} characters left out) ... {line[-_END:]}"


def shown(text: str) -> str:
    """Quote a text, and shorten it if it is too long for a sentence."""
    return f'"{text}"' if len(text) <= _SHOWN else f'"{text[:_SHOWN]}..." ({len(text)} characters)'
