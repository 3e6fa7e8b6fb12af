"""Would a runtime load this CDI document: the verdict of the newest Go library, and which older ones differ.

The newest is the library's main branch at 05ae4b5 (containerd 2.4 development); what it refuses, and what crashes it,
is a problem.
"""

from __future__ import annotations

from dataclasses import dataclass

from dranode.cdi.errors import CDIError
from dranode.cdi.loader.document import load_spec
from dranode.cdi.loader.libraries import older_verdicts
from dranode.cdi.rules import spec_problems


@dataclass(frozen=True, slots=True)
class SpecVerdict:
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


def validate(data: bytes) -> SpecVerdict:
    """The verdict on the bytes of a file; every input has one."""
    try:
        document = load_spec(data)
    except CDIError as error:
        return SpecVerdict(problems=(error,))
    if problems := spec_problems(document.spec):
        return SpecVerdict(problems=problems)
    return SpecVerdict(warnings=tuple(older_verdicts(document)))
