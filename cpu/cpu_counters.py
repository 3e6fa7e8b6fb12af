"""Counters of the kernel for each CPU: interrupts, and the time that tasks ran.

Sources: Documentation/filesystems/proc.rst (`/proc/interrupts`, `/proc/stat`) and scheduler/sched-stats.rst.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.claims.disturbance import Disturbance
from dranode.driver.core.claims.held import ClaimRef

_CPU: Final = re.compile(r"CPU(\d+)", re.ASCII)
_NANO: Final = 1e-9
# USER_HZ, in which the kernel writes times on every architecture of today.
_TICK: Final = 0.01
# The numbers of a line `cpu<N>` of /proc/schedstat: the seventh is the time that tasks ran there, in nanoseconds.
_RAN: Final = 6
# Of /proc/stat: user, nice, system; guests are in user and nice.
_TASKS: Final = 3
SCHEDSTAT: Final = "schedstat"
STAT: Final = "stat"


class Begun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The counters of a claim's CPUs when it began.

    Attributes:
        interrupts: how often each interrupt had fired on them, by its label in `/proc/interrupts`.
        busy: how many seconds tasks had run on them.
        source: the file that says so; empty if none does.
    """

    interrupts: Mapping[str, int] = {}
    busy: float = 0.0
    source: str = ""


class CPUCounters(msgspec.Struct, frozen=True):
    """The counters of all CPUs at one moment.

    Attributes:
        interrupts: how often each interrupt has fired on each CPU, by its label.
        names: what each interrupt is of, by its label.
        busy: how many seconds tasks have run on each CPU.
        source: the file that says so; empty if none does.
    """

    interrupts: Mapping[str, Mapping[int, int]] = {}
    names: Mapping[str, str] = {}
    busy: Mapping[int, float] = {}
    source: str = ""

    def begin(self, cpus: CPUSet) -> Begun:
        """Return the counters of these CPUs, for later."""
        return Begun(interrupts=self._fired(cpus), busy=self._ran(cpus), source=self.source)

    def since(self, begun: Begun, claim: ClaimRef, cpus: CPUSet) -> Disturbance:
        """Return what happened on a claim's CPUs since it began."""
        fired = {label: count - begun.interrupts.get(label, 0) for label, count in self._fired(cpus).items()}
        named = {f"{label} {self.names[label]}".strip(): (label, count) for label, count in fired.items() if count > 0}
        return Disturbance(
            claim=claim,
            cpus=cpus,
            interrupts={name: count for name, (label, count) in named.items() if label.isdecimal()},
            kernel={name: count for name, (label, count) in named.items() if not label.isdecimal()},
            busy=max(0.0, self._ran(cpus) - begun.busy) if self.source and self.source == begun.source else None,
        )

    def _fired(self, cpus: CPUSet) -> dict[str, int]:
        sums = {label: sum(counts.get(cpu, 0) for cpu in cpus) for label, counts in self.interrupts.items()}
        return {label: count for label, count in sums.items() if count}

    def _ran(self, cpus: CPUSet) -> float:
        return sum(self.busy.get(cpu, 0.0) for cpu in cpus)


def cpu_counters(interrupts: str, schedstat: str, stat: str) -> CPUCounters:
    """Read the texts of these files of `/proc`; one that is not there is empty."""
    fired: dict[str, Mapping[int, int]] = {}
    names: dict[str, str] = {}
    for label, counts, name in _interrupt_lines(interrupts):
        fired[label], names[label] = counts, name
    ran = {cpu: numbers[_RAN] * _NANO for cpu, numbers in _cpu_numbers(schedstat) if len(numbers) > _RAN}
    if ran:
        return CPUCounters(fired, names, ran, SCHEDSTAT)
    ticks = {cpu: sum(numbers[:_TASKS]) * _TICK for cpu, numbers in _cpu_numbers(stat)}
    return CPUCounters(fired, names, ticks, STAT if ticks else "")


def _interrupt_lines(text: str) -> Iterator[tuple[str, Mapping[int, int], str]]:
    head, *lines = text.splitlines() or [""]
    cpus = [int(number) for number in _CPU.findall(head)]
    for line in lines:
        label, colon, rest = line.partition(":")
        words = rest.split(maxsplit=len(cpus))
        counts = [int(word) for word in words[: len(cpus)] if word.isdecimal()]
        # ERR and MIS have one number for all CPUs.
        if colon and cpus and len(counts) == len(cpus):
            name = re.split(r"\s{2,}", words[len(cpus)].strip())[-1] if len(words) > len(cpus) else ""
            yield label.strip(), dict(zip(cpus, counts, strict=True)), name


def _cpu_numbers(text: str) -> Iterator[tuple[int, list[int]]]:
    """Yield the CPU and the numbers of each line `cpu<N> ...`."""
    for line in text.splitlines():
        first, *words = line.split() or [""]
        number = first.removeprefix("cpu")
        if first != number and number.isdecimal() and all(map(str.isdecimal, words)):
            yield int(number), [int(word) for word in words]
