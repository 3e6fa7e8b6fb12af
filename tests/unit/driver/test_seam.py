"""`dranode.driver` and `dranode.api` export every name that a driver needs."""

import ast
from pathlib import Path

import dranode.api
import dranode.driver

ROOT = Path(__file__).parents[3]
LAMPS = ROOT / "examples" / "lamps" / "lamps.py"


def imported(path: Path) -> dict[str, str]:
    """Name -> module for every `from ... import ...`."""
    found = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom))
    return {alias.name: str(node.module) for node in found for alias in node.names}


def test_the_packages_export_what_they_import() -> None:
    assert dranode.driver.__all__ == sorted(imported(ROOT / "driver/__init__.py"))
    assert dranode.api.__all__ == sorted(imported(ROOT / "api/__init__.py"))


def test_the_example_imports_only_the_seam_and_the_documents() -> None:
    ours = {module for module in imported(LAMPS).values() if module.startswith("dranode")}
    assert ours == {"dranode.api", "dranode.driver"}
