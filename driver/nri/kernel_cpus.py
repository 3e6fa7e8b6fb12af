"""Asks the kernel on which CPUs containers may run, for no longer than a runtime can wait."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.pinning.containers import Container
from dranode.driver.machine.cgroups import Cgroups, cgroup_folder

log = logging.getLogger(__name__)

# How long cgroups may be read while the runtime waits, which does so for 2 s.
_READING: Final = 0.5


def kernel_cpus(cgroups: Cgroups, containers: Iterable[Container], clock: Callable[[], float]) -> dict[str, CPUSet]:
    """Return the CPUs of containers by id, of those of which the kernel says some in that time.

    Args:
        cgroups: where they are read.
        containers: which are asked for, the most important first.
        clock: seconds, monotonic.
    """
    until = clock() + _READING
    found: dict[str, CPUSet] = {}
    for container in containers:
        if clock() > until:
            # The verifier looks at all of them in a moment.
            log.warning("pod=%s container=%s: not every cgroup could be read", container.pod, container.name)
            break
        cpus = cgroups.effective_cpus(cgroup_folder(container.cgroup))
        if cpus is not None:
            found[container.id] = cpus
    return found
