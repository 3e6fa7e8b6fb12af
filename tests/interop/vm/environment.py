"""This checkout for the machine's own Python: what the development lock pins, and the checkout itself."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.interop.cache import CACHE

ROOT = Path(__file__).parents[3]
# Debian bookworm's.
_PYTHON = "3.11"
_PLACE = ROOT / ".cache" / "vm-environment"
_LOCK = ROOT / "requirements" / "dev.lock"


def environment() -> Path:
    """The virtual environment, under a path that is the same in the machine; made in a minute, most of it compiling.

    The checkout is installed in it as a developer's is: a change is seen without a new installation.
    """
    packages = _packages()
    stamp = _PLACE / hashlib.sha256((ROOT / "pyproject.toml").read_bytes() + str(packages).encode()).hexdigest()
    if not stamp.exists():
        shutil.rmtree(_PLACE, ignore_errors=True)
        _make(packages)
        stamp.touch()
    return _PLACE


def _packages() -> Path:
    """The folder with what the lock pins."""
    folder = CACHE.resolve() / f"vm-packages-{hashlib.sha256(_LOCK.read_bytes()).hexdigest()[:12]}"
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE, prefix="vm-making-") as name:
            made = Path(name, "packages")
            # Compiling in the machine takes far longer.
            _install(made, "--compile-bytecode", "--require-hashes", "--requirements", str(_LOCK))
            made.rename(folder)
    return folder


def _make(packages: Path) -> None:
    own = _PLACE / "lib" / f"python{_PYTHON}" / "site-packages"
    programs = _PLACE / "bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to("/usr/bin/python3")
    (_PLACE / "pyvenv.cfg").write_text("home = /usr/bin\n")
    _install(own, "--no-deps", "--editable", str(ROOT))
    (own / "packages.pth").write_text(f"{packages}\n")
    script = (own / "bin" / "dranode").read_text().partition("\n")[2]
    (programs / "dranode").write_text(f"#!{programs}/python\n{script}")
    (programs / "dranode").chmod(0o755)


def _install(folder: Path, *what: str) -> None:
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert uv, "uv is part of the development environment: make setup"
    options = ("--quiet", "--target", str(folder), "--python-version", _PYTHON)
    done = subprocess.run([uv, "pip", "install", *options, *what], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the machine's Python environment cannot be made: {done.stderr[-2000:]}")
