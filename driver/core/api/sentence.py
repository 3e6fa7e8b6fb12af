"""What a person reads of values that others wrote: one line, not endless, and nothing in it that a terminal obeys."""

from __future__ import annotations

import re
from typing import Final

# An Event's note has 1,024 characters.
LONGEST: Final = 1000
_START: Final = 600
_END: Final = 300
_BREAKS: Final = re.compile(r"\s*[\r\n]+\s*")


def printable(text: str) -> str:
    r"""The text with every character that does not print as Python writes it: `\n`, `\x1b`, `\u202e`."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def one_sentence(text: str) -> str:
    """The text in one line of printable characters; of a long one the beginning and the end, which say what to do."""
    line = printable(_BREAKS.sub(" ", text))
    if len(line) <= LONGEST:
        return line
    return f"{line[:_START]} ... ({len(line) - _START - _END} characters left out) ... {line[-_END:]}"
