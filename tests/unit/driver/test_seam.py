"""`from dranode.driver import ...` is all that a driver needs, and costs what is asked for."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import dranode.driver

ROOT = Path(__file__).parents[3]
LAMPS = ROOT / "examples" / "lamps" / "lamps.py"


def imported(path: Path) -> dict[str, str]:
    """Name -> module of every `from ... import ...`."""
    found = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom))
    return {alias.name: str(node.module) for node in found for alias in node.names}


def test_type_checkers_and_programs_see_the_same_seam() -> None:
    standard = {"__future__", "importlib", "typing"}
    shown = {name: module for name, module in imported(ROOT / "driver/__init__.py").items() if module not in standard}
    assert shown == dranode.driver._MODULES
    assert dranode.driver.__all__ == sorted(shown)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'NoSuchName'"):
        dranode.driver.NoSuchName  # noqa: B018 - the access is what is tried


def loaded(statement: str) -> set[str]:
    script = f"import sys\n{statement}\nprint(*(name for name in sys.modules if name.startswith('dranode.')))"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def test_the_seam_loads_what_is_asked_for_and_nothing_else() -> None:
    assert loaded("import dranode.driver") == {"dranode.driver"}
    declaring = loaded("from dranode.driver import Option")
    assert "dranode.driver.core.claims.options" in declaring
    assert len(declaring) < 6
    assert not {
        name for name in loaded("from dranode.driver import Plugin, Root") if ".node" in name or ".testing" in name
    }


def test_the_example_imports_nothing_of_ours_but_the_seam() -> None:
    ours = {module for module in imported(LAMPS).values() if module.startswith("dranode")}
    assert ours == {"dranode.driver"}
