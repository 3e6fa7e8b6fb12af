"""A made-up machine whose settings of interrupts and unbound kernel work may be written, in memory alone.

So the local run shows what quiet claims do, and nothing of the machine on which it runs is changed. Everything else is
refused as on all machines that are not the host.
"""

# ruff: noqa: D102 - the protocol Root says what its methods promise

from __future__ import annotations

import errno
import os
import re
from typing import Final

from dranode.driver.core.api.cpuset import CPUSet, mask_text
from dranode.driver.machine.confined import ConfinedFiles, ConfinedRoot

_LISTS: Final = re.compile(r"proc/irq/[0-9]+/smp_affinity_list", re.ASCII)
_MASKS: Final = frozenset(("proc/irq/default_smp_affinity", "sys/devices/virtual/workqueue/cpumask"))


class RehearsedRoot(ConfinedRoot):
    """A made-up machine that takes settings as the kernel does: CPUs, and at least one of them."""

    def __init__(self, files: ConfinedFiles) -> None:
        super().__init__(files)
        self._written: dict[str, str] = {}

    def read_bytes(self, path: str) -> bytes:
        written = self._written.get(path)
        return super().read_bytes(path) if written is None else f"{written}\n".encode()

    def write(self, path: str, content: str) -> None:
        if path not in _MASKS and not _LISTS.fullmatch(path):
            super().write(path, content)
        super().read_bytes(path)  # what is not there cannot be written
        try:
            cpus = (CPUSet.parse_mask if path in _MASKS else CPUSet.parse)(content.strip())
        except ValueError as error:
            raise OSError(errno.EINVAL, str(error), path) from error
        if not cpus:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        self._written[path] = mask_text(cpus) if path in _MASKS else str(cpus)
