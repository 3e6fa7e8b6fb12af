"""The manual is correct: its commands run and print what it shows, its YAML is valid, its links lead somewhere.

A block marked `console` is run: lines that begin with `$` are commands, the others their output, with `...` for any
lines. A block marked `sh` needs a cluster, a node or a container engine: its commands are parsed, not run.
"""

import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from dranode.cpu.config import CPUConfig, parse_cpu_config
from dranode.driver.claims.grant import Config
from dranode.driver.cli.commands import cli
from dranode.driver.cli.options import config_file
from dranode.driver.cli.serve import command as serve
from dranode.memory.config import MemoryConfig, parse_memory_config
from tests.fakes.program import run_program
from tests.kubernetes_schemas import is_known, problems

ROOT = Path(__file__).parents[2]
PROGRAM = Path(sys.executable).with_name("dranode")
PAGES = (
    "concepts",
    "install",
    "modes",
    "configuration",
    "troubleshooting",
    "upgrade",
    "security",
    "compatibility",
    "migration",
)
MORE = (
    "classic-dra",
    "glossary",
    "isolation",
    "memory",
    "sanity",
    "pod-does-not-start",
    "quickstart",
    "stability",
    "metrics",
    "report",
)
# The folders whose files the manual may mention.
FOLDERS = "api|cdi|cpu|deploy|docs|driver|examples|gpu|memory|proto|release|requirements|sanity|show|sim|tests|tools"
MANUAL = [ROOT / "docs" / f"{page}.md" for page in (*PAGES, *MORE)]
BLOCK = re.compile(r'^```(\w+)(?: title="([^"\n]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    page: Path
    language: str
    title: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.stem}: {self.text.splitlines()[0][:50]}"


def blocks(*languages: str) -> list[Block]:
    return [
        Block(page, *found) for page in MANUAL for found in BLOCK.findall(page.read_text()) if found[0] in languages
    ]


def sessions(block: Block) -> Iterator[tuple[str, list[str]]]:
    """The commands of a console block, each with its expected output."""
    command, printed = "", list[str]()
    for line in block.text.splitlines():
        if line.startswith("$ "):
            if command:
                yield command, printed
            command, printed = line[2:], []
        else:
            printed.append(line)
    yield command, printed


def matches(expected: list[str], printed: list[str]) -> bool:
    """Whether the output matches, where `...` stands for any number of lines."""
    if not expected:
        return not printed
    if expected[0] == "...":
        return any(matches(expected[1:], printed[start:]) for start in range(len(printed) + 1))
    return bool(printed) and expected[0].rstrip() == printed[0].rstrip() and matches(expected[1:], printed[1:])


def test_every_page_is_tested() -> None:
    elsewhere = {"benches.md", "cdi.md", "drivers.md", "field.md", "fleet.md", "gpu.md", "machines.md", "queues.md"}
    assert {page.name for page in MANUAL} | elsewhere >= {page.name for page in ROOT.glob("docs/*.md")}
    languages = [found[0] for page in MANUAL for found in BLOCK.findall(page.read_text())]
    # The Dockerfile is built by tests/interop/test_image.py.
    assert set(languages) == {"console", "sh", "yaml", "toml", "dockerfile"}


