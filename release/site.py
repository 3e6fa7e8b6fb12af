"""The manual as a site: `make site` writes its pages into .cache/site, and mkdocs makes dist/site of them.

The pages are those of docs/, the files at the top that people look for, the examples, and a reference made from the
code: commands, options, opaque configurations with a JSON Schema, what is published of made-up
machines, and what drivers import.
"""

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import click
from click.testing import CliRunner

import dranode.api
import dranode.driver
import dranode.driver.testing
from dranode.driver.cli.commands import cli
from release.configurations import CONFIGURATIONS, configurations, schema
from release.project import ROOT
from release.reference import options

CPUS: Final = "sockets=2,numa=2,cores=4,threads=2"
GPUS: Final = "sockets=2,cores=8,gpus=2"
MANUAL: Final = ROOT / "docs"
PAGES: Final = ROOT / ".cache" / "site" / "docs"
TOP: Final = (
    "ARCHITECTURE",
    "CHANGELOG",
    "CONTRIBUTING",
    "GOVERNANCE",
    "MAINTAINERS",
    "ROADMAP",
    "SECURITY",
    "CODE_OF_CONDUCT",
)
# What is published, by the heading on the page of the reference.
_PUBLISHED: Final[Mapping[str, tuple[str, ...]]] = {
    "`dra.cpu`, grouped by NUMA node": ("slices", "--machine", CPUS),
    "`dra.cpu`, grouped by socket": ("slices", "--machine", CPUS, "--group-by", "socket"),
    "`dra.cpu`, individual": ("slices", "--machine", CPUS, "--cpu-device-mode", "individual"),
    "`dra.gpu`": ("slices", "--drivers", "gpu", "--machine", GPUS),
    "`dra.memory`": ("slices", "--drivers", "memory", "--machine", CPUS),
}
# Names do not wrap, so that they can be found and copied; a table that is too wide scrolls.
_TABLES: Final = ".md-typeset td:first-child code { white-space: nowrap; }\n"
# How many values of an attribute are shown.
_SHOWN: Final = 3
_LINK: Final = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def main() -> None:
    """Write all pages."""
    shutil.rmtree(PAGES.parent, ignore_errors=True)
    (PAGES / "reference").mkdir(parents=True)
    (PAGES / "schemas").mkdir()
    (PAGES / "decisions").mkdir()
    for name, text in _pages():
        (PAGES / name).write_text(text)
    for picture in MANUAL.glob("*.svg"):
        shutil.copy(picture, PAGES)
    (PAGES / "tables.css").write_text(_TABLES)
    for kind in CONFIGURATIONS:
        (PAGES / "schemas" / f"{kind}.json").write_text(json.dumps(schema(kind), indent=2) + "\n")


def _pages() -> Iterator[tuple[str, str]]:
    yield "index.md", relinked((ROOT / "README.md").read_text(), ROOT)
    for name in TOP:
        yield f"{name}.md", relinked((ROOT / f"{name}.md").read_text(), ROOT)
    for page in sorted(MANUAL.rglob("*.md")):
        yield page.relative_to(MANUAL).as_posix(), relinked(page.read_text(), page.parent)
    yield "examples.md", examples()
    yield "reference/commands.md", commands()
    yield "reference/options.md", options()
    yield "reference/configurations.md", configurations()
    yield "reference/devices.md", devices()
    yield "reference/seam.md", names_for_drivers()


def names_for_drivers() -> str:
    """Return a page on which mkdocstrings puts every name that a driver imports."""
    introduction = (
        "# Names for drivers\n\nEverything that a driver imports. `dranode.driver` is the seam, `dranode.api` has the "
        "documents of Kubernetes, and `check_plugin`, for the driver's test, is in `dranode.driver.testing`. "
        "[How to write a driver](../drivers.md). [What stays](../stability.md).\n"
    )
    places = {"check_plugin": dranode.driver.testing}
    for module in (dranode.api, dranode.driver):
        places |= dict.fromkeys(module.__all__, module)
    return "\n".join([introduction, *(_directive(place, name) for name, place in sorted(places.items())), ""])


