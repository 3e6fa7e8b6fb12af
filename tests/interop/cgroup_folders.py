"""The cgroups that a node of the tests makes on this machine, and their removal."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


def cgroups_of(name: str, mounted: Path = CGROUPS) -> frozenset[Path]:
    """The cgroups of this name at the top of the hierarchy of v2 or of each of v1, with all below them."""
    return frozenset(_below(name, mounted))


def remove_cgroups(name: str, before: frozenset[Path] = frozenset(), mounted: Path = CGROUPS) -> None:
    """Remove what `cgroups_of` gives, but for those that were there before; one that is still in use stays."""
    for folder in _below(name, mounted):
        if folder not in before:
            # The kernel removes a cgroup with its files, but none with a process or another cgroup in it.
            with contextlib.suppress(OSError):
                folder.rmdir()


def _below(name: str, mounted: Path) -> Iterator[Path]:
    """Yield them, every cgroup after those in it."""
    # A child of a v2 cgroup that has the name is somebody else's.
    tops = (
        [mounted]
        if (mounted / "cgroup.controllers").exists()
        else [each for each in mounted.iterdir() if each.is_dir()]
    )
    for top in tops:
        # Not Path.walk or rglob: folders go meanwhile.
        for folder, _, _ in os.walk(top / name, topdown=False):
            yield Path(folder)
