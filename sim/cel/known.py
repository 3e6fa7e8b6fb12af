"""The names that expressions may use beyond the standard ones, by release, gates, and who compiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class KnownToCEL:
    """The declarations that differ. The scheduler, which reads what is stored, knows more than the API server lets in.

    Attributes:
        lists: attributes can be lists, so that whatever can be done with any value compiles.
        includes: `includes()` of KEP-5491 is known.
        shares: `device.allowMultipleAllocations` is known.
        cel_go_29: the release has cel-go 0.29 (1.37 and later), not 0.26.
    """

    lists: bool = False
    includes: bool = False
    shares: bool = True
    cel_go_29: bool = True

    def declares(self, function: str, overload: str) -> bool:
        """Return whether a function of the table is in this environment."""
        if function == "includes":
            return self.includes
        return overload != "int64_to_duration" or not self.cel_go_29


WITH_LISTS: Final = KnownToCEL(lists=True, includes=True)
