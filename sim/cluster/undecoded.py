"""Everything that is wrong with a document that does not decode: a decoder reports the first error and stops."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from dranode.api.errors import DocumentError
from dranode.api.validation import FieldError

Look: TypeAlias = Callable[[Mapping[str, Any]], list[FieldError]]
"""Decodes a document and says what is wrong with it besides; raises DocumentError for what does not decode."""


class _Step(NamedTuple):
    """A step of a path: a field, an index or, as a `key`, an entry of a mapping."""

    value: str | int
    key: bool = False


_Steps: TypeAlias = tuple[_Step, ...]
_MOST: Final = 100
_STEP: Final = re.compile(r"\.?([^.\[\]{}]+)|\[([^\]]*)\]|(\{\})")
_MISSING: Final = re.compile(r"missing required field (\w+)")
_EXPECTED: Final = re.compile(r"expected ([\w| ]+), got (\w+)")
# What may stand where something does not decode: one of them does, or nothing may.
_STAND_INS: Final[Sequence[Any]] = ("x", 1, False, [], {})
# msgspec's names of types.
_WORDS: Final[Mapping[str, str]] = {
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}


def all_problems(look: Look, document: Mapping[str, Any]) -> list[FieldError]:
    """Return the problems of a document, also of one that does not decode.

    Each place that does not decode has an error, and something that does is put there, until the document decodes and
    `look` says what else is wrong. What is said of such a place is not said of the document.
    """
    rest = copy.deepcopy(dict(document))
    errors: list[FieldError] = []
    while len(errors) < _MOST:
        result = _looked(look, rest)
        if isinstance(result, list):
            places = [error.path for error in errors]
            return errors + [each for each in result if not any(_within(each.path, place) for place in places)]
        place = _place(look, rest, result)
        errors.append(in_words(_path(place), _message(result)))
        if not _mended(look, rest, place):
            break
    return errors


def in_words(path: str, message: str) -> FieldError:
    """Return what a decoder says of a place as a clause."""
    if _MISSING.fullmatch(message):
        return FieldError(path, "it is required")
    expected = _EXPECTED.fullmatch(message)
    if expected is None:
        return FieldError(path, message)
    types = [each for each in expected[1].split(" | ") if each != "null"]
    wanted = " or ".join(_WORDS.get(each, each) for each in types)
    there = "nothing" if expected[2] == "null" else _WORDS.get(expected[2], expected[2])
    return FieldError(path, f"{wanted} is expected, not {there}")


def _looked(look: Look, document: Mapping[str, Any]) -> list[FieldError] | DocumentError:
    try:
        return look(document)
    except DocumentError as error:
        return error


def _message(error: DocumentError) -> str:
    return str(error).removeprefix(f"{error.path}: ") if error.path else str(error)


def _place(look: Look, document: dict[str, Any], error: DocumentError) -> _Steps:
    """The place of an error; in a mapping, whose keys a decoder does not name, the first key that it is about."""
    steps: list[_Step] = []
    for name, index, any_key in _STEP.findall(error.path):
        if not any_key:
            in_list = isinstance(_at(document, steps), list)
            number = int(index) if in_list and index.isdecimal() else None
            steps.append(_Step(name or index, key=not name) if number is None else _Step(number))
            continue
        key = _key(look, document, _at(document, steps), error)
        if key is None:
            break
        steps.append(_Step(key, key=True))
    missing = _MISSING.fullmatch(_message(error))
    return (*steps, *([_Step(missing[1])] if missing else []))


def _key(look: Look, document: dict[str, Any], mapping: Any, error: DocumentError) -> str | None:
    """The first key of a mapping in the document that has the error by itself."""
    whole = dict(mapping) if isinstance(mapping, dict) else {}
    for key, value in whole.items():
        mapping.clear()
        mapping[key] = value
        result = _looked(look, document)
        mapping.clear()
        mapping.update(whole)
        if isinstance(result, DocumentError) and result.path == error.path:
            return str(key)
    return None


def _mended(look: Look, document: dict[str, Any], place: _Steps) -> bool:
    """Put something at a place that decodes there, or leave it out; False if nothing does."""
    owner = _at(document, place[:-1]) if place else None
    last = place[-1].value if place else ""
    if isinstance(owner, list):
        if not isinstance(last, int) or last >= len(owner):
            return False
    elif not isinstance(owner, dict):
        return False
    for stand_in in (*_STAND_INS, None):
        if stand_in is None and isinstance(owner, dict):
            owner.pop(last, None)
        else:
            owner[last] = copy.deepcopy(stand_in)  # type: ignore[index] # an index of a list, a name of a mapping
        result = _looked(look, document)
        if isinstance(result, list) or _place(look, document, result)[: len(place)] != place:
            return True
    return False


def _at(document: Any, steps: Sequence[_Step]) -> Any:
    try:
        for step in steps:
            document = document[step.value]
    except (KeyError, IndexError, TypeError):
        return None
    return document


def _path(steps: _Steps) -> str:
    named = (f".{step.value}" if isinstance(step.value, str) and not step.key else f"[{step.value}]" for step in steps)
    return "".join(named).removeprefix(".")


def _within(path: str, place: str) -> bool:
    return path == place or path.startswith((f"{place}.", f"{place}["))
