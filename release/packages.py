"""The sdist, and the wheel built from it."""

from __future__ import annotations

import shutil
from pathlib import Path

from release.project import DIST, ROOT, run, tool, version


def build() -> Path:
    """Build both into dist/; the wheel from the unpacked sdist, so that it misses nothing that the sdist misses.

    Returns:
        The wheel's path.
    """
    run(tool("uv"), "build", "--quiet", "--no-build-isolation", "--python", tool("python"), "--out-dir", str(DIST))
    (DIST / ".gitignore").unlink(missing_ok=True)
    # Python that runs in the checkout would go on finding the entry points of today in it.
    shutil.rmtree(ROOT / "dranode.egg-info", ignore_errors=True)
    return DIST / f"dranode-{version()}-py3-none-any.whl"
