"""What a process has used according to the kernel: CPU time and context switches of all its threads."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Usage:
    """A process's usage so far.

    Attributes:
        cpu: microseconds on a CPU, user and system.
        switches: voluntary context switches, that is, how often a thread went to sleep.
    """

    cpu: float
    switches: int

    def since(self, before: Usage) -> Usage:
        """The usage between the two."""
        return Usage(self.cpu - before.cpu, self.switches - before.switches)


def usage(pid: int) -> Usage:
    """The process's usage. Ended threads are not counted; neither driver ends threads between calls."""
    cpu, switches = 0, 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            cpu += int((task / "schedstat").read_text().split()[0])
            lines = (task / "status").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        switches += next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
    return Usage(cpu / 1000, switches)


def resident(pid: int) -> float:
    """The process's resident memory in MiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE / _MIB
