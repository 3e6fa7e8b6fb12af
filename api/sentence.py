"""Puts values into sentences: numbers with their nouns, and what others wrote so that it is safe to print.

That is one line of limited length, without terminal control characters.
"""

from __future__ import annotations

import re
from typing import Final

# An Event's note has 1,024 characters.
LONGEST: Final = 1000
_START: Final = 600
_END: Final = 300
# As text: compiled when it is needed, which at a start it seldom is.
_BREAKS: Final = r"\s*[\r\n]+\s*"


def printable(text: str) -> str:
    r"""Escape every character that does not print, as Python does: `\n`, `\x1b`, `\u202e`."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def one_sentence(text: str) -> str:
    """Put a text on one line of printable characters; a long text keeps its beginning and its end."""
    line = printable(re.sub(_BREAKS, " ", text))
    if len(line) <= LONGEST:
        return line
    return f"{line[:_START]} ... ({len(line) - _START - _END} characters left out) ... {line[-_END:]}"


def number_of(number: int, noun: str) -> str:
    """Return how many there are: `1 move`, `2 moves`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
