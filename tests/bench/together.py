"""Prepare of a claim over three drivers in one process beside one driver's, in CPU time of the driver's process.

kubelet calls the drivers of a claim one after the other, and each of them records, durably, what it gave. So a claim
over three drivers is three calls. By the clock they are compared as well, as kubelet waits for them.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dranode.driver.core.api.documents import decode
from dranode.driver.core.api.resource import ResourceClaim
from dranode.driver.core.claims.answers import Refused
from dranode.driver.core.claims.held import ClaimRef
from dranode.driver.local.kubelet import KubeletError, StandInKubelet
from dranode.driver.local.store import Store
from tests.bench.table import Row
from tests.fakes.waiting import PATIENCE

_ROUNDS: Final = 150
_MACHINE: Final = Path(__file__).parents[2] / "examples" / "gpu-server.yaml"
_GOAL: Final = 1.3
_MIB: Final = 1 << 20
_RESULTS: Final[Mapping[str, tuple[str, dict[str, str]]]] = {
    "dra.cpu": ("cpudevnuma000", {"dra.cpu/cpu": "1"}),
    "dra.memory": ("memory-numa0", {"size": "64Mi"}),
    "dra.gpu": ("gpu-0000-17-00-0", {}),
}


@dataclass(frozen=True)
class _Cost:
    """The cost of a Prepare and its Unprepare in microseconds: CPU, and by the clock; and what the process has."""

    cpu: float
    clock: float
    resident: float


class _Process:
    """A driver's process with some drivers, and kubelet's side of it."""

    def __init__(self, folder: Path, drivers: Mapping[str, str]) -> None:
        """Start it; `drivers` are short names with what they publish under."""
        self._store, self._names = Store(folder / "store"), tuple(drivers.values())
        registry = folder / "kubelet" / "plugins_registry"
        registry.mkdir(parents=True)
        command: list[str | Path] = [Path(sys.executable).with_name("dranode"), "serve", "--drivers", ",".join(drivers)]
        command += ["--store", folder / "store", "--kubelet-root", folder / "kubelet", "--cdi-dir", folder / "cdi"]
        command += ["--machine", _MACHINE, "--node-name", "node", "--nri-socket", "none", "--http-address", "none"]
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(command, stderr=log)
        self.kubelet = StandInKubelet(registry)
        self.kubelet.restart()
        self.kubelet.register(list(self._names), PATIENCE)

    def once(self, number: int) -> tuple[float, float]:
        """Prepare and unprepare a claim with a result of every driver; CPU seconds and seconds of the Prepare."""
        ref = ClaimRef("default", f"claim-{number}", f"7f0c1f0e-0000-4000-8000-{number:012d}")
        results = [
            {
                "request": driver.removeprefix("dra."),
                "driver": driver,
                "pool": "node",
                "device": _RESULTS[driver][0],
                **({"consumedCapacity": _RESULTS[driver][1], "shareID": ref.uid} if _RESULTS[driver][1] else {}),
            }
            for driver in self._names
        ]
        document = {
            "metadata": {"namespace": ref.namespace, "name": ref.name, "uid": ref.uid},
            "status": {"allocation": {"devices": {"results": results}}},
        }
        self._store.put(decode(ResourceClaim, document))
        drivers = {ref: frozenset(self._names)}
        before, began = self._cpu(), time.perf_counter()
        answer = self.kubelet.prepare(drivers)[ref]
        took, used = time.perf_counter() - began, self._cpu() - before
        if isinstance(answer, Refused):
            raise KubeletError(f"the benchmark's own claim is refused: {answer.reason}")
        self.kubelet.unprepare(drivers)
        self._store.remove(ResourceClaim, ref.namespace, ref.name)
        return used, took

    def _cpu(self) -> float:
        # In nanoseconds, where stat counts ticks of 10 ms.
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9

    @property
    def resident(self) -> float:
        """Its memory in MiB, without what it shares with other processes."""
        lines = Path(f"/proc/{self.process.pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) * 1024 / _MIB

    def close(self) -> None:
        """End it."""
        self.kubelet.close()
        self.process.terminate()
        self.process.wait()


def _costs(processes: Mapping[str, _Process]) -> dict[str, _Cost]:
    """Measure every process, taken in turn."""
    cpu: dict[str, float] = dict.fromkeys(processes, 0.0)
    clock: dict[str, list[float]] = {name: [] for name in processes}
    for number in range(_ROUNDS):
        for name, process in processes.items():
            used, took = process.once(number)
            cpu[name] += used
            clock[name].append(took)
    # At the start modules are still being loaded.
    return {
        name: _Cost(cpu[name] / _ROUNDS * 1e6, statistics.median(clock[name]) * 1e6, process.resident)
        for name, process in processes.items()
    }


def bench() -> Iterator[Row]:
    """Prepare of a claim over one driver and over three, and the memory of a process with each."""
    every = {"cpu": "dra.cpu", "memory": "dra.memory", "gpu": "dra.gpu"}
    shapes = {"cpu alone": {"cpu": "dra.cpu"}, "cpu,gpu": {"cpu": "dra.cpu", "gpu": "dra.gpu"}, "three": every}
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory(prefix="dn-") as name:
        processes: dict[str, _Process] = {}
        for number, (shape, drivers) in enumerate(shapes.items()):
            folder = Path(name, str(number))
            folder.mkdir()
            processes[shape] = _Process(folder, drivers)
            stack.callback(processes[shape].close)
        costs = _costs(processes)
    alone, two, three = (costs[shape] for shape in shapes)
    for what, mine, floor in (("CPU", three.cpu, alone.cpu), ("by the clock", three.clock, alone.clock)):
        target = f"at most {_GOAL}" if what == "CPU" else ""
        kept = mine <= _GOAL * floor if target else None
        yield Row(f"Prepare over three drivers, {what}", mine, "us", floor, "cpu alone", target, kept)
        yield Row(f"one call of these, {what}", mine / len(every), "us", floor, "cpu alone")
    grown = three.resident - two.resident
    yield Row("memory with the memory driver", grown, "MiB", 2.0, "2 MiB", "at most 2", grown <= 2.0)
