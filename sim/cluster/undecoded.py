"""Everything that is wrong with a document that does not decode: a decoder reports the first error and stops."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from dranode.driver.core.api.errors import DocumentError
from dranode.driver.core.api.validation import FieldError

_MOST: Final = 100
_STEP: Final = re.compile(r"\.?([^.\[\]]+)|\[([0-9]+)\]")
_EXPECTED: Final = re.compile(r"expected (\w+)")
# By msgspec's name of a type, a value of it.
_STAND_INS: Final[Mapping[str, Any]] = {"str": "x", "int": 1, "float": 1.0, "bool": False, "array": [], "object": {}}


def all_problems(
    look: Callable[[Mapping[str, Any]], list[FieldError]], document: Mapping[str, Any], first: DocumentError
) -> list[FieldError]:
    """The problems of a document that does not decode, found by putting what does in each place that does not.

    Args:
        look: decodes a document and says what is wrong with it besides; raises DocumentError for what does not decode.
        document: the document; it is not changed.
        first: what `look` has raised for it.
    """
    rest = copy.deepcopy(document)
    errors: list[FieldError] = []
    error = first
    while len(errors) < _MOST and error.path not in [problem.path for problem in errors]:
        message = str(error).removeprefix(f"{error.path}: " if error.path else "")
        errors.append(FieldError(error.path, message))
        if not _replaced(rest, error.path, message):
            break
        try:
            problems = look(rest)
        except DocumentError as another:
            error = another
        else:
            # What is said of a stand-in is not said of the document.
            return errors + [
                problem for problem in problems if not any(_within(problem.path, told.path) for told in errors)
            ]
    return errors


def _replaced(document: Any, path: str, message: str) -> bool:
    """Put a value of the expected type at a path; False if there is no such place or no such type."""
    expected = _EXPECTED.search(message)
    if expected is None or expected[1] not in _STAND_INS:
        return False
    steps = [name or int(index) for name, index in _STEP.findall(path)]
    try:
        for step in steps[:-1]:
            document = document[step]
        if steps[-1] not in (document if isinstance(document, dict) else range(len(document))):
            return False
        document[steps[-1]] = copy.deepcopy(_STAND_INS[expected[1]])
    except (KeyError, IndexError, TypeError):
        return False
    return True


def _within(path: str, place: str) -> bool:
    return path == place or path.startswith((f"{place}.", f"{place}["))
