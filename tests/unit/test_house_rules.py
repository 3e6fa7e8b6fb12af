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

CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
# import-linter forbids what deciding modules import, in functions too; these act without an import.
ACTING_BUILTINS = {"open", "print", "input", "exec", "eval", "__import__", "breakpoint"}


def deciding() -> list[Path]:
    """The files of the modules that the contract lists."""
    (contract,) = (each for each in CONTRACTS if each["name"] == "Deciding modules import nothing that acts")
    paths = [ROOT.joinpath(*name.split(".")[1:]) for name in contract["source_modules"]]
    return [file for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")])]


def test_every_folder_with_an_init_is_listed_as_a_package() -> None:
    found = {
        "dranode." + ".".join(path.parent.relative_to(ROOT).parts)
        for part in PARTS
        for path in (ROOT / part).rglob("__init__.py")
    }
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert sorted(found) == sorted(listed)


@pytest.mark.parametrize("path", deciding(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_deciding_module_calls_nothing_that_acts(path: Path) -> None:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    called = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    assert called & ACTING_BUILTINS == set()
    assert "importlib" not in imported


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
