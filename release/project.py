"""The project's own facts, each from its one source, and the sdist and wheel that are built from it."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
# The lowest is what the image runs; each is tried where this machine has it.
PYTHONS = ("3.11", "3.12", "3.13", "3.14")


def version() -> str:
    """Return the version that pyproject.toml states, such as `0.1.0`."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def commit() -> str:
    """Return the commit that is checked out, or `unknown` outside of a clone."""
    answer = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return answer.stdout.strip() or "unknown"


def epoch() -> str:
    """Return the time that every file of the release carries: that of its commit, in seconds since 1970."""
    answer = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=False)
    return os.environ.get("SOURCE_DATE_EPOCH") or answer.stdout.strip() or "0"


def tool(name: str) -> str:
    """Return the path of a program that stands beside this Python."""
    return str(Path(sys.executable).parent / name)


class StepError(Exception):
    """A step failed; the message holds its command and the end of what it printed."""


def run(*words: str) -> None:
    """Run a step in the checkout, quiet unless it fails.

    Raises:
        StepError: the step failed
    """
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch()}
    answer = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    if answer.returncode:
        raise StepError(f"failed: {' '.join(words)}\n{(answer.stdout + answer.stderr)[-4000:]}")


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
