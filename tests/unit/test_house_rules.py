"""Rules of the house that no linter knows."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import grimp
import pytest

from dranode.driver.plugins import declared, installed

ROOT = Path(__file__).parents[2]
PARTS = ("api", "cdi", "cpu", "driver", "gpu", "memory", "proto", "sanity", "show", "sim", "tools")

CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
# import-linter forbids what deciding modules import, in functions too; these act without an import.
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


def test_no_command_takes_a_file_that_may_not_be_looked_for_for_a_missing_one() -> None:
    # Since Python 3.14 these methods of Path say no to both; machine/presence.py tells them apart.
    asking = re.compile(r"\.(exists|is_dir|is_file|is_socket)\(\)")
    files = [path for part in ("driver/cli", "driver/kube", "show", "tools") for path in (ROOT / part).rglob("*.py")]
    assert [path.relative_to(ROOT).as_posix() for path in files if asking.search(path.read_text())] == []


def test_the_list_of_deciding_modules_lacks_none() -> None:
    roots = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["root_packages"]
    (contract,) = (each for each in CONTRACTS if each["name"] == "Deciding modules import nothing that acts")
    graph = grimp.build_graph(*roots, include_external_packages=True, cache_dir=None)
    for allowed in contract["ignore_imports"]:
        importer, _, imported = allowed.partition(" -> ")
        if "*" not in importer:
            graph.remove_import(importer=importer, imported=imported)
    # What prints acts too; the commands of people are not listed.
    acting = [name for name in (*contract["forbidden_modules"], "click", "rich") if name in graph.modules]
    act = {name for each in acting for name in graph.find_downstream_modules(each, as_package=True)}
    ours = {name for name in graph.modules if name.startswith("dranode.") and not graph.find_children(name)}
    known = tuple(f"{name}." for name in (*contract["source_modules"], *acting, "dranode.proto"))
    assert len(ours - act) > 100
    lacking = sorted(name for name in ours - act if not f"{name}.".startswith(known))
    assert lacking == [], "they reach nothing that acts: list them with the deciding modules in pyproject.toml"


def _loaded_by_serve() -> tuple[frozenset[str], frozenset[str]]:
    """All modules of ours, and those that `serve` with every driver of ours loads sooner or later."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    graph = grimp.build_graph(*project["tool"]["importlinter"]["root_packages"], cache_dir=None)
    groups = (project["project"]["entry-points"][f"dranode.{name}"] for name in ("plugins", "options"))
    points = {value.partition(":")[0] for group in groups for value in group.values()}
    roots = points | {"dranode.driver.cli.serve", "dranode.driver.cli.commands"}
    upstream = roots.union(*(graph.find_upstream_modules(root) for root in roots))
    return frozenset(graph.modules), frozenset(upstream)


def test_serve_loads_all_of_the_node_driver_and_nothing_that_serves_people() -> None:
    modules, loaded = _loaded_by_serve()
    unused = {name for name in modules - loaded if name.startswith("dranode.driver.")} - {"dranode.driver.testing"}
    packages = {name for name in unused if any(other.startswith(f"{name}.") for other in modules)}
    assert sorted(unused - packages) == [], "serve does not load them: move them to tools/, show/ or sim/"
    people = tuple(f"dranode.{part}." for part in ("sanity", "show", "sim", "tools"))
    assert sorted(name for name in loaded if name.startswith(people)) == []
    assert len(loaded) > 100


def test_unit_tests_lie_in_folders_of_the_code() -> None:
    unit = ROOT / "tests" / "unit"
    folders = {path.parent.relative_to(unit) for path in unit.rglob("test_*.py")}
    assert len(folders) > len(PARTS)
    assert sorted(str(folder) for folder in folders if not (ROOT / folder).is_dir()) == []


def test_every_folder_with_an_init_is_listed_as_a_package() -> None:
    found = {
        "dranode." + ".".join(path.parent.relative_to(ROOT).parts)
        for part in PARTS
        for path in (ROOT / part).rglob("__init__.py")
    }
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert sorted(found) == sorted(listed)


def _acts(path: Path) -> set[str]:
    """The builtins that act and are called in a file, and importlib."""
    nodes = list(ast.walk(tree_of(path)))
    called = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return called & ACTING_BUILTINS | imported & {"importlib"}


def test_deciding_modules_call_nothing_that_acts() -> None:
    assert {str(path.relative_to(ROOT)): acting for path in deciding() if (acting := _acts(path))} == {}


# What the seam has that acts: a deciding module of a driver that is written through it imports none of these.
ACTING_SEAM = {
    "Root",
    "missing_nodes",
    "node_cpus",
    "numa_node",
    "pcie_root",
    "pods_cgroup_changes",
    "read_pods_cgroup",
    "read_text",
}


def test_the_seams_names_that_act_are_those_of_acting_modules() -> None:
    (contract,) = (each for each in CONTRACTS if each["name"] == "Deciding modules import nothing that acts")
    decides = tuple(contract["source_modules"])
    nodes = (node for node in ast.parse((ROOT / "driver/__init__.py").read_text()).body)
    imports = (node for node in nodes if isinstance(node, ast.ImportFrom))
    acting = {name.name for node in imports for name in node.names if not str(node.module).startswith(decides)}
    assert acting == ACTING_SEAM


def _from_the_seam(path: Path) -> set[str]:
    nodes = (node for node in ast.walk(tree_of(path)) if isinstance(node, ast.ImportFrom))
    return {alias.name for node in nodes if node.module == "dranode.driver" for alias in node.names}


