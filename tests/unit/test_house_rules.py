"""Rules of the house that no linter knows."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("cdi", "cpu", "driver", "gpu", "proto", "sim")

# What has no business where decisions are made: files, sockets, clocks, randomness, other processes.
IMPURE = {"os", "io", "pathlib", "socket", "subprocess", "sqlite3", "tempfile", "shutil", "time", "random", "threading"}
PURE = [
    *(ROOT / "driver" / "core").rglob("*.py"),
    *(ROOT / "sim" / "allocator").glob("*.py"),
    *(path for path in (ROOT / "cpu").glob("*.py") if path.stem not in {"sysfs", "pcie", "plugin"}),
    *(ROOT / "gpu" / f"{name}.py" for name in ("inventory", "devices", "config", "grants", "health", "edits")),
    *(path for path in (ROOT / "cdi").rglob("*.py") if path.stem != "directory"),
    *(ROOT / "sim" / "queues").glob("*.py"),
    *(ROOT / "sim" / "cel").glob("*.py"),
]
ALLOWED = {
    ROOT / "driver" / "core" / "api" / "documents.py": {"threading"},  # a lock for msgspec's own cache of types
    ROOT / "cdi" / "loader" / "yaml_syntax.py": {"io"},  # StringIO
}


def test_every_folder_with_an_init_is_listed_as_a_package() -> None:
    found = {
        "dranode." + ".".join(path.parent.relative_to(ROOT).parts)
        for part in PARTS
        for path in (ROOT / part).rglob("__init__.py")
    }
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert sorted(found) == sorted(listed)


@pytest.mark.parametrize("path", PURE, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_deciding_module_imports_nothing_that_acts(path: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported.add(node.module.partition(".")[0])
    assert (imported & IMPURE) - ALLOWED.get(path, set()) == set()
    calls = {
        node.func.id
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert calls & {"open", "print", "input"} == set()


def test_the_generated_protobuf_modules_are_those_of_the_contracts(tmp_path: Path) -> None:
    contracts = sorted((ROOT / "proto").glob("*.proto"))
    subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"-Idranode/proto={ROOT / 'proto'}",
            f"--python_out={tmp_path}",
            f"--pyi_out={tmp_path}",
            *(f"dranode/proto/{path.name}" for path in contracts),
        ],
        check=True,
    )
    made = {path.name: path.read_text() for path in (tmp_path / "dranode" / "proto").iterdir()}
    kept = {path.name: path.read_text() for path in (ROOT / "proto").glob("*_pb2.py*")}
    assert made == kept


def test_every_part_is_typed() -> None:
    assert [part for part in PARTS if not (ROOT / part / "py.typed").exists()] == []


def test_serve_loads_no_library_that_only_people_or_the_local_run_need() -> None:
    script = """
import sys
from dranode.driver.cli import options, serve
import dranode.driver.local.store, dranode.driver.serve.service
heavy = ("rich", "cel_expr_python", "yaml", "kubernetes", "prometheus_client")
print(*(name for name in heavy if name in sys.modules))
"""
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert loaded.split() == []
