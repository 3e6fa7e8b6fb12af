"""Rules of this repository that no linter knows."""

import ast
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]
PARTS = ("api", "cdi", "cpu", "driver", "gpu", "memory", "proto", "sanity", "show", "sim", "tools")

CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
# import-linter checks what deciding modules import, in functions too. These builtins act without an import.
ACTING_BUILTINS = {"open", "print", "input", "exec", "eval", "__import__", "breakpoint"}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def deciding() -> tuple[Path, ...]:
    """The files of the modules that the contract lists."""
    (contract,) = (each for each in CONTRACTS if each["name"] == "Deciding modules import nothing that acts")
    paths = [ROOT.joinpath(*name.split(".")[1:]) for name in contract["source_modules"]]
    folders_or_files = (path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")] for path in paths)
    return tuple(file for files in folders_or_files for file in files)


def test_the_list_of_deciding_modules_is_complete() -> None:
    roots = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["root_packages"]
    (contract,) = (each for each in CONTRACTS if each["name"] == "Deciding modules import nothing that acts")
    graph = grimp.build_graph(*roots, include_external_packages=True, cache_dir=None)
    for allowed in contract["ignore_imports"]:
        importer, _, imported = allowed.partition(" -> ")
        if "*" not in importer:
            graph.remove_import(importer=importer, imported=imported)
    # Printing is acting too; the commands for people are not listed.
    acting = [name for name in (*contract["forbidden_modules"], "click", "rich") if name in graph.modules]
    act = {name for each in acting for name in graph.find_downstream_modules(each, as_package=True)}
    ours = {name for name in graph.modules if name.startswith("dranode.") and not graph.find_children(name)}
    known = tuple(f"{name}." for name in (*contract["source_modules"], *acting, "dranode.proto"))
    assert len(ours - act) > 100
    lacking = sorted(name for name in ours - act if not f"{name}.".startswith(known))
    assert lacking == [], "they reach nothing that acts: list them with the deciding modules in pyproject.toml"


def _loaded_by_serve() -> tuple[frozenset[str], frozenset[str]]:
    """All our modules, and those that `serve` loads sooner or later with every driver of ours."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    graph = grimp.build_graph(*project["tool"]["importlinter"]["root_packages"], cache_dir=None)
    groups = (project["project"]["entry-points"][f"dranode.{name}"] for name in ("plugins", "options"))
    points = {value.partition(":")[0] for group in groups for value in group.values()}
    roots = points | {"dranode.driver.cli.serve", "dranode.driver.cli.commands"}
    upstream = roots.union(*(graph.find_upstream_modules(root) for root in roots))
    return frozenset(graph.modules), frozenset(upstream)


def test_serve_loads_all_of_the_node_driver_and_nothing_for_people() -> None:
    modules, loaded = _loaded_by_serve()
    unused = {name for name in modules - loaded if name.startswith("dranode.driver.")} - {"dranode.driver.testing"}
    packages = {name for name in unused if any(other.startswith(f"{name}.") for other in modules)}
    assert sorted(unused - packages) == [], "serve does not load them: move them to tools/, show/ or sim/"
    people = tuple(f"dranode.{part}." for part in ("sanity", "show", "sim", "tools"))
    assert sorted(name for name in loaded if name.startswith(people)) == []
    assert len(loaded) > 100


def test_every_folder_with_an_init_is_listed_as_a_package() -> None:
    found = {
        "dranode." + ".".join(path.parent.relative_to(ROOT).parts)
        for part in PARTS
        for path in (ROOT / part).rglob("__init__.py")
    }
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert sorted(found) == sorted(listed)


def _acts(path: Path) -> set[str]:
    """The builtins that act and importlib, as far as a file calls them."""
    nodes = list(ast.walk(tree_of(path)))
    called = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return called & ACTING_BUILTINS | imported & {"importlib"}


def test_deciding_modules_call_nothing_that_acts() -> None:
    assert {str(path.relative_to(ROOT)): acting for path in deciding() if (acting := _acts(path))} == {}


# The names of the seam that act: a deciding module of a driver that is written with it imports none of them.
ACTING_SEAM = {
    "Root",
    "find_pods_cgroups",
    "missing_nodes",
    "node_cpus",
    "numa_node",
    "pcie_root",
    "pods_cgroup_changes",
    "read_pods_cgroup",
    "read_text",
}


def test_the_seams_acting_names_come_from_acting_modules() -> None:
    (contract,) = (each for each in CONTRACTS if each["name"] == "Deciding modules import nothing that acts")
    decides = tuple(contract["source_modules"])
    nodes = (node for node in ast.parse((ROOT / "driver/__init__.py").read_text()).body)
    imports = (node for node in nodes if isinstance(node, ast.ImportFrom))
    acting = {name.name for node in imports for name in node.names if not str(node.module).startswith(decides)}
    assert acting == ACTING_SEAM


def _from_the_seam(path: Path) -> set[str]:
    nodes = (node for node in ast.walk(tree_of(path)) if isinstance(node, ast.ImportFrom))
    return {alias.name for node in nodes if node.module == "dranode.driver" for alias in node.names}


def test_deciding_modules_import_nothing_that_acts_from_the_seam() -> None:
    taken = {str(path.relative_to(ROOT)): _from_the_seam(path) & ACTING_SEAM for path in deciding()}
    assert {path: names for path, names in taken.items() if names} == {}


def test_the_generated_protobuf_modules_follow_the_contracts(tmp_path: Path) -> None:
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
    services = [path for path in contracts if path.stem not in ("nri_v1alpha1", "ttrpc", "kube_resource")]
    subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"-Idranode/proto={ROOT / 'proto'}",
            f"--grpc_python_out={tmp_path}",
            *(f"dranode/proto/{path.name}" for path in services),
        ],
        check=True,
    )
    made = {path.name: path.read_text() for path in (tmp_path / "dranode" / "proto").iterdir()}
    kept = {path.name: path.read_text() for path in (ROOT / "proto").glob("*_pb2*.py*")}
    assert made == kept


def test_every_part_is_typed() -> None:
    assert [part for part in PARTS if not (ROOT / part / "py.typed").exists()] == []


def test_serve_loads_no_library_for_terminals_or_local_runs() -> None:
    script = """
import sys

from dranode.driver.cli import options, serve
heavy = ("rich", "re2", "yaml", "kubernetes")
print(*(name for name in heavy if name in sys.modules))
"""
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert loaded.split() == []
