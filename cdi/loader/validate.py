"""Decides whether a runtime would load a CDI document, by one state of the Go library, and names others that differ.

The one that counts is the library's main branch at 05ae4b5, of August 2026: it has every field and rule of v1.1.1, and
reads YAML by way of JSON as all before it. A document that it refuses has a problem, and so has one that crashes it.
"""

from __future__ import annotations

import msgspec

from dranode.cdi.errors import CDIError
from dranode.cdi.loader.document import load_spec
from dranode.cdi.loader.libraries import other_verdicts
from dranode.cdi.rules import spec_problems


class SpecVerdict(msgspec.Struct, frozen=True):
    """The verdict on one document.

    Attributes:
        problems: the reasons why the library does not load it, each with its path; empty if it does.
        warnings: the releases that do not load it, and why; empty if it has problems.
    """

    problems: tuple[CDIError, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Return whether the library loads it."""
        return not self.problems


def validate(data: bytes) -> SpecVerdict:
    """Judge the bytes of a file; never raises."""
    try:
        document = load_spec(data)
    except CDIError as error:
        return SpecVerdict(problems=(error,))
    if problems := spec_problems(document.spec):
        return SpecVerdict(problems=problems)
    return SpecVerdict(warnings=tuple(other_verdicts(document, data)))
