"""Decides whether a runtime would load a CDI document, by the newest Go library and by older ones that differ.

The newest one is the library's main branch at 05ae4b5 (containerd 2.4 development). A document that it refuses has a
problem, and so has one that crashes it.
"""

from __future__ import annotations

import msgspec

from dranode.cdi.errors import CDIError
from dranode.cdi.loader.document import load_spec
from dranode.cdi.loader.libraries import older_verdicts
from dranode.cdi.rules import spec_problems


class SpecVerdict(msgspec.Struct, frozen=True):
    """The verdict on one document.

    Attributes:
        problems: the reasons why the newest library does not load it, each with its path; empty if it does.
        warnings: the older libraries that do not load it, and why; empty if the newest does not load it either.
    """

    problems: tuple[CDIError, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Return whether the newest library loads it."""
        return not self.problems


def validate(data: bytes) -> SpecVerdict:
    """Judge the bytes of a file; never raises."""
    try:
        document = load_spec(data)
    except CDIError as error:
        return SpecVerdict(problems=(error,))
    if problems := spec_problems(document.spec):
        return SpecVerdict(problems=problems)
    return SpecVerdict(warnings=tuple(older_verdicts(document)))
