"""Prepare of a claim over three drivers in one process beside one driver's, in the form that the DaemonSet runs.

kubelet calls the drivers of a claim one after the other, and each of them records, durably, what it gave. So a claim
over three drivers is three calls. They are compared in CPU time of the driver's process and by the clock, as kubelet
waits for them, with an API server in a process of its own, connected by TLS, that answers at once and later; and in CPU
time until the claim's status is written as well.
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
from typing import Any, Final

from dranode.driver.claims.answers import Refused
from dranode.driver.claims.held import ClaimRef
from dranode.sim.local.kubelet import KubeletError, StandInKubelet
from tests.bench.peer.surroundings import Api, api_server, uid
from tests.bench.table import Row
from tests.fakes.waiting import PATIENCE

_ROUNDS: Final = 150
# Unmeasured ones, while modules are still being loaded.
_WARM_UP: Final = 20
_MACHINE: Final = "sockets=2,cores=8,gpus=2"
_GOAL: Final = 1.3
_MIB: Final = 1 << 20
# Seconds after which the API server answers.
_DELAYS: Final = (0.0, 0.002, 0.01)
# Status is written once nothing has been said of claims for a second.
_WRITTEN_SECONDS: Final = 2.0
_WRITTEN_ROUNDS: Final = 10
_RESULTS: Final[Mapping[str, tuple[str, dict[str, str]]]] = {
    "dra.cpu": ("cpudevnuma000", {"dra.cpu/cpu": "1"}),
    "dra.memory": ("memory-numa0", {"size": "64Mi"}),
    "dra.gpu": ("gpu-0000-17-00-0", {}),
}
_DRIVERS: Final = {"cpu": "dra.cpu", "memory": "dra.memory", "gpu": "dra.gpu"}
_SHAPES: Final[Mapping[str, Mapping[str, str]]] = {
    "cpu alone": {"cpu": "dra.cpu"},
    "cpu,gpu": {"cpu": "dra.cpu", "gpu": "dra.gpu"},
    "three": _DRIVERS,
}


@dataclass(frozen=True)
class _Cost:
    """The cost of a Prepare in microseconds: CPU, and by the clock."""

    cpu: float
    clock: float


def _claim(number: int, drivers: Mapping[str, str]) -> dict[str, Any]:
    """Claim `number` as an API server has it, with a result of every driver."""
    requests = [
        {"name": name, "exactly": {"deviceClassName": driver, "count": 1, "allocationMode": "ExactCount"}}
        for name, driver in drivers.items()
    ]
    results = [
        {
            "request": name,
            "driver": driver,
            "pool": "node",
            "device": _RESULTS[driver][0],
            **({"consumedCapacity": _RESULTS[driver][1], "shareID": uid(number)} if _RESULTS[driver][1] else {}),
        }
        for name, driver in drivers.items()
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"namespace": "default", "name": f"claim-{number}", "uid": uid(number), "resourceVersion": "7"},
        "spec": {"devices": {"requests": requests}},
        "status": {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": f"pod-{number}", "uid": f"pod-{number}"}],
        },
    }


class _Process:
    """A driver's process with some drivers, and kubelet's side of it."""

    def __init__(self, folder: Path, api: Api, number: int, drivers: Mapping[str, str]) -> None:
        """Start it; `drivers` are short names with what they publish under, `number` is their claim's."""
        self._names = frozenset(drivers.values())
        self._ref = ClaimRef("default", f"claim-{number}", uid(number))
        registry = folder / "kubelet" / "plugins_registry"
        registry.mkdir(parents=True)
        command: list[str | Path] = [Path(sys.executable).with_name("dranode"), "serve", "--drivers", ",".join(drivers)]
        command += ["--kubeconfig", api.kubeconfig(folder / "kubeconfig"), "--pod-uid", "0f3c7f0c"]
        command += ["--kubelet-root", folder / "kubelet", "--cdi-dir", folder / "cdi", "--claim-status", "on"]
        command += ["--machine", _MACHINE, "--node-name", "node", "--nri-socket", "none"]
        command += ["--http-address", "127.0.0.1:0", "--metrics-address", "127.0.0.1:0"]
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(command, stderr=log)
        self.kubelet = StandInKubelet(registry)
        self.kubelet.restart()
        self.kubelet.register(list(self._names), PATIENCE)

    def prepare(self) -> tuple[float, float]:
        """Prepare its claim; CPU seconds of it and seconds."""
        before, began = self.cpu(), time.perf_counter()
        answer = self.kubelet.prepare({self._ref: self._names})[self._ref]
        took, used = time.perf_counter() - began, self.cpu() - before
        if isinstance(answer, Refused):
            raise KubeletError(f"the benchmark's own claim is refused: {answer.reason}")
        return used, took

    def unprepare(self) -> None:
        """Take it back."""
        self.kubelet.unprepare({self._ref: self._names})

    def cpu(self) -> float:
        """The CPU seconds that it has used."""
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
    """Measure a Prepare of every process, taken in turn."""
    cpu: dict[str, list[float]] = {name: [] for name in processes}
    clock: dict[str, list[float]] = {name: [] for name in processes}
    for number in range(_WARM_UP + _ROUNDS):
        for name, process in processes.items():
            used, took = process.prepare()
            process.unprepare()
            if number >= _WARM_UP:
                cpu[name].append(used)
                clock[name].append(took)
    # Medians, because threads of the process do other work meanwhile.
    return {name: _Cost(statistics.median(cpu[name]) * 1e6, statistics.median(clock[name]) * 1e6) for name in processes}


