"""Load over the real sockets: `python -m tests.load.run --claims 20000 --callers 100 --minutes 10`.

Callers prepare, repeat and unprepare claims of a driver with the CPUs of a large node, while health streams stay open
and a runtime sends NRI events. Descriptors, threads, files and resident memory are read every few seconds. Latencies
are printed next to those of a single caller before and after, when nothing else happens.
"""

import argparse
import contextlib
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import grpc
import psutil

from dranode.api.documents import decode
from dranode.api.resource import ResourceClaim
from dranode.driver.local.store import Store
from dranode.proto import dra_v1_pb2 as api
from dranode.proto import drahealth_v1_pb2 as health
from dranode.proto import nri_v1alpha1_pb2 as nri
from dranode.proto.dra_v1_pb2_grpc import DRAPluginStub
from dranode.proto.drahealth_v1_pb2_grpc import DRAResourceHealthStub
from tests.fakes.nri import container, pod
from tests.fakes.waiting import PATIENCE
from tests.hostile.runtime import RunningContainer, Runtime

DRIVER: Final = "dra.cpu"
PROGRAM: Final = Path(sys.executable).with_name("dranode")
# One CPU for each claim plus shared ones; no real machine has as many yet.
MACHINE: Final = "sockets=2,numa=4,cores={cores},threads=2"
STREAMS: Final = 4
CONTAINERS: Final = 50
_LOOK_SECONDS: Final = 5.0
_ALONE: Final = 300
# The maximum number of claims that a caller has prepared at a time.
_HELD: Final = 16
# The permitted growth over the steady half, in percent.
GROWTH: Final = 2.0


class LoadError(Exception):
    """A call failed, or something grew."""


@dataclass(frozen=True)
class Figures:
    """The driver's usage at one moment; `files` are those in its folders except claims' files; `resident` is in KiB."""

    descriptors: int
    threads: int
    files: int
    resident: int


