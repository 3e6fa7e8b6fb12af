"""What expressions may use beyond what is always there: it depends on the release, its gates, and who compiles."""

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
    """

    lists: bool = False
    includes: bool = False
    shares: bool = True


WITH_LISTS: Final = KnownToCEL(lists=True, includes=True)
