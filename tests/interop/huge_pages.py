"""Mounts the hugetlb controller where runtimes look for it, before a runtime starts."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.node import UNIFIED

_CGROUPS = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def hugetlb_controller() -> Iterator[None]:
    """Make the hugetlb controller available; with cgroup v1 its hierarchy is mounted if need be."""
    folder = _CGROUPS / "hugetlb"
    if UNIFIED or folder.is_mount():
        yield
        return
    folder.mkdir(exist_ok=True)
    try:
        mounted = subprocess.run(["mount", "-t", "cgroup", "-o", "hugetlb", "hugetlb", folder], check=False)
        if mounted.returncode:
            pytest.skip("somebody uses the hugetlb controller in the unified hierarchy")
        try:
            yield
        finally:
            subprocess.run(["umount", folder], check=True)
    finally:
        folder.rmdir()
