"""The wheel, tried as its users would install it."""

import os
import shutil
import subprocess
from pathlib import Path

from release.project import PYTHONS, ROOT, run, tool, version


def install(wheel: Path) -> list[str]:
    """Install the wheel with what it asks for, on every Python that is here, check its requirements and run the demo.

    Returns:
        A line for each version of Python, also for one that is not here.
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
    seen = subprocess.run(words, capture_output=True, text=True, check=False)
    if seen.returncode == 0:
        return seen.stdout.strip()
    # pyenv's shims on PATH start only the versions that it was told to.
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    return next((str(path) for path in sorted(versions.glob(f"{python}.*/bin/python"))), "")
