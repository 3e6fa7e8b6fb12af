"""Counters of the kernel for each CPU: interrupts, and the time that tasks ran.

The kernel shows the counters of online CPUs only. If it does not show one of a claim's CPUs, when the claim began or
now, the disturbances of the claim are unknown.

Sources: Documentation/filesystems/proc.rst (`/proc/interrupts`, `/proc/stat`) and scheduler/sched-stats.rst.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from dranode.api.cpuset import CPUSet
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.hooks import Disturbance

_CPU: Final = re.compile(r"CPU(\d{1,18})\b", re.ASCII)
_COUNT: Final = re.compile(r"\d{1,20}", re.ASCII)
_NANO: Final = 1e-9
# USER_HZ is 100 on every architecture on which Kubernetes runs.
_TICK: Final = 0.01
# The seventh number of a line `cpu<N>` in /proc/schedstat is the time that tasks ran there, in nanoseconds.
_RAN: Final = 6
# The first numbers of a line in /proc/stat: user, nice, system. Time in guests is part of user and nice.
_TASKS: Final = 3
SCHEDSTAT: Final = "schedstat"
STAT: Final = "stat"


class Begun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The counters of a claim's CPUs when it began.

    Attributes:
        interrupts: how often each interrupt had fired on them, by its label in `/proc/interrupts`; None if the kernel
            did not show all of them.
        busy: how many seconds tasks had run on them.
        source: the file that this comes from; empty if there is none.
    """

    interrupts: Mapping[str, int] | None = None
    busy: float = 0.0
    source: str = ""


class CPUCounters(msgspec.Struct, frozen=True):
    """The counters of all CPUs at one moment.

    Attributes:
        interrupts: how often each interrupt has fired on each CPU, by its label.
        names: the device or purpose of each interrupt, by its label.
        busy: how many seconds tasks have run on each CPU.
        source: the file that this comes from; empty if there is none.
        shown: the CPUs whose interrupts the kernel shows.
    """

    interrupts: Mapping[str, Mapping[int, int]] = {}
    names: Mapping[str, str] = {}
    busy: Mapping[int, float] = {}
    source: str = ""
    shown: CPUSet = msgspec.field(default_factory=CPUSet)

    def begin(self, cpus: CPUSet) -> Begun:
        """Return the counters of these CPUs, to be compared with later."""
        source = self._source(cpus)
        return Begun(interrupts=self._fired(cpus), busy=self._ran(cpus) if source else 0.0, source=source)

    def since(self, begun: Begun, claim: ClaimRef, cpus: CPUSet) -> Disturbance:
        """Return what happened on a claim's CPUs since it began."""
        disturbance = Disturbance(claim, cpus)
        if (source := self._source(cpus)) and source == begun.source:
            disturbance = replace(disturbance, busy=max(0.0, self._ran(cpus) - begun.busy))
        now, before = self._fired(cpus), begun.interrupts
        if now is None or before is None:
            return disturbance
        # If an interrupt number was given to another device, its counter starts at 0 again.
        starts = {label: before.get(label, 0) for label in now}
        fired = {label: count - starts[label] if count >= starts[label] else count for label, count in now.items()}
        named = {f"{label} {self.names[label]}".strip(): (label, count) for label, count in fired.items() if count}
        return replace(
            disturbance,
            interrupts={name: count for name, (label, count) in named.items() if label.isdecimal()},
            kernel={name: count for name, (label, count) in named.items() if not label.isdecimal()},
        )

    def _source(self, cpus: CPUSet) -> str:
        return self.source if cpus <= CPUSet(self.busy) else ""

    def _fired(self, cpus: CPUSet) -> dict[str, int] | None:
        if not cpus <= self.shown:
            return None
        sums = {label: sum(counts.get(cpu, 0) for cpu in cpus) for label, counts in self.interrupts.items()}
        return {label: count for label, count in sums.items() if count}

    def _ran(self, cpus: CPUSet) -> float:
        return sum(self.busy.get(cpu, 0.0) for cpu in cpus)


def cpu_counters(interrupts: str, schedstat: str, stat: str) -> CPUCounters:
    """Parse the texts of these files of `/proc`; a missing file is empty."""
    fired: dict[str, Mapping[int, int]] = {}
    names: dict[str, str] = {}
    shown = CPUSet()
    for label, counts, name in _interrupt_lines(interrupts):
        fired[label], names[label], shown = counts, name, CPUSet(counts)
    ran = {cpu: numbers[_RAN] * _NANO for cpu, numbers in _cpu_numbers(schedstat) if len(numbers) > _RAN}
    if ran:
        return CPUCounters(fired, names, ran, SCHEDSTAT, shown)
    ticks = {cpu: sum(numbers[:_TASKS]) * _TICK for cpu, numbers in _cpu_numbers(stat)}
    return CPUCounters(fired, names, ticks, STAT if ticks else "", shown)


def _interrupt_lines(text: str) -> Iterator[tuple[str, Mapping[int, int], str]]:
    head, *lines = text.splitlines() or [""]
    cpus = [int(number) for number in _CPU.findall(head)]
    for line in lines:
        label, colon, rest = line.partition(":")
        words = rest.split(maxsplit=len(cpus))
        counts = [int(word) for word in words[: len(cpus)] if _COUNT.fullmatch(word)]
        # The lines ERR and MIS have a single number for all CPUs.
        if colon and cpus and len(counts) == len(cpus):
            name = re.split(r"\s{2,}", words[len(cpus)].strip())[-1] if len(words) > len(cpus) else ""
            yield label.strip(), dict(zip(cpus, counts, strict=True)), name


def _cpu_numbers(text: str) -> Iterator[tuple[int, list[int]]]:
    """Yield the CPU and the numbers of each line `cpu<N> ...`."""
    for line in text.splitlines():
        first, *words = line.split() or [""]
        number = first.removeprefix("cpu")
        if first != number and all(map(_COUNT.fullmatch, (number, *words))):
            yield int(number), [int(word) for word in words]
