"""What the kernel says that a process has used: time on a CPU and turns given up, of all its threads."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process has used so far.

    Attributes:
        cpu: microseconds on a CPU, user and system.
        switches: voluntary context switches: how often a thread went to sleep.
    """

    cpu: float
    switches: int

    def since(self, before: Usage) -> Usage:
        """What was used between the two."""
        return Usage(self.cpu - before.cpu, self.switches - before.switches)


def usage(pid: int) -> Usage:
    """What the process has used; threads that have ended are left out, which neither driver's do between calls."""
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
    """MiB of memory that the process has now."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE / _MIB