def test_deciding_modules_take_nothing_that_acts_from_the_seam() -> None:
    taken = {str(path.relative_to(ROOT)): _from_the_seam(path) & ACTING_SEAM for path in deciding()}
    assert {path: names for path, names in taken.items() if names} == {}


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
    services = [path for path in contracts if path.stem not in ("nri_v1alpha1", "ttrpc")]
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


def test_serve_loads_no_library_that_only_people_or_the_local_run_need() -> None:
    script = """
import sys
import tokenize
from dranode.driver.cli import options, serve
heavy = ("rich", "re2", "yaml", "kubernetes")
print(*(name for name in heavy if name in sys.modules))
"""
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert loaded.split() == []


# Files of the kernel are called so, resources of Kubernetes, and other projects' drivers.
_KERNELS = {f"driver/machine/{name}.py": {"cpu", "memory"} for name in ("cgroups", "container_usage")}
_OTHERS = ("dra-driver-cpu", "dra_driver_cpu")


def _texts(path: Path) -> Iterator[str]:
    """Every string, comment and identifier of a module."""
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type in (tokenize.STRING, tokenize.COMMENT, tokenize.NAME):
                yield token.string


@cache
def _words() -> tuple[frozenset[str], re.Pattern[str]]:
    """The short names of our drivers, and a pattern of everything else that names one or an option of one."""
    short = frozenset(point.name for point in installed().values() if point.value.startswith("dranode."))
    words = {form.format(name) for name in short for form in ("dra.{}", "dra_{}")}
    words |= {form.format(name.upper()) for name in short for form in ("{} driver", "{}Config")}
    # An option of one plain word, such as `order`, is a word like any other without its hyphens.
    words |= {each.flag for each in declared().options}
    words |= {each.parameter for each in declared().options if "_" in each.parameter}
    return short, re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, sorted(words)))})(?![\w-])")


def names_of_drivers(path: Path, text: str) -> set[str]:
    """What in a text of the framework names a driver of ours, or an option of one."""
    short, pattern = _words()
    for other in _OTHERS:
        text = text.replace(other, "")
    quoted = text.strip("\"'")
    kernels = _KERNELS.get(str(path.relative_to(ROOT)), set())
    return set(pattern.findall(text)) | ({quoted} if quoted in short - kernels and quoted != text else set())


def test_the_framework_names_no_driver_and_no_option_of_one() -> None:
    files = sorted((ROOT / "driver").rglob("*.py"))
    named = [(path, word) for path in files for text in _texts(path) for word in names_of_drivers(path, text)]
    assert [f"{path.relative_to(ROOT)}: {word}" for path, word in named] == []


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('"cpu"', "cpu"),
        ('"one for dra.gpu alone"', "dra.gpu"),
        ("group_by", "group_by"),
        ('"pass --reserved-cpus 0"', "--reserved-cpus"),
        ("# the GPU driver", "GPU driver"),
    ],
)
def test_a_name_of_a_driver_would_be_seen(text: str, word: str) -> None:
    assert names_of_drivers(ROOT / "driver" / "plugins.py", text) == {word}


def _takes_consumers_for_pods(text: str) -> Iterator[int]:
    """The lines where names or UIDs of a claim's consumers are taken without a look at what they are."""
    loops = (ast.For, ast.comprehension)
    for node in ast.walk(ast.parse(text)):
        inner = [node] if isinstance(node, ast.For) else getattr(node, "generators", [])
        for loop in inner:
            assert isinstance(loop, loops)
            asked = loop.iter
            if not isinstance(asked, ast.Attribute) or not isinstance(loop.target, ast.Name):
                continue
            owner = asked.value.id if isinstance(asked.value, ast.Name) else ""
            if asked.attr != "reserved_for" and (asked.attr, owner) != ("pods", "record"):
                continue
            fields = {
                each.attr
                for each in ast.walk(node)
                if isinstance(each, ast.Attribute)
                and isinstance(each.value, ast.Name)
                and each.value.id == loop.target.id
            }
            if fields & {"name", "uid"} and not fields & {"is_pod", "is_pod_group"}:
                yield asked.lineno


def test_no_consumer_of_a_claim_is_taken_for_a_pod_unchecked() -> None:
    """It may be a PodGroup, whose pods are not named: `claims/consumers.py` says which consumers are pods."""
    files = [path for part in PARTS for path in (ROOT / part).rglob("*.py") if path.name != "consumers.py"]
    places = {
        path.relative_to(ROOT).as_posix(): lines
        for path in files
        if "pods" in (text := path.read_text()) or "reserved_for" in text
        if (lines := list(_takes_consumers_for_pods(text)))
    }
    assert places == {}


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("[one.name for one in claim.status.reserved_for]", [1]),
        ("{pod.uid: pod.name for record in records for pod in record.pods}", [1]),
        ("for pod in record.pods:\n    print(pod.name)", [1]),
        ("[one.uid for one in claim.status.reserved_for if one.is_pod]", []),
        ("[one.name for one in pods_among(record.pods)]", []),
        ("', '.join(map(str, claim.status.reserved_for))", []),
        ("[pod.name for pod in workload.pods]", []),
    ],
)
def test_a_consumer_that_is_taken_for_a_pod_would_be_seen(text: str, lines: list[int]) -> None:
    assert list(_takes_consumers_for_pods(text)) == lines