@dataclass
class Load:
    """One run.

    Attributes:
        latencies: seconds of each call, by method.
        failures: the first failure of each kind.
    """

    folder: Path
    claims: int
    latencies: dict[str, list[float]] = field(default_factory=lambda: {"Prepare": [], "Repeat": [], "Unprepare": []})
    failures: dict[str, str] = field(default_factory=dict)
    stopped: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    events: int = 0
    messages: int = 0

    @property
    def socket(self) -> Path:
        return self.folder / "kubelet" / "plugins" / DRIVER / "dra.sock"

    def write_claims(self) -> None:
        """Claims for one CPU each, spread over the NUMA nodes."""
        store = Store(self.folder / "store")
        for number in range(self.claims):
            result = {
                "request": "r", "driver": DRIVER, "pool": "node", "device": f"cpudevnuma{number % 8:03d}",
                "consumedCapacity": {"dra.cpu/cpu": "1"}, "shareID": f"00000000-0000-4000-8000-{number:012d}",
            }  # fmt: skip
            metadata = {"namespace": "default", "name": f"c{number}", "uid": f"uid-{number}"}
            status = {"allocation": {"devices": {"results": [result]}}}
            store.put(decode(ResourceClaim, {"metadata": metadata, "status": status}))

    @contextlib.contextmanager
    def driver(self) -> Iterator[psutil.Process]:
        """Run the driver, with a CPU for every second claim: at most half of them are prepared at a time."""
        (self.folder / "kubelet" / "plugins_registry").mkdir(parents=True)
        machine = MACHINE.format(cores=max(4, self.claims // 32 + 4))
        command = [
            str(PROGRAM), "serve", "--machine", machine, "--node-name", "node", "--http-address", "none",
            "--store", "store", "--kubelet-root", "kubelet", "--cdi-dir", "cdi", "--nri-socket", "nri.sock",
        ]  # fmt: skip
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)
        try:
            yield psutil.Process(process.pid)
            process.terminate()
            if status := process.wait(PATIENCE):
                raise LoadError(f"the driver ended with status {status}")
        finally:
            process.kill()
            process.wait()

    def figures(self, process: psutil.Process) -> Figures:
        data, cdi = self.folder / "kubelet" / "plugins" / DRIVER, self.folder / "cdi"
        paths = [*data.glob("*"), *cdi.glob("*")]
        files = sum("uid-" not in path.name for path in paths if path.is_file())
        return Figures(process.num_fds(), process.num_threads(), files, process.memory_info().rss >> 10)

    # --- who calls ---

    def call(self, channel: grpc.Channel, kind: str, number: int) -> None:
        method = "NodeUnprepareResources" if kind == "Unprepare" else "NodePrepareResources"
        claim = api.Claim(namespace="default", name=f"c{number}", uid=f"uid-{number}")
        request = getattr(api, f"{method}Request")(claims=[claim])
        began = time.monotonic()
        try:
            answer = getattr(DRAPluginStub(channel), method)(request, timeout=45, wait_for_ready=True)
            error = answer.claims[claim.uid].error
        except grpc.RpcError as failure:
            error = f"{failure.code()}: {failure.details()}"
        with self.lock:
            self.latencies[kind].append(time.monotonic() - began)
            if error:
                self.failures.setdefault(f"{kind}: {' '.join(error.split()[:8])}", error)

    def channel(self) -> grpc.Channel:
        return grpc.insecure_channel(f"unix:{self.socket}", options=[("grpc.use_local_subchannel_pool", 1)])

    def churn(self, numbers: range) -> None:
        """Prepare, repeat and unprepare the caller's own claims until the end, a few at a time."""
        dice, held = random.Random(numbers.start), list[int]()
        with self.channel() as channel:
            while not self.stopped.is_set():
                if held and (len(held) > _HELD or dice.random() < 0.5):
                    self.call(channel, "Unprepare", held.pop(dice.randrange(len(held))))
                    continue
                number = dice.choice(numbers)
                self.call(channel, "Repeat" if number in held else "Prepare", number)
                if number not in held:
                    held.append(number)
            for number in held:
                self.call(channel, "Unprepare", number)

    def alone(self) -> dict[str, list[float]]:
        """The latencies of a single caller."""
        before, self.latencies = self.latencies, {"Prepare": [], "Repeat": [], "Unprepare": []}
        with self.channel() as channel:
            for number in range(_ALONE):
                for kind in self.latencies:
                    self.call(channel, kind, number % self.claims)
        alone, self.latencies = self.latencies, before
        return alone

    def watch_health(self) -> None:
        """Open and read a health stream again and again."""
        with self.channel() as channel:
            while not self.stopped.is_set():
                watch = DRAResourceHealthStub(channel).NodeWatchResources
                stream = watch(health.NodeWatchResourcesRequest(), timeout=20, wait_for_ready=True)
                with contextlib.suppress(grpc.RpcError):
                    for _ in stream:
                        self.messages += 1
                        if self.stopped.is_set():
                            break
                stream.cancel()

    def run_containers(self) -> None:
        """Run a runtime whose containers come and go."""
        runtime = Runtime(self.folder / "nri.sock", lambda _container, _cpus: None)
        runtime.open()
        number = 0
        while not self.stopped.is_set():
            runtime.attend(0.01)
            if runtime.plugins:
                number += 1
                uid = f"pod-{number}"
                message = container(f"c{number}", uid, name="main", state=nri.CONTAINER_CREATED)
                runtime.create(RunningContainer(message, pod(uid)))
                self.events += 1
                if len(runtime.containers) > CONTAINERS:
                    runtime.stop(next(iter(runtime.containers.values())))
        runtime.close()


def measure(load: Load, callers: int, seconds: float) -> list[Figures]:
    """Run callers, streams and events for `seconds`; return the driver's usage every few seconds."""
    share = max(1, load.claims // callers)
    seen = []
    with load.driver() as process, ThreadPoolExecutor(callers + STREAMS + 1) as pool:
        idle = load.alone()
        work = [pool.submit(load.churn, range(share * number, share * (number + 1))) for number in range(callers)]
        work += [pool.submit(load.watch_health) for _ in range(STREAMS)]
        work.append(pool.submit(load.run_containers))
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0 and not any(each.done() for each in work):
            time.sleep(min(_LOOK_SECONDS, left))
            seen.append(load.figures(process))
        load.stopped.set()
        for each in work:
            each.result()
        after = load.alone()
        print_latencies({"idle, before": idle, "under load": load.latencies, "idle, after": after})
        print(f"at the end, without a claim: {load.figures(process)}")  # noqa: T201
        if names := [path.name for path in (load.folder / "cdi").iterdir()]:
            load.failures["left"] = f"{len(names)} files of claims are left, such as {names[0]}"
    return seen


def print_latencies(rows: dict[str, dict[str, list[float]]]) -> None:
    """Print milliseconds: the median, the 99th percentile and the maximum."""
    print(f"{'':14} {'call':10} {'calls':>8} {'p50 ms':>8} {'p99 ms':>8} {'max ms':>8}")  # noqa: T201
    for when, latencies in rows.items():
        for kind, seconds in latencies.items():
            if len(seconds) < 2:
                continue
            p99 = statistics.quantiles(seconds, n=100)[98]
            line = f"{1e3 * statistics.median(seconds):8.1f} {1e3 * p99:8.1f} {1e3 * max(seconds):8.1f}"
            print(f"{when:14} {kind:10} {len(seconds):8} {line}")  # noqa: T201


def grown(seen: list[Figures]) -> list[str]:
    """Return the figures whose median is higher in the last quarter than in the second quarter."""
    if len(seen) < 8:
        return [f"only {len(seen)} looks were taken"]
    quarter = len(seen) // 4
    earlier, later = seen[quarter : 2 * quarter], seen[-quarter:]
    wrong = []
    for name in ("descriptors", "threads", "files", "resident"):
        before = statistics.median(getattr(each, name) for each in earlier)
        after = statistics.median(getattr(each, name) for each in later)
        growth = 100 * (after - before) / before
        print(f"{name:12} {before:10.0f} -> {after:10.0f} {growth:+6.2f} %")  # noqa: T201
        if growth > GROWTH:
            wrong.append(f"{name} grew by {growth:.1f} %, from {before:.0f} to {after:.0f}")
    return wrong


def run(claims: int, callers: int, seconds: float) -> list[str]:
    """Take one run; return what is wrong."""
    with tempfile.TemporaryDirectory(prefix="load-", ignore_cleanup_errors=True) as folder:
        load = Load(Path(folder), claims)
        load.write_claims()
        seen = measure(load, callers, seconds)
        print(f"{load.events} containers, {load.messages} messages of health")  # noqa: T201
        return [*(f"{kind}: {text}" for kind, text in load.failures.items()), *grown(seen)]


def main() -> int:
    """Take one run; the exit status is 1 if a call failed or something grew."""
    parser = argparse.ArgumentParser(prog="python -m tests.load.run")
    parser.add_argument("--claims", type=int, default=20_000)
    parser.add_argument("--callers", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=10.0)
    options = parser.parse_args()
    wrong = run(options.claims, options.callers, 60 * options.minutes)
    for sentence in wrong:
        print(sentence)  # noqa: T201
    print("failed" if wrong else "no error, nothing grew")  # noqa: T201
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
