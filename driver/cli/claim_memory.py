"""Prints for `dranode claims --verify` and `--usage` the memory that claims' containers may use and use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import click
import msgspec

from dranode.driver.cli.output import console
from dranode.driver.cli.terminal import columns
from dranode.driver.core.api.errors import DranodeError
from dranode.driver.core.api.page_sizes import page_size_name
from dranode.driver.core.api.quantity import Quantity
from dranode.driver.core.claims.record import Record
from dranode.driver.core.claims.usage import Figure
from dranode.driver.core.diagnosis.container_cgroups import ContainerCgroup
from dranode.driver.core.diagnosis.placement import pod_names, pod_uids
from dranode.driver.core.pinning.containers import Effective
from dranode.driver.core.pinning.outside import (
    RecordedClaim,
    RecordedParts,
    claims_in,
    container_has_memory,
    expected_memory,
)
from dranode.driver.core.pinning.snapshot import HeldClaim, Pins
from dranode.driver.machine.cgroups import NO_LIMIT, Cgroups
from dranode.driver.machine.container_usage import UsageReader
from dranode.driver.machine.processes import require_visible
from dranode.driver.machine.root import Root
from dranode.driver.plugins import load_installed

_MIB: Final = 1 << 20
Key = tuple[str, str]

UNSEEN: Final = "no container of it can be looked into"
"""The word on a claim of which no container is to be seen."""


class _Container(msgspec.Struct, frozen=True):
    """A container whose claims say which memory it gets."""

    seen: ContainerCgroup
    pod: str
    claims: RecordedParts
    expected: Effective


def recorded_claims(root: Root, records: Mapping[str, Iterable[Record]]) -> tuple[RecordedClaim, ...]:
    """Return the claims on record, by driver, of installed drivers that hold containers to memory.

    One of which that is not known is named on stderr, and so are drivers that are not installed.
    """
    plugins = load_installed(root)
    for driver in sorted(records.keys() - {plugin.driver for plugin in plugins}):
        click.echo(f"{driver}: which memory its claims' containers get is not known: it is not installed", err=True)
    return tuple(
        RecordedClaim.of(plugin.driver, record, _held(plugin.driver, plugin, record))
        for plugin in plugins
        if isinstance(plugin, Pins)
        for record in records.get(plugin.driver, ())
    )


def _held(driver: str, pins: Pins, record: Record) -> HeldClaim | None:
    try:
        return pins.pinned(record)
    except DranodeError as error:
        click.echo(f"{driver}: which memory {record.ref} has is not known: {error}", err=True)
        return None


def memory_of(root: Root, claims: Sequence[RecordedClaim]) -> dict[Key, dict[str, Any]]:
    """Return whether the containers of claims have the memory of these, by driver and UID of the claim.

    Raises:
        MachineError: `/proc` does not show the claims' processes.
    """
    cgroups = Cgroups(root)
    found: dict[Key, list[dict[str, Any]]] = {}
    for each in _containers(root, claims):
        actual = cgroups.memory(each.seen.cgroup, each.expected)
        of_pod = cgroups.memory(each.seen.cgroup.rpartition("/")[0], each.expected)
        document = {
            "pod": each.pod,
            "cgroup": each.seen.cgroup,
            "expected": _document(each.expected),
            "found": _document(actual),
            "podMayHave": _document(of_pod)["hugepages"],
            "ok": container_has_memory(each.claims, each.expected, actual),
        }
        for claim, _ in each.claims:
            found.setdefault(_key(claim), []).append(document)
    # Those of claims of which no container is seen have none here.
    said = {key: found.get(key, []) for key in (*found, *(_key(each) for each in claims if _says_memory(each)))}
    return {key: {"ok": _all_ok(containers), "containers": containers} for key, containers in said.items()}


def memory_usage_of(root: Root, claims: Sequence[RecordedClaim]) -> dict[Key, list[dict[str, Any]]]:
    """Return what the containers of claims that hold memory use of it, by driver and UID of the claim.

    A container with several such claims is named with each: memory does not say by which claim it was had. A claim of
    which no container is seen has none.

    Raises:
        MachineError: `/proc` does not show the claims' processes.
    """
    reader = UsageReader(root, Cgroups(root))
    holding = [claim for claim in claims if claim.held is not None and claim.held.nodes]
    used: dict[Key, list[dict[str, Any]]] = {_key(claim): [] for claim in holding}
    for each in _containers(root, holding):
        for claim, held in each.claims:
            if held is None:
                continue
            figures = reader.read_memory(each.seen.cgroup, held.nodes, ())
            total, remote = (_sum(figures.get(figure)) for figure in (Figure.MEMORY, Figure.REMOTE_MEMORY))
            document = {
                "pod": each.pod,
                "cgroup": each.seen.cgroup,
                "nodes": str(held.nodes),
                "bytes": total,
                "bytesElsewhere": remote,
                "hugepages": {
                    page_size_name(size): {"given": given, "used": reader.pages_used(each.seen.cgroup, size)}
                    for size, given in held.hugepages
                },
            }
            used.setdefault(_key(claim), []).append(document)
    return used


def draw_memory(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Print of each claim, by its name, which memory its containers should have and have."""
    from rich.text import Text

    table = columns("claim", "pod", "memory from nodes", "comes from", "huge pages", "may have", "")
    for name, verified in rows:
        if verified["unseen"]:
            table.add_row(name, *[""] * 5, UNSEEN)
        for each in verified["containers"]:
            words: dict[bool | None, str | Text] = {True: "yes", False: Text("NO", style="red"), None: "not seen"}
            word = words[each["ok"]]
            expected, actual = each["expected"], each["found"]
            pages = (_amounts(expected["hugepages"]), _amounts(actual["hugepages"]))
            table.add_row(name, each["pod"], expected["nodes"] or "any", actual["nodes"] or "not seen", *pages, word)
    if table.row_count:
        out = console()
        out.print()
        out.print(table)


