"""The one exception of this library, and how it shows what a document says."""

from __future__ import annotations

from typing import Final

_SHOWN: Final = 80  # characters


class CDIError(Exception):
    """A CDI document or name that is not what the specification or the reference library asks for.

    Attributes:
        path: where in the document, in JSON notation without the root (`devices[0].name`); empty for the whole of it.
        message: what is wrong there, one sentence without the place.
    """

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path
        self.message = message


def shown(text: str) -> str:
    """A text in quotes, cut where it is too long for a sentence."""
    return f'"{text}"' if len(text) <= _SHOWN else f'"{text[:_SHOWN]}..." ({len(text)} characters)'
