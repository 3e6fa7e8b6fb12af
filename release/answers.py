"""The page with what commands answer to programs, run on made-up machines, and what else the site asks the program."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click
from click.testing import CliRunner

from dranode.driver.cli.commands import cli
from release.project import ROOT

CPUS: Final = "sockets=2,numa=2,cores=4,threads=2"
GPUS: Final = "sockets=2,cores=8,gpus=2"
_SMALL: Final = "sockets=1,numa=2,cores=2,threads=1"
# What commands are asked about lies there, made anew each time.
_FOLDER: Final = ROOT / ".cache" / "site" / "asked"
_NODE: Final = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "worker"},
    "status": {"allocatable": {"cpu": "16", "memory": "32Gi", "pods": "110"}},
}
# What is asked, by the heading; `{asked}` is the folder with a node, its slices, and a local run that was kept.
_QUESTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "slices": ("slices", "--machine", _SMALL, "--node-name", "worker"),
    "topology": ("topology", "--machine", "sockets=1,numa=1,cores=2,threads=2"),
    "machine show": ("machine", "show", "--machine", GPUS),
    "pick": ("pick", "--machine", CPUS, "--count", "4"),
    "check": ("check", "examples/cpu-numa.yaml"),
    "allocate": ("allocate", "{asked}/slices.json", "deploy/deviceclasses.yaml", "examples/cpu-numa.yaml"),
    "local": ("local", "examples/cpu-numa.yaml", "--machine", CPUS),
    "fit": ("fit", "{asked}/slices.json", "{asked}/node.json", "deploy/deviceclasses.yaml", "examples/cpu-numa.yaml"),
    "bundle": ("bundle", "--drivers", "cpu", "--machine", _SMALL),
    "claims": ("claims", "--kubelet-root", "{asked}/state/kubelet"),
    "drain": ("drain", "--dry-run", "--kubelet-root", "{asked}/state/kubelet"),
    "forget-lost": ("forget-lost", "--kubelet-root", "{asked}/state/kubelet"),
    "cdi validate": ("cdi", "validate", "{asked}/spec.json"),
}
# They ask a node, a cluster or a driver, which the site has not.
ELSEWHERE: Final = frozenset({"doctor", "explain", "sanity"})


def answer(*words: str) -> Any:
    """Return what a command answers to `-o json`, with its exit status 0 or 1.

    Raises:
        SystemExit: it prints no JSON.
    """
    done = CliRunner().invoke(cli, [*words, "-o", "json"])
    try:
        return json.loads(done.stdout)
    except ValueError:
        raise SystemExit(f"dranode {' '.join(words)} failed: {done.output[-1000:]} {done.exception!r}") from None


def answers() -> str:
    """Return a page with what commands answer to `-o json`."""
    _prepare(_FOLDER)
    introduction = (
        "# Answers for programs\n\nWhat `-o json` prints. Keys stay, and more may be added "
        f"([What stays](../stability.md)). {', '.join(f'`{name}`' for name in sorted(ELSEWHERE))} also "
        "have it; they need a node, a cluster or a driver.\n"
    )
    parts = [introduction]
    for name, words in _QUESTIONS.items():
        text = json.dumps(answer(*(word.format(asked=_FOLDER) for word in words)), indent=2)
        shown = " ".join(word.format(asked="asked") for word in words)
        # Paths of the machine on which the site is built say nothing to its readers.
        text = text.replace(str(_FOLDER), "asked").replace(f"{ROOT}/", "")
        parts.append(f"## {name}\n\n    dranode {shown} -o json\n\n```json\n{text}\n```\n")
    return "\n".join(parts)


def _prepare(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "slices.json").write_text(json.dumps(answer("slices", "--machine", CPUS, "--node-name", "worker")))
    (folder / "node.json").write_text(json.dumps(_NODE))
    answer("local", "--machine", CPUS, "--state", str(folder / "state"), "--keep", "examples/cpu-numa.yaml")
    (spec,) = (folder / "state" / "cdi").glob("dra.k8s.io-*.json")
    shutil.copy(spec, folder / "spec.json")


def commands_for_programs(command: click.Command = cli, name: str = "") -> Iterator[str]:
    """Yield the names of all commands that have `-o`."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for child in command.list_commands(context):
            below = command.get_command(context, child)
            if below is not None:
                yield from commands_for_programs(below, f"{name} {child}".strip())
    elif any(each.name == "output" for each in command.params):
        yield name


def answered() -> frozenset[str]:
    """Return the names of the commands that the page answers for."""
    return frozenset(_QUESTIONS)