def draw_memory_usage(rows: Iterable[tuple[str, Sequence[Mapping[str, Any]]]]) -> None:
    """Print of each claim, by its name, what its containers use of its memory."""
    table = columns("claim", "pod", "nodes", "memory used", "of that elsewhere", "huge pages used")
    for name, containers in rows:
        for each in containers:
            pages = ", ".join(
                f"{_amount(pool['used'])} of {_amount(pool['given'])} in {size}"
                for size, pool in each["hugepages"].items()
            )
            memory, elsewhere = (_amount(each[figure]) for figure in ("bytes", "bytesElsewhere"))
            table.add_row(name, each["pod"], each["nodes"], memory, elsewhere, pages or "-")
    if table.row_count:
        out = console()
        out.print()
        out.print(table)


def _containers(root: Root, claims: Sequence[RecordedClaim]) -> Iterator[_Container]:
    """Yield the containers whose claims say which memory they get."""
    if not any(claim.held is not None and (claim.held.nodes or claim.held.mems) for claim in claims):
        return
    records = [claim.record for claim in claims]
    pods = pod_names(records)
    for seen in require_visible(root, pod_uids(records)).containers:
        theirs = claims_in(claims, seen.env)
        expected = expected_memory(held for _, held in theirs)
        if expected:
            yield _Container(seen, pods.get(seen.pod, seen.pod), theirs, expected)


def _key(claim: RecordedClaim) -> Key:
    return claim.driver, claim.record.uid


def _says_memory(claim: RecordedClaim) -> bool:
    return claim.held is not None and bool(expected_memory((claim.held,)))


def _document(effective: Effective) -> dict[str, Any]:
    pages = {page_size_name(size): _bytes(limit) for size, limit in effective.hugepages}
    return {"nodes": None if effective.nodes is None else str(effective.nodes), "hugepages": pages}


def _bytes(limit: int) -> int | None:
    """Return a limit as documents have it: None for any amount."""
    return None if limit >= NO_LIMIT else limit


def _all_ok(containers: Iterable[Mapping[str, Any]]) -> bool | None:
    verdicts = [each["ok"] for each in containers]
    return False if False in verdicts else None if None in verdicts or not verdicts else True


def _sum(values: Mapping[str, float] | None) -> int | None:
    return None if values is None else int(sum(values.values()))


def _amounts(pages: Mapping[str, int | None]) -> str:
    return ", ".join(f"{'any' if limit is None else _amount(limit)} in {size}" for size, limit in pages.items()) or "-"


def _amount(size: int | None) -> str:
    return "not seen" if size is None else str(Quantity.binary(-(-size // _MIB) * _MIB))
