"""Reads what has disturbed claims that want quiet CPUs, with the processes that ran there."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from dranode.driver.core.api.errors import LedgerError
from dranode.driver.core.claims.disturbance import Disturbance
from dranode.driver.core.claims.hooks import Tunes
from dranode.driver.core.claims.plugin import Plugin
from dranode.driver.core.claims.record import Record
from dranode.driver.core.diagnosis.container_cgroups import Process, is_pod_folder
from dranode.driver.machine.processes import processes, threads_last_on
from dranode.driver.machine.root import Root
from dranode.driver.node.ledger_rows import Contents, decoded_notes


def read_unrestorable(plugin: Plugin, contents: Contents) -> str:
    """Return why settings that the driver's claims have changed cannot be put back; empty if they can."""
    if not isinstance(plugin, Tunes):
        return ""
    try:
        return plugin.unrestorable(decoded_notes(contents))
    except LedgerError as error:
        return f"settings that claims have changed cannot be put back: {error}"


def read_disturbances(files: Root, plugin: Plugin, contents: Contents) -> tuple[Disturbance, ...]:
    """Return what has disturbed the driver's claims; none where the driver tunes nothing for any.

    Raises:
        LedgerError: the driver's notes are damaged.
    """
    if not isinstance(plugin, Tunes) or not contents.notes:
        return ()
    found = tuple(plugin.disturbances(contents.records, decoded_notes(contents)))
    running = tuple(processes(files)) if found else ()
    owners = {record.uid: record for record in contents.records}
    return tuple(
        replace(each, processes=tuple(_intruders(files, each, owners[each.claim.uid], running))) for each in found
    )


def _intruders(files: Root, disturbed: Disturbance, owner: Record, running: Iterable[Process]) -> Iterable[str]:
    for process in running:
        own = any(is_pod_folder(part, pod.uid) for pod in owner.pods for part in process.cgroup.split("/"))
        if not own and threads_last_on(files, process.pid, disturbed.cpus & process.cpus):
            yield f"{process.name} ({process.pid})"
