"""Semantic versions (semver.org, 2.0.0), for attributes of type `version` and for CEL."""

import re
from typing import Final, TypeAlias

# DeviceAttributeMaxValueLength of resource.k8s.io/v1.
LONGEST_VERSION: Final = 64

# The regular expression that semver.org publishes for Semantic Versioning 2.0.0.
_SEMVER: Final = (
    r"(?:0|[1-9]\d*)\.(?:0|[1-9]\d*)\.(?:0|[1-9]\d*)"
    r"(?:-(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?"
    r"(?:\+[0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*)?"
)
_NUMBERS: Final = re.compile(r"[0-9]+(?:\.[0-9]+)*", re.ASCII)
_PARTS: Final = 3
_DIGITS: Final = 18

VersionKey: TypeAlias = tuple[int, int, int, bool, tuple[tuple[bool, int, str], ...]]


def is_semver(version: str) -> bool:
    """Return whether `version` is strictly Semantic Versioning 2.0.0 (`1.2.3`, never `1.2` or `v1.2.3`)."""
    return re.fullmatch(_SEMVER, version, re.ASCII) is not None


def has_short_numbers(version: str) -> bool:
    """Return whether no number of a semantic version has more than 18 digits; Kubernetes requires that since 1.38."""
    numbers, _, pre = version.partition("+")[0].partition("-")
    return not any(len(part) > _DIGITS and part.isdigit() for part in (*numbers.split("."), *pre.split(".")))


def version_key(version: str) -> VersionKey:
    """Return a key that sorts semantic versions by precedence (section 11); build metadata does not count."""
    numbers, _, pre = version.partition("+")[0].partition("-")
    major, minor, patch = map(int, numbers.split("."))
    identifiers = tuple(
        (False, int(part), "") if part.isdigit() else (True, 0, part) for part in (pre.split(".") if pre else ())
    )
    # A prerelease comes before its release, so `not pre` is False for it. Numeric identifiers come before others.
    return major, minor, patch, not pre, identifiers


def semver_from_numbers(text: str) -> str | None:
    """Return a vendor's version of numbers and dots as a semantic version, or None for anything else.

    The API server refuses a whole ResourceSlice if one version is invalid, and vendors' versions often are. Therefore
    leading zeros are removed, missing parts are 0, and further parts become build metadata: `580.159.04` is
    `580.159.4`, `535` is `535.0.0`, and `6.19.14.31400000` is `6.19.14+31400000`. Any other form is not guessed at,
    because the order could be wrong.
    """
    if not _NUMBERS.fullmatch(text):
        return None
    first, *rest = text.split(".")
    parts = [first, *rest, "0", "0"][: max(_PARTS, 1 + len(rest))]
    version = ".".join(part.lstrip("0") or "0" for part in parts[:_PARTS])
    build = ".".join(parts[_PARTS:])
    version = f"{version}+{build}" if build else version
    return version if len(version) <= LONGEST_VERSION and has_short_numbers(version) else None


def semver_from_tolerant(text: str) -> str:
    """Return a loosely written version as CEL's `semver(text, true)` reads it: `v1.2` is `1.2.0`, `01.2.3` is `1.2.3`.

    Raises:
        ValueError: a short version has a prerelease or build metadata.
    """
    # As `normalizeAndParse` of the API server's CEL library (k8s.io/apiserver, cel/library/semverlib.go).
    parts = [_without_leading_zeros(part) for part in text.removeprefix("v").split(".", _PARTS - 1)]
    if len(parts) < _PARTS:
        if set(parts[-1]) & {"+", "-"}:
            raise ValueError(f'the short version "{text}" cannot have a prerelease or build metadata')
        parts += ["0"] * (_PARTS - len(parts))
    return ".".join(parts)


def _without_leading_zeros(part: str) -> str:
    stripped = part.lstrip("0") if len(part) > 1 else part
    return stripped if stripped == part or stripped[:1] in tuple("0123456789") else f"0{stripped}"
