"""Regular expressions in RE2's syntax, as Go's regexp reads them."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

# What RE2 knows and Go does not: any byte.
_ANY_BYTE: Final = re.compile(r"\\(?:Q[\s\S]*?(?:\\E|$)|(?P<code>[\s\S]))")


@lru_cache(maxsize=1024)
def compiled(pattern: str) -> Any:
    """The compiled pattern, from a cache.

    Raises:
        ValueError: it is none.
    """
    import re2  # noqa: PLC0415 - heavy, and most selectors have no pattern

    if any(found["code"] == "C" for found in _ANY_BYTE.finditer(pattern)):
        raise ValueError(r"error parsing regexp: invalid escape sequence: `\C`")
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        (reason, *_) = error.args
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise ValueError(f"error parsing regexp: {text}") from error


def has_match(text: str, pattern: str) -> bool:
    """Return whether the pattern is found anywhere in the text."""
    return compiled(pattern).search(text) is not None


def first_match(text: str, pattern: str) -> str:
    """The first that the pattern finds, "" if there is none."""
    first = compiled(pattern).search(text)
    return "" if first is None else str(first[0])


def all_matches(text: str, pattern: str, most: int = -1) -> list[str]:
    """All that the pattern finds, or the first `most` of them if that is not negative."""
    all_found: list[str] = []
    after = -1
    for one in compiled(pattern).finditer(text):
        if 0 <= most <= len(all_found):
            break
        # Go leaves out an empty match right after the one before.
        if one.end() > one.start() or one.start() != after:
            all_found.append(one[0])
        after = one.end()
    return all_found
