"""Asks the kernel which CPUs and which memory containers may use, for no longer than a runtime can wait."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from msgspec.structs import replace

from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.pinning.containers import Container
from dranode.driver.core.pinning.effective import Effective
from dranode.driver.machine.cgroups import Cgroups, cgroup_folder

log = logging.getLogger(__name__)

# How long cgroups may be read while the runtime waits, which does so for 2 s.
_READING: Final = 0.5
_CPUS_ALONE: Final = Effective(cpus=CPUSet())


def kernel_limits(cgroups: Cgroups, container: Container, expected: Effective) -> Effective:
    """Return what the kernel says of a container, as far as `expected` has something to compare it with."""
    folder = cgroup_folder(container.cgroup)
    cpus = None if expected.cpus is None else cgroups.effective_cpus(folder)
    return replace(cgroups.memory(folder, expected), cpus=cpus)


def limits_in_time(
    cgroups: Cgroups, asked: Iterable[tuple[Container, Effective]], clock: Callable[[], float]
) -> dict[str, Effective]:
    """Return the limits of containers by id, of those of which the kernel says some in that time.

    Args:
        cgroups: where they are read.
        asked: the containers, the most important first, each with what there is to compare the kernel's word with.
        clock: seconds, monotonic.
    """
    until = clock() + _READING
    limits: dict[str, Effective] = {}
    for container, expected in asked:
        if clock() > until:
            # The verifier looks at all of them in a moment.
            log.warning("pod=%s container=%s: not every cgroup could be read", container.pod, container.name)
            break
        effective = kernel_limits(cgroups, container, expected)
        if effective:
            limits[container.id] = effective
    return limits


def kernel_cpus(cgroups: Cgroups, containers: Iterable[Container], clock: Callable[[], float]) -> dict[str, CPUSet]:
    """Return the CPUs of containers by id, of those of which the kernel says some in the time of `limits_in_time`."""
    limits = limits_in_time(cgroups, ((each, _CPUS_ALONE) for each in containers), clock)
    return {key: effective.cpus for key, effective in limits.items() if effective.cpus is not None}
