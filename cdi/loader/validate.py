"""Would a runtime load this CDI document: the verdict of the newest Go library, and which older ones differ.

The newest is the library's main branch at 05ae4b5 (containerd 2.4 development); what it refuses, and what crashes it,
is a problem.
"""

from __future__ import annotations

from dataclasses import dataclass

from dranode.cdi.errors import CDIError
from dranode.cdi.loader.document import read
from dranode.cdi.loader.libraries import older_verdicts
from dranode.cdi.rules import spec_problems


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of one document.

    Attributes:
        problems: why the newest library does not load it, each with its path; empty if it does.
        warnings: which older libraries do not, and why; empty if the newest does not either.
    """

    problems: tuple[CDIError, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the newest library loads it."""
        return not self.problems


def validate(data: bytes) -> Verdict:
    """The verdict on the bytes of a file; every input has one."""
    try:
        document = read(data)
    except CDIError as error:
        return Verdict(problems=(error,))
    if problems := spec_problems(document.spec):
        return Verdict(problems=problems)
    return Verdict(warnings=tuple(older_verdicts(document)))