def _directive(module: ModuleType, name: str) -> str:
    value = getattr(module, name)
    # The fields of a documented class are in its docstring. Those of Kubernetes and CDI have the names of their API.
    named_by_api = isinstance(value, type) and "Attributes:" not in (value.__doc__ or "")
    options = "\n    options:\n      show_if_no_docstring: true" if named_by_api else ""
    return f"::: {module.__name__}.{name}{options}\n"


def relinked(text: str, folder: Path) -> str:
    """Return a page with its links changed to those of the site.

    A link to a file that is not on the site, such as a test, is replaced by its text. On the site, the files at the top
    of the tree are next to the manual's, so only links in a folder of the manual go up.
    """
    up = "../" * len(folder.relative_to(MANUAL).parts) if folder.is_relative_to(MANUAL) else ""

    def link(match: re.Match[str]) -> str:
        target = (folder / match[1]).resolve()
        anchor = match[2] or ""
        if target.name == "README.md":
            return f"]({up}index.md{anchor})"
        if target.suffix in (".md", ".svg"):
            place = target.relative_to(MANUAL).as_posix() if target.is_relative_to(MANUAL) else target.name
            return f"]({up}{place}{anchor})"
        within = target.relative_to(ROOT).parts
        if within[0] == "examples":
            name = "-".join(within[1:]).replace(".", "").lower()
            return f"]({up}examples.md{'#' + name if name else ''})"
        return "]()"

    return re.sub(r"\[([^\]]+)\]\(\)", r"\1", _LINK.sub(link, text))


def examples() -> str:
    """Return a page with every example in full."""
    parts = ["# Examples\n\nEvery file runs with `dranode local` or `kubectl apply -f`.\n"]
    for path in sorted(path for path in (ROOT / "examples").rglob("*") if path.suffix in (".yaml", ".py", ".toml")):
        name = str(path.relative_to(ROOT / "examples"))
        language = {".py": "python", ".toml": "toml"}.get(path.suffix, "yaml")
        anchor = name.replace("/", "-").replace(".", "").lower()
        parts.append(f"## {name} {{ #{anchor} }}\n\n```{language}\n{path.read_text().rstrip()}\n```\n")
    return "\n".join(parts)


def commands() -> str:
    """Return the help of every command and of its subcommands."""
    parts = [
        "# Commands\n\nWhat `--help` prints. Every option of `serve` is also a variable, `DRANODE_` and its name.\n"
    ]
    parts += [f"## {name}\n\n```text\n{text.rstrip()}\n```\n" for name, text in _helps(cli, "dranode")]
    return "\n".join(parts)


def _helps(command: click.Command, name: str) -> Iterator[tuple[str, str]]:
    context = click.Context(command, info_name=name, max_content_width=110, terminal_width=110)
    yield name, command.get_help(context)
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            below = command.get_command(context, child)
            if below is not None:
                yield from _helps(below, f"{name} {child}")


def devices() -> str:
    """Return a page with the attributes and capacities that are published, with the values of made-up machines."""
    parts = [f"# Attributes and capacities\n\nWhat is published for `--machine {CPUS}` and `--machine {GPUS}`.\n"]
    for heading, words in _PUBLISHED.items():
        slices = json.loads(CliRunner().invoke(cli, [*words, "-o", "json"], catch_exceptions=False).stdout)
        devices = [device for document in slices["items"] for device in document["spec"]["devices"]]
        # Shorter values first, so that numbers are in order.
        rows = sorted(
            {row for device in devices for row in _rows(device)}, key=lambda row: (*row[:2], len(row[2]), row)
        )
        parts.append(
            f"## {heading}\n\n| name | kind | values |\n| --- | --- | --- |\n" + "\n".join(_merged(rows)) + "\n"
        )
    return "\n".join(parts)


def _rows(device: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for name, value in device.get("attributes", {}).items():
        ((kind, plain),) = value.items()
        yield name, kind, json.dumps(plain)
    for name, value in device.get("capacity", {}).items():
        yield name, "capacity", json.dumps(value["value"])


def _merged(rows: list[tuple[str, str, str]]) -> Iterator[str]:
    for name, kind in dict.fromkeys((name, kind) for name, kind, _ in rows):
        values = [value for *key, value in rows if key == [name, kind]]
        shown = ", ".join(f"`{value}`" for value in values[:_SHOWN]) + (", ..." if len(values) > _SHOWN else "")
        yield f"| `{name}` | {kind} | {shown} |"


if __name__ == "__main__":
    main()
