"""What an installation compiles where Python is told not to write bytecode."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import msgspec

from dranode.driver.cli import serve

ROOT = Path(__file__).parents[3]


def test_what_runs_is_compiled_even_if_python_writes_no_bytecode(tmp_path: Path) -> None:
    forbidding = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": str(tmp_path)}
    script, lock = ROOT / "requirements" / "bytecode.py", ROOT / "requirements" / "run.lock"
    subprocess.run([sys.executable, script, lock], check=True, env=forbidding, timeout=300)
    for module in (serve, msgspec):
        assert module.__file__ is not None
        beside = Path(importlib.util.cache_from_source(str(Path(module.__file__).resolve())))
        assert (tmp_path / Path(module.__file__).resolve().parent.relative_to("/") / beside.name).exists()
    assert not (tmp_path / ROOT.relative_to("/") / "tests").exists()


def test_the_installer_compiles_if_python_writes_no_bytecode() -> None:
    lines = (ROOT / "requirements" / "install.sh").read_text().splitlines()
    assert lines[-1].startswith('if [ -n "${PYTHONDONTWRITEBYTECODE:-}" ]; then "$venv/bin/python" "$here/bytecode.py"')
