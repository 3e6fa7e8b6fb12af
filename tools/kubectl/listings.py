"""The columns of `kubectl dranode claims`, `devices` and `nodes`, and their output as kubectl's: `-o wide|json|...`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from typing import Any, Final, Generic, TypeVar

import click

from dranode.api.documents import encode
from dranode.api.errors import printable
from dranode.show.output import emit
from dranode.show.picture.devices import part_text, unit_of
from dranode.sim.allocator.state import Amount
from dranode.tools.diagnosis.device_view import DeviceRow, HeldPart
from dranode.tools.kubectl.views import ClaimRow, NumaRow, age

_BINARY = (("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10))


def claim_listing(now: datetime, *, namespaces: bool) -> Listing[ClaimRow]:
    """Return how claims are printed; `namespaces` adds the column of `-A`."""
    space: dict[str, Callable[[ClaimRow], str]] = {"NAMESPACE": lambda row: row.namespace} if namespaces else {}
    return Listing(
        columns={
            **space,
            "NAME": lambda row: row.name,
            "STATE": lambda row: row.stage.value,
            "POD": lambda row: ",".join(row.pods),
            "NODE": lambda row: UNKNOWN if row.node is None else row.node,
            "DEVICES": _devices,
            "AGE": lambda row: age(row.created, now),
            "HEALTH": lambda row: row.health,
            "WAITING": lambda row: UNKNOWN if row.waiting is None else ",".join(row.waiting),
        },
        wide={
            "DRIVERS": lambda row: ",".join(sorted({result.driver for result in row.results})),
            "SHARES": lambda row: ",".join(str(result.share_id) for result in row.results if result.share_id),
            "MESSAGE": lambda row: row.message,
        },
        name=lambda row: f"resourceclaim.resource.k8s.io/{row.name}",
        document=lambda row: {
            "namespace": row.namespace,
            "name": row.name,
            "state": row.stage.value,
            "node": row.node or None,
            "pods": list(row.pods),
            "waiting": None if row.waiting is None else list(row.waiting),
            "devices": encode(row.results),
            "health": row.health or None,
            "message": row.message or None,
            "created": row.created or None,
        },
    )


def device_listing() -> Listing[DeviceRow]:
    """Return how devices are printed."""
    return Listing(
        columns={
            "DRIVER": lambda row: row.driver,
            "NODE": lambda row: row.node,
            "NAME": lambda row: row.name,
            "NUMA": lambda row: "" if row.numa is None else str(row.numa),
            "STATE": lambda row: row.state.value,
            "FREE": _amounts,
            "CLAIMS": lambda row: ",".join(_part(row, part) for part in row.parts),
            "TAINTS": lambda row: ",".join(row.taints),
        },
        wide={
            "POOL": lambda row: row.pool,
            "PODS": lambda row: ",".join(pod for part in row.parts for pod in part.pods),
            "ATTRIBUTES": _attributes,
        },
        name=lambda row: f"device/{row.driver}/{row.pool}/{row.name}",
        document=lambda row: {
            "driver": row.driver,
            "pool": row.pool,
            "name": row.name,
            "node": row.node or None,
            "numa": [] if row.numa is None else [row.numa],
            "state": row.state.value,
            "free": {name: quantity_text(amount) for name, amount in row.free.items()},
            "total": {name: quantity_text(amount) for name, amount in row.total.items()},
            "claims": [
                {"claim": part.claim, "pods": list(part.pods), "consumed": encode(part.consumed), "admin": part.admin}
                for part in row.parts
            ],
            "taints": list(row.taints),
            "attributes": encode(row.device.attributes),
        },
    )


def numa_listing(rows: Iterable[NumaRow]) -> Listing[NumaRow]:
    """Return how NUMA nodes are printed: with a column for each kind of device in the rows."""
    kinds = sorted({kind for row in rows for kind in row.stock})

    def column(kind: str) -> Callable[[NumaRow], str]:
        def cell(row: NumaRow) -> str:
            stock = row.stock.get(kind)
            return "-" if stock is None else f"{quantity_text(stock.free)}/{quantity_text(stock.total)}"

        return cell

    return Listing(
        columns={
            "NODE": lambda row: row.node,
            "STATUS": lambda row: row.ready,
            "NUMA": lambda row: row.numa or "-",
            **{kind.upper(): column(kind) for kind in kinds},
        },
        wide={},
        name=lambda row: f"node/{row.node}",
        document=lambda row: {
            "node": row.node,
            "status": row.ready,
            "numa": row.numa or None,
            "free": {kind: quantity_text(stock.free) for kind, stock in row.stock.items()},
            "total": {kind: quantity_text(stock.total) for kind, stock in row.stock.items()},
        },
    )


def quantity_text(amount: Amount) -> str:
    """Return an amount as a quantity, with the largest binary suffix that leaves a whole number."""
    if isinstance(amount, Fraction):
        return f"{float(amount):g}"
    for suffix, scale in _BINARY:
        if amount >= scale and amount % scale == 0:
            return f"{amount // scale}{suffix}"
    return str(amount)


def _devices(row: ClaimRow) -> str:
    texts = []
    for result in row.results:
        consumed = [part_text(amount, _short(result.driver, name)) for name, amount in result.consumed_capacity.items()]
        texts.append(f"{result.device}({' '.join(consumed)})" if consumed else result.device)
    return ",".join(texts)


def _part(row: DeviceRow, part: HeldPart) -> str:
    consumed = " ".join(part_text(amount, _short(row.driver, name)) for name, amount in part.consumed.items())
    marks = "admin" if part.admin else consumed
    return f"{part.claim}{f'({marks})' if marks else ''}"


def _amounts(row: DeviceRow) -> str:
    return ",".join(
        f"{quantity_text(amount)}/{quantity_text(row.total[name])} {_unit(row, name)}"
        for name, amount in row.free.items()
    )


def _unit(row: DeviceRow, name: str) -> str:
    return _short(row.driver, unit_of(row.device, name, row.driver))


def _attributes(row: DeviceRow) -> str:
    texts = []
    for name, attribute in sorted(row.device.attributes.items()):
        (value,) = tuple(encode(attribute).values()) or (NONE,)
        texts.append(f"{_short(row.driver, name)}={str(value).lower() if isinstance(value, bool) else value}")
    return ",".join(texts)


def _short(driver: str, name: str) -> str:
    return name.removeprefix(f"{driver}/")


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
    """Add kubectl's output options: `-o`, `--no-headers`."""
    output = click.option(
        "-o",
        "--output",
        type=click.Choice(["wide", "json", "yaml", "name"]),
        callback=lambda _ctx, _parameter, value: value or "",
        help="Print more columns, a document, or only names.",
    )
    headers = click.option("--no-headers", is_flag=True, help="Do not print the table's header.")
    return output(headers(function))


def print_rows(rows: Sequence[R], listing: Listing[R], output: str, *, headers: bool = True) -> None:
    """Print rows in the format of `-o`."""
    if output == "name":
        _print(listing.name(row) for row in rows)
    elif output in ("json", "yaml"):
        emit({"items": [listing.document(row) for row in rows]}, output)
    elif not rows:
        click.echo("No resources found.", err=True)
    else:
        columns = {**listing.columns, **(listing.wide if output == "wide" else {})}
        lines = [[cell(row) or NONE for cell in columns.values()] for row in rows]
        _print(table_lines([list(columns), *lines] if headers else lines))


def _print(lines: Iterable[str]) -> None:
    click.echo("".join(f"{line}\n" for line in lines), nl=False)


def table_lines(lines: Sequence[Sequence[str]]) -> Iterable[str]:
    """Return lines with cells padded to columns, as kubectl prints them; control characters are left out."""
    cells = [line if "".join(line).isprintable() else [printable(cell) for cell in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        yield _GAP.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