@pytest.mark.parametrize("block", blocks("console"), ids=str)
def test_a_session_prints_what_the_manual_shows(block: Block, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for command, expected in sessions(block):
        program, *arguments = shlex.split(command)
        assert program == "dranode"
        done = run_program(*arguments, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert matches(expected, done.stdout.splitlines()), done.stdout


def commands(block: Block) -> Iterator[list[str]]:
    for line in block.text.splitlines():
        yield shlex.split(line, comments=True)


def parse(arguments: list[str]) -> None:
    """Let click parse a command of the program without running it."""
    context = click.Context(cli, info_name="dranode")
    _, found, rest = cli.resolve_command(context, list(arguments))
    assert found is not None
    found.make_context(arguments[0], rest, parent=context)


@pytest.mark.parametrize("block", blocks("sh"), ids=str)
def test_a_command_for_a_cluster_has_valid_options(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for words in commands(block):
        assert words[0] in ("kubectl", "dranode", "docker", "helm", "pip", "kind", "minikube", "export", "echo", "cat")
        ours = words[words.index("--") + 1 :] if "--" in words else words
        if ours[0] == "dranode":
            parse(ours[1:])
        for flag in ("-k", "-f"):
            if flag in words:
                assert (ROOT / words[words.index(flag) + 1]).exists()


def documents(block: Block) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(block.text))


@pytest.mark.parametrize("block", blocks("yaml"), ids=str)
def test_yaml_of_the_manual_is_valid(block: Block, tmp_path: Path) -> None:
    if block.title == "config.yaml":
        (tmp_path / "config.yaml").write_text(block.text)
        assert config_file(str(tmp_path / "config.yaml"), {option.name or "": option for option in serve.params})
        return
    for document in documents(block):
        if is_known(document):
            assert problems(document) == []
        elif document.get("kind") == "Kustomization":
            assert set(document) <= {"apiVersion", "kind", "resources", "components", "patches"}
            assert all(yaml.safe_load(patch["patch"]) for patch in document["patches"])
        elif "resources" in document and "kind" not in document:
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}
            container = {"name": "main", "image": "app", **document}
            assert problems({**pod, "spec": {"containers": [container]}}) == []
        elif document.get("kind") == "MemoryConfig":
            assert isinstance(parse_memory_config(Config("FromClaim", document, "the manual")), MemoryConfig)
        elif block.title == "talos.yaml":
            (file,) = document["machine"]["files"]
            assert tomllib.loads(file["content"])["plugins"]
        else:
            parsed = parse_cpu_config(Config("FromClaim", document, "the manual"))
            assert parsed != CPUConfig()


@pytest.mark.parametrize("block", [block for block in blocks("yaml") if "kind: ResourceClaim\n" in block.text], ids=str)
def test_claims_of_the_manual_are_prepared(block: Block, tmp_path: Path) -> None:
    (tmp_path / "claims.yaml").write_text(block.text)
    for arguments in (["check", "claims.yaml"], ["local", "--machine", "cores=8,threads=2", "claims.yaml"]):
        done = run_program(*arguments, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("block", blocks("toml"), ids=str)
def test_toml_of_the_manual_is_toml(block: Block) -> None:
    assert tomllib.loads(block.text)["version"] in (2, 3)


def anchors(page: Path) -> set[str]:
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in _HEADING.findall(page.read_text()))
    return {heading.strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", [*sorted(ROOT.glob("docs/**/*.md")), ROOT / "README.md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(page.read_text()):
        if link.startswith(("http://", "https://")):
            continue
        target, _, anchor = link.partition("#")
        place = (page.parent / target).resolve() if target else page
        assert place.exists(), link
        assert not anchor or anchor in anchors(place), link


# --- what tables and sentences say of the code ---


def test_every_option_on_a_page_exists() -> None:
    known = {
        option
        for name in cli.list_commands(click.Context(cli))
        for found in [cli.get_command(click.Context(cli), name)]
        if found is not None
        for inner in [found, *(found.commands.values() if isinstance(found, click.Group) else ())]
        for parameter in inner.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    others = {"--help", "--ignore-daemonsets", "--image", "--profile", "--create-namespace", "--set"}
    others |= {"--clusterrole", "--group", "--previous", "--target", "--mount", "--python", "--no-cache-dir"}
    others |= {"--manifest", "--field-selector", "--no-hooks"}  # krew's, kubectl's, helm's
    others |= {"--spec", "--from"}  # pipx's and uvx's
    others |= {"--name", "--config", "--wait", "--for", "--container-runtime", "--kubernetes-version", "--cpus"}
    others |= {"--write-kubeconfig-mode"}  # kind's, minikube's, k3s'
    others |= {"--interleave"}  # numactl's
    others |= {"--rm", "--cdi"}  # docker's, and those of an example driver
    for page in MANUAL:
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", page.read_text()))
        assert named - known - others == set(), page.name


def test_the_values_in_the_table_of_fields_are_accepted() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    table = dict(re.findall(r"^\| `([\w.]+)` \| ([^|]+) \|", page, re.MULTILINE))
    assert table
    for name, values in table.items():
        for value in re.findall(r"`([^`]+)`", values):
            outer, _, inner = name.partition(".")
            document: dict[str, Any] = {"apiVersion": "dra.cpu/v1alpha1", "kind": "CPUConfig"}
            read = {"true": True, "false": False}.get(value, value)
            document[outer] = {inner: read} if inner else read
            assert parse_cpu_config(Config("FromClaim", document, "the manual")) is not None
