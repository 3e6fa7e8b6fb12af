"""Decides whether CPUs that claims want quiet are: which devices interrupted them, and which processes ran there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dranode.driver.claims.hooks import Disturbance
from dranode.tools.diagnosis.facts import Facts, Fault

# An interrupt that was on its way when it was moved fires once more.
_LATE: Final = 1
_NAMED: Final = 5


def interrupted(facts: Facts) -> Iterator[Fault]:
    """Devices have interrupted CPUs that a claim wants quiet, since it began."""
    for each in _disturbances(facts):
        often = sorted((-count, name) for name, count in (each.interrupts or {}).items() if count > _LATE)
        if often:
            names = ", ".join(f"{name} ({-count} times)" for count, name in often[:_NAMED])
            more = f" and {len(often) - _NAMED} more" if len(often) > _NAMED else ""
            yield Fault(
                f"claim {each.claim} wants CPUs {each.cpus} quiet, and devices have interrupted them since it began: "
                f"{names}{more}",
                "see the driver's log for what the kernel refuses to move and why; what it manages itself keeps off "
                f"with isolcpus=managed_irq,domain,{each.cpus} on the kernel's command line",
            )


def shared_with_processes(facts: Facts) -> Iterator[Fault]:
    """Threads other than the claim's have run on CPUs that it wants quiet."""
    for each in _disturbances(facts):
        if each.processes:
            names = ", ".join(each.processes[:_NAMED])
            more = f" and {len(each.processes) - _NAMED} more" if len(each.processes) > _NAMED else ""
            yield Fault(
                f"claim {each.claim} wants CPUs {each.cpus} quiet, and threads that have not that claim were the "
                f"last to run there: {names}{more}",
                "keep them off with AllowedCPUs= of their systemd units, or give them another affinity (taskset), and "
                f"the kernel's with isolcpus={each.cpus} on its command line; dranode claims --verify says how long "
                "others ran",
            )


def settings_lost(facts: Facts) -> Iterator[Fault]:
    """Settings of the machine that claims have changed cannot be put back."""
    for records in facts.node.records if facts.node is not None else ():
        if records.unrestorable:
            yield Fault(f"{records.driver}: {records.unrestorable}", "reboot the node once no such claim runs there")


def _disturbances(facts: Facts) -> Iterator[Disturbance]:
    for records in facts.node.records if facts.node is not None else ():
        yield from records.disturbances