def _with_status(processes: Mapping[str, _Process]) -> dict[str, float]:
    """Measure the CPU of a Prepare of every process until the claim's status is written, in microseconds."""
    cpu: dict[str, list[float]] = {name: [] for name in processes}
    for _ in range(_WRITTEN_ROUNDS):
        before = {name: process.cpu() for name, process in processes.items()}
        for process in processes.values():
            process.prepare()
        time.sleep(_WRITTEN_SECONDS)
        for name, process in processes.items():
            cpu[name].append(process.cpu() - before[name])
            process.unprepare()
        # The status is taken back, too.
        time.sleep(_WRITTEN_SECONDS)
    return {name: statistics.median(cpu[name]) * 1e6 for name in processes}


def bench() -> Iterator[Row]:
    """Prepare of a claim over one driver and over three, and the memory of a process with each."""
    with tempfile.TemporaryDirectory(prefix="dn-") as name, contextlib.ExitStack() as stack:
        claims = [_claim(number, drivers) for number, drivers in enumerate(_SHAPES.values())]
        api = stack.enter_context(api_server(claims))
        processes: dict[str, _Process] = {}
        for number, (shape, drivers) in enumerate(_SHAPES.items()):
            folder = Path(name, str(number))
            folder.mkdir()
            processes[shape] = _Process(folder, api, number, drivers)
            stack.callback(processes[shape].close)
        for delay in _DELAYS:
            api.answer_after(delay)
            costs = _costs(processes)
            yield from _rows(f"API server at {delay * 1000:.0f} ms", costs["three"], costs["cpu alone"])
        api.answer_after(0.0)
        written = _with_status(processes)
        three, alone = written["three"], written["cpu alone"]
        yield Row("Prepare over three drivers until its status is written, CPU", three, "us", alone, "cpu alone")
        grown = processes["three"].resident - processes["cpu,gpu"].resident
    yield Row("memory with the memory driver", grown, "MiB", 2.0, "2 MiB", "at most 2", grown <= 2.0)


def _rows(where: str, three: _Cost, alone: _Cost) -> Iterator[Row]:
    for what, mine, floor in (("CPU", three.cpu, alone.cpu), ("by the clock", three.clock, alone.clock)):
        target = f"at most {_GOAL}" if what == "CPU" else ""
        kept = mine <= _GOAL * floor if target else None
        yield Row(f"Prepare over three drivers, {where}, {what}", mine, "us", floor, "cpu alone", target, kept)
        yield Row(f"one call of these, {where}, {what}", mine / len(_DRIVERS), "us", floor, "cpu alone")
