"""The project's version, commit and time, and its sdist and wheel, which are built and tried."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
# The image runs the lowest one. Each is tried if it is installed here.
PYTHONS = ("3.11", "3.12", "3.13", "3.14")


def version() -> str:
    """Return the version that pyproject.toml states, such as `0.1.0`."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def commit() -> str:
    """Return the commit that is checked out, or `unknown` outside of a clone."""
    answer = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return answer.stdout.strip() or "unknown"


def epoch() -> str:
    """Return the time of every file of the release: that of its commit, in seconds since 1970."""
    answer = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=False)
    return os.environ.get("SOURCE_DATE_EPOCH") or answer.stdout.strip() or "0"


def tool(name: str) -> str:
    """Return the path of a program that is installed next to this Python."""
    return str(Path(sys.executable).parent / name)


class StepError(Exception):
    """A step failed; the message has its command and the end of its output."""


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
    """Build sdist and wheel into dist/; the wheel from the sdist, so that a file that the sdist lacks is noticed.

    Returns:
        The wheel's path.
    """
    run(tool("uv"), "build", "--quiet", "--no-build-isolation", "--python", tool("python"), "--out-dir", str(DIST))
    (DIST / ".gitignore").unlink(missing_ok=True)
    # Otherwise Python would find old entry points in it when it runs in the checkout.
    shutil.rmtree(ROOT / "dranode.egg-info", ignore_errors=True)
    return DIST / f"dranode-{version()}-py3-none-any.whl"


def install(wheel: Path) -> list[str]:
    """Install the wheel on every Python that is installed here, check its requirements and run the demo.

    Returns:
        A line for each version of Python, including those that are not installed here.
    """
    return [_try(wheel, python) for python in PYTHONS]


def _try(wheel: Path, python: str) -> str:
    interpreter = _interpreter(python)
    if not interpreter:
        return f"Python {python}: not on this machine, not tried"
    uv = tool("uv")
    folder = ROOT / ".cache" / "release" / python
    shutil.rmtree(folder, ignore_errors=True)
    run(uv, "venv", "--quiet", "--python", interpreter, str(folder))
    run(uv, "pip", "install", "--quiet", "--python", str(folder / "bin" / "python"), str(wheel))
    run(uv, "pip", "check", "--quiet", "--python", str(folder / "bin" / "python"))
    run(str(folder / "bin" / "dranode"), "demo")
    return f"Python {python}: installed, consistent, the demo of {version()} ran"


def _interpreter(python: str) -> str:
    """Return a program of that version; empty if there is none."""
    words = [tool("uv"), "python", "find", "--no-python-downloads", python]
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    if found.returncode == 0:
        return found.stdout.strip()
    # pyenv's shims on PATH start only the versions that are selected.
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    return next((str(path) for path in sorted(versions.glob(f"{python}.*/bin/python"))), "")
