"""Reports what has disturbed claims that want quiet CPUs, and whether the notes of this boot can be used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from dranode.api.cpuset import CPUSet
from dranode.api.errors import DocumentError
from dranode.cpu.isolation.cpu_counters import Begun, CPUCounters, cpu_counters
from dranode.cpu.isolation.settings import TuningNotes, unrestorable
from dranode.cpu.options import Isolation
from dranode.cpu.treatment import isolated_cpus
from dranode.driver.claims.hooks import Disturbance
from dranode.driver.claims.record import Record
from dranode.driver.machine.root import Root, boot_id


def disturbances(root: Root, claims: Iterable[Record], notes: Any) -> Iterator[Disturbance]:
    """Yield what has happened on the CPUs of each claim that wants them quiet, as far as it is known."""
    try:
        begun = TuningNotes.read(notes, boot_id(root)).begun
    except DocumentError:
        return
    wanted = [(claim, cpus) for claim in claims if (cpus := _quiet_cpus(claim))]
    now = read_cpu_counters(root) if wanted else CPUCounters()
    for claim, cpus in wanted:
        yield now.since(begun.get(claim.uid, Begun()), claim.ref, cpus)


def _quiet_cpus(claim: Record) -> CPUSet:
    """Return the CPUs that a claim wants quiet; all that it holds if its record is not clear about it."""
    try:
        return isolated_cpus(claim, Isolation.QUIET)
    except DocumentError:
        return claim.held


def loss(root: Root, notes: Any) -> str:
    """Return why settings that claims have changed cannot be restored, according to the notes; empty if they can."""
    try:
        return "".join(unrestorable(TuningNotes.read(notes, boot_id(root))))
    except DocumentError as error:
        return f"the original settings are on record in a form that this version cannot read: {error}"


def read_cpu_counters(root: Root) -> CPUCounters:
    """Read the counters of all CPUs; counters that the kernel does not show are missing."""
    return cpu_counters(*(_text(root, f"proc/{name}") for name in ("interrupts", "schedstat", "stat")))


def _text(root: Root, path: str) -> str:
    try:
        return root.read_bytes(path).decode("utf-8", "replace")
    except OSError:
        return ""
