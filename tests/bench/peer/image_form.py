"""Installs this project as the Dockerfile does, without an image engine.

In a checkout an import hook finds the modules, which costs time.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parents[3]
_PARTS: Final = ("api", "cdi", "proto", "driver", "cpu", "gpu", "memory", "show", "sim", "sanity", "tools")
_FILES: Final = ("pyproject.toml", "README.md", "LICENSE")
# Distributions compile their interpreters with profile-guided and link-time optimization, as the image's is compiled.
_SYSTEM: Final = "/usr/bin/python3"
_NEW_ENOUGH: Final = "import sys; sys.exit(sys.version_info < (3, 11))"


def image_form(folder: Path) -> Path:
    """Make this environment in a folder; return its interpreter.

    Raises:
        RuntimeError: a step fails; the message has its output.
    """
    uv = str(Path(sys.executable).with_name("uv"))
    environment, source, wheels = folder / "environment", folder / "source", folder / "wheels"
    python = environment / "bin" / "python"
    source.mkdir(parents=True)
    for part in _PARTS:
        shutil.copytree(_ROOT / part, source / part, ignore=shutil.ignore_patterns("__pycache__"))
    for file in _FILES:
        shutil.copy(_ROOT / file, source / file)
    lock = str(_ROOT / "requirements" / "serve.lock")
    into = (uv, "pip", "install", "--python", str(python), "--no-deps")
    _run(uv, "venv", "--python", _interpreter(), str(environment))
    _run(*into, "--require-hashes", "--requirements", lock)
    _run(
        uv,
        "build",
        "--wheel",
        "--no-build-isolation",
        "--python",
        sys.executable,
        "--out-dir",
        str(wheels),
        str(source),
    )
    _run(*into, *map(str, wheels.glob("*.whl")))
    _run(str(python), "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", str(environment / "lib"))
    return python


def _interpreter() -> str:
    if not Path(_SYSTEM).exists() or subprocess.run([_SYSTEM, "-c", _NEW_ENOUGH], check=False).returncode:
        return sys.executable
    return _SYSTEM


def _run(*command: str) -> None:
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables | {"PYTHONHASHSEED": "0"})
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr[-2000:] or done.stdout[-2000:]}")
