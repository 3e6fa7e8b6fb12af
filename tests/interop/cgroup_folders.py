"""Finds and removes the cgroups that a test's node creates on this machine."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


def cgroups_of(name: str, mounted: Path = CGROUPS) -> frozenset[Path]:
    """Return the cgroups of this name at the root of v2, or of each v1 hierarchy, with their descendants."""
    return frozenset(_below(name, mounted))


def remove_cgroups(name: str, before: frozenset[Path] = frozenset(), mounted: Path = CGROUPS) -> None:
    """Remove the cgroups of this name that are not in `before`; one that is still in use stays."""
    for folder in _below(name, mounted):
        if folder not in before:
            # rmdir removes a cgroup with its files, but not one that still has a process or a child.
            with contextlib.suppress(OSError):
                folder.rmdir()


def _below(name: str, mounted: Path) -> Iterator[Path]:
    """Yield a cgroup and its descendants, children first."""
    # A v2 cgroup of this name below another one belongs to somebody else.
    tops = (
        [mounted]
        if (mounted / "cgroup.controllers").exists()
        else [each for each in mounted.iterdir() if each.is_dir()]
    )
    for top in tops:
        # Path.walk and rglob fail if folders disappear meanwhile.
        for folder, _, _ in os.walk(top / name, topdown=False):
            yield Path(folder)
