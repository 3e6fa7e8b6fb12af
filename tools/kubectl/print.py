"""Prints rows as kubectl does: a table with capital headers, `-o wide|json|yaml|name`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import click

from dranode.api.sentence import printable

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

_GAP: Final = "   "
NONE: Final = "<none>"
UNKNOWN: Final = "<unknown>"


@dataclass(frozen=True, slots=True)
class Listing(Generic[R]):
    """The form in which rows are printed.

    Attributes:
        columns: header and cell, in order.
        wide: further columns of `-o wide`.
        name: the row under `-o name`: `<type>/<name>`.
        document: the row as a plain document, for `-o json` and `-o yaml`.
    """

    columns: Mapping[str, Callable[[R], str]]
    wide: Mapping[str, Callable[[R], str]]
    name: Callable[[R], str]
    document: Callable[[R], dict[str, Any]]


def list_options(function: F) -> F:
    """Add kubectl's options for what is printed: `-o`, `--no-headers`."""
    output = click.option(
        "-o",
        "--output",
        type=click.Choice(["", "wide", "json", "yaml", "name"]),
        default="",
        metavar="wide|json|yaml|name",
        help="Another form than the table.",
    )
    headers = click.option("--no-headers", is_flag=True, help="Leave out the table's header.")
    return output(headers(function))


def print_rows(rows: Sequence[R], listing: Listing[R], output: str, *, headers: bool = True) -> None:
    """Print rows in the form that was asked for."""
    if output == "name":
        _print(listing.name(row) for row in rows)
    elif output in ("json", "yaml"):
        _emit({"items": [listing.document(row) for row in rows]}, output)
    elif not rows:
        click.echo("No resources found.", err=True)
    else:
        columns = {**listing.columns, **(listing.wide if output == "wide" else {})}
        lines = [[cell(row) or NONE for cell in columns.values()] for row in rows]
        _print(table_lines([list(columns), *lines] if headers else lines))


def _print(lines: Iterable[str]) -> None:
    click.echo("".join(f"{line}\n" for line in lines), nl=False)


def table_lines(lines: Sequence[Sequence[str]]) -> Iterable[str]:
    """Return lines whose cells stand under each other, as kubectl pads them; control characters are left out."""
    cells = [line if "".join(line).isprintable() else [printable(cell) for cell in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        yield _GAP.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def _emit(document: dict[str, Any], output: str) -> None:
    if output == "json":
        click.echo(json.dumps(document, indent=4, ensure_ascii=False))
        return
    from dranode.driver.machine.yaml_files import dump_yaml

    click.echo(dump_yaml(document), nl=False)
