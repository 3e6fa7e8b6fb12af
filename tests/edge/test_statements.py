"""What the manual, the README and the program's own help say is true."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from dranode.driver.cli.commands import cli
from dranode.driver.cli.options import variables
from tests.edge.test_docs import FOLDERS, ROOT, parse
from tests.fakes.program import run_program

PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
# The code that defines Events and metrics.
PARTS = ("driver", "cpu", "gpu", "memory")
# Commands that print no answer: they run, show, or write a file.
ANSWERLESS = {"completion", "serve", "demo", "machine capture", "machine copy", "report"}


def read(*path: str) -> str:
    return ROOT.joinpath(*path).read_text()


def documents(*path: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(read(*path)) if document]


def commands() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(cli)
    for name in cli.list_commands(context):
        found = cli.get_command(context, name)
        if isinstance(found, click.Group):
            yield from ((f"{name} {inner}", command) for inner, command in found.commands.items())
        elif found is not None:
            yield name, found


COMMANDS = dict(commands())


def examples(command: click.Command) -> list[list[str]]:
    """The commands in a command's help under `Example:`."""
    _, _, after = (command.help or "").partition("Example:\n")
    block = after.split("\n\n")[0].replace("\\\n", " ")
    return [shlex.split(line) for line in block.splitlines() if line.strip()]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example_with_valid_options(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    lines = (line[line.index("--") + 1 :] if "--" in line else line for line in examples(COMMANDS[name]))
    ours = [line[1:] for line in lines if line[0] == "dranode"]
    assert any(" ".join(words).startswith(name) for words in ours)
    for words in ours:
        # A recorded or copied machine is not available here.
        parse(["cores=2" if ".tar" in word or word.startswith("scratch:") else word for word in words])
        for word in words:
            assert not word.startswith(("examples/", "deploy/")) or (ROOT / word).exists(), word


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_that_prints_an_answer_can_print_it_for_programs(name: str) -> None:
    output = next((one for one in COMMANDS[name].params if "--output" in one.opts), None)
    assert (output is not None and isinstance(output.type, click.Choice)) == (name not in ANSWERLESS)


def readme_commands() -> list[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```$", read("README.md"), re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.startswith(".venv/bin/dranode ")]


@pytest.mark.parametrize("line", readme_commands())
def test_the_readmes_commands_run(line: str) -> None:
    _, *arguments = shlex.split(line)
    done = run_program(*arguments, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_everything_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    for name in re.findall(rf"`((?:{FOLDERS})/[\w./-]*)`", text):
        assert (ROOT / name).exists(), name
    # The page about drivers creates a driver with variables of its own.
    known = variables() | set(re.findall(r"\bDRANODE_FANS_\w+", text))
    assert set(re.findall(r"\bDRANODE_[A-Z]+(?:_[A-Z]+)*\b(?!_)", text)) - known == set()
    makefile = read("Makefile")
    for target in re.findall(r"(?:`|^)make ([a-z]+)", text, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    source = "".join(path.read_text() for part in PARTS for path in ROOT.glob(f"{part}/**/*.py"))
    for reason in re.findall(r"Events? `(\w+)`", text):
        assert f'"{reason}"' in source or f"class {reason}" in source, reason
    for metric in re.findall(r"`(dranode_[a-z_]+)", text):
        assert metric.removeprefix("dranode_").removesuffix("_total") in source, metric


def test_the_readme_names_the_required_python() -> None:
    project = tomllib.loads(read("pyproject.toml"))["project"]
    (named,) = re.findall(r"Python (3\.\d+) or newer", read("README.md"))
    assert project["requires-python"] == f">={named}"


def cpus(request: dict[str, Any]) -> list[int]:
    alternatives = request.get("firstAvailable") or [request.get("exactly", {})]
    return [
        int(one["count"])
        if one.get("deviceClassName") == "dra.cpu" and "count" in one
        else int((one.get("capacity") or {}).get("requests", {}).get("dra.cpu/cpu", 0))
        for one in alternatives
    ]


# --- examples ---


@pytest.mark.parametrize("path", sorted(ROOT.glob("examples/*-*.yaml")), ids=lambda path: path.name)
def test_containers_request_the_same_cpus_as_their_claims(path: Path) -> None:
    """kubelet's CPU accounting uses containers' requests, not claims (KEP-5517 is alpha)."""
    found = [document for document in documents("examples", path.name) if "kind" in document]
    claims: dict[str, list[int] | None] = {}
    for document in found:
        spec = document.get("spec", {}).get("spec", document.get("spec", {}))
        requests = spec.get("devices", {}).get("requests", []) if "Claim" in document["kind"] else []
        if requests:
            numbers = [cpus(request) or [0] for request in requests]
            fixed = all(len(one) == 1 for one in numbers)
            claims[document["metadata"]["name"]] = [one[0] for one in numbers] if fixed else None
    for pod in (document for document in found if document["kind"] == "Pod"):
        named = [
            each.get("resourceClaimTemplateName") or each.get("resourceClaimName")
            for each in pod["spec"].get("resourceClaims", ())
        ]
        wanted = [claims.get(name) for name in named]
        if any(one is None or not sum(one) for one in wanted):
            continue
        containers = [*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())]
        requested = sum(int(each["resources"].get("requests", {}).get("cpu", 0)) for each in containers)
        assert requested == sum(sum(one or ()) for one in wanted), pod["metadata"]["name"]


# --- installing ---


def test_the_overlay_for_another_kubelet_root_changes_every_mount() -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```$", read("docs", "install.md"), re.MULTILINE | re.DOTALL)
    (text,) = [block for block in blocks if "KUBELET_ROOT" in block]
    (patch,) = yaml.safe_load(text)["patches"]
    daemonset = next(one for one in documents("deploy", "daemonset.yaml") if one["kind"] == "DaemonSet")
    for operation in yaml.safe_load(patch["patch"]):
        *way, last = operation["path"].strip("/").split("/")
        place: Any = daemonset
        for step in way:
            place = place[int(step)] if isinstance(place, list) else place[step]
        if last == "-":
            place.append(operation["value"])
        else:
            assert operation["op"] == "add" or last in place
            place[last] = operation["value"]
    pod = daemonset["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (root,) = [one["value"] for one in container["env"] if one["name"] == "DRANODE_KUBELET_ROOT"]
    volumes = {one["name"]: one.get("hostPath", {}).get("path") for one in pod["volumes"]}
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    for name in ("plugins", "plugins-registry", "pod-resources"):
        assert mounts[name] == volumes[name] == f"{root}/{name.replace('plugins-', 'plugins_')}"
    assert "/var/lib/kubelet" not in yaml.safe_dump(pod)


# --- what is said of commands ---
