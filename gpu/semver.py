"""Driver versions as the strict SemVer 2.0.0 that an attribute of type `version` must be.

One version that is not voids the whole ResourceSlice, and vendors' versions often are not: `580.159.04` has a leading
zero, `6.19.14.31400000` a fourth part.
"""

from __future__ import annotations

import re
from typing import Final

# DeviceAttributeMaxValueLength of resource.k8s.io/v1.
MAX_VERSION: Final = 64

_NUMBERS: Final = re.compile(r"[0-9]+(?:\.[0-9]+)*", re.ASCII)


def semver(text: str) -> str | None:
    """The version with leading zeros gone, missing parts as 0 and further parts as build metadata.

    `580.159.04` is `580.159.4`, `535` is `535.0.0`, `6.19.14.31400000` is `6.19.14+31400000`. None for anything that is
    not numbers with dots between them: a guess at an order would be worse than no version.
    """
    if not _NUMBERS.fullmatch(text):
        return None
    first, *rest = text.split(".")
    parts = [first, *rest, "0", "0"][: max(3, 1 + len(rest))]
    version = ".".join(str(int(part)) for part in parts[:3])
    build = ".".join(parts[3:])
    version = f"{version}+{build}" if build else version
    return version if len(version) <= MAX_VERSION else None
