"""Two instances of a driver share a ledger while either is killed: no CPU is given twice and no answer is lost."""

import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

from dranode.api.cpuset import CPUSet
from dranode.api.resource import ResourceClaim
from dranode.driver.local.store import Store
from dranode.proto import dra_v1_pb2 as api
from dranode.proto.dra_v1_pb2_grpc import DRAPluginStub
from dranode.show.ledger_reading import read_ledger
from tests.fakes.drivers import allocated_claim
from tests.fakes.waiting import PATIENCE, eventually

PROGRAM: Final = Path(sys.executable).with_name("dranode")
DRIVER: Final = "dra.cpu"
SEED: Final = 20261120
CLAIMS: Final = 16
KILLS: Final = 4
WORKERS: Final = 3
# The minimum number of answers between two kills.
ANSWERS: Final = 20
INSTANCES: Final = ("old", "new")


def claim(number: int) -> ResourceClaim:
    devices = {request: f"cpudevnuma{(number + place) % 2:03d}" for place, request in enumerate(("r", "s"))}
    consumed = {"dra.cpu/cpu": str(1 + number % 3)}
    return allocated_claim(f"c{number}", DRIVER, devices, uid=f"uid-{number}", consumedCapacity=consumed)


@dataclass
class Instances:
    """The two processes in their folder."""

    folder: Path
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str) -> None:
        arguments = ["--machine", "sockets=1,numa=2,cores=24,threads=2", "--node-name", "node", "--pod-uid", name]
        places = ["--store", "store", "--kubelet-root", "kubelet", "--cdi-dir", "cdi"]
        edges = ["--nri-socket", "none", "--http-address", "none"]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [PROGRAM, "serve", *arguments, *places, *edges], cwd=self.folder, stderr=log
            )

    def stop(self, name: str, number: int) -> int:
        self.running[name].send_signal(number)
        return self.running[name].wait(PATIENCE)

    def call(self, name: str, method: str, number: int) -> Any:
        """The answer for one claim; None if the instance died before it answered."""
        socket = self.folder / "kubelet" / "plugins" / DRIVER / f"dra-{name}.sock"
        asked = [api.Claim(namespace="default", name=f"c{number}", uid=f"uid-{number}")]
        request = getattr(api, f"{method}Request")(claims=asked)
        with grpc.insecure_channel(f"unix:{socket}", options=[("grpc.max_reconnect_backoff_ms", 100)]) as channel:
            try:
                return getattr(DRAPluginStub(channel), method)(request, timeout=10).claims[f"uid-{number}"]
            except grpc.RpcError:
                return None


@dataclass
class Told:
    """The answers so far: a claim is `certain` between the answer to its Prepare and its next Unprepare call."""

    certain: dict[int, tuple[CPUSet, Any]] = field(default_factory=dict)
    unknown: set[int] = field(default_factory=set)
    answered: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def prepared(self, number: int, cpus: CPUSet, answer: Any) -> None:
        with self.lock:
            before = self.certain.get(number)
            assert before in (None, (cpus, answer)), "the two instances tell different things"
            for other, (taken, _) in self.certain.items():
                assert other == number or taken.isdisjoint(cpus), f"{number} and {other} both have {taken & cpus}"
            self.certain[number] = (cpus, answer)
            self.unknown.discard(number)
            self.answered += 1

    def begin(self, number: int, *, undo: bool) -> None:
        with self.lock:
            if undo:
                self.certain.pop(number, None)
            if number not in self.certain:
                self.unknown.add(number)

    def gone(self, number: int) -> None:
        with self.lock:
            self.unknown.discard(number)
            self.answered += 1


def cpus_of(folder: Path, number: int) -> CPUSet:
    spec = json.loads((folder / "cdi" / f"dra.k8s.io-cpu_claim-uid-{number}.json").read_bytes())
    (entry,) = spec["devices"][0]["containerEdits"]["env"]
    return CPUSet.parse(entry.removeprefix(f"DRA_CPUSET_uid-{number}="))


def disturb(instances: Instances, told: Told, own: list[int], seed: int, ended: threading.Event) -> None:
    """Prepare and unprepare these claims with either instance, until the end or the first wrong answer."""
    dice = random.Random(seed)
    try:
        while not ended.is_set():
            number, name = dice.choice(own), dice.choice(INSTANCES)
            undo = dice.random() < 0.45
            told.begin(number, undo=undo)
            answer = instances.call(name, "NodeUnprepareResources" if undo else "NodePrepareResources", number)
            if answer is None:
                ended.wait(0.02)
                continue
            assert answer.error == ""
            if undo:
                told.gone(number)
            else:
                told.prepared(number, cpus_of(instances.folder, number), list(answer.devices))
    finally:
        ended.set()


def kill(instances: Instances, told: Told, dice: random.Random, ended: threading.Event) -> None:
    """After a number of answers, kill one instance or both, and start them again."""
    before, ends = told.answered, time.monotonic() + PATIENCE
    ended.wait(dice.uniform(0.05, 0.3))
    while told.answered < before + ANSWERS and time.monotonic() < ends and not ended.wait(0.05):
        pass
    for name in dice.choice((INSTANCES[:1], INSTANCES[1:], INSTANCES)):
        instances.stop(name, signal.SIGKILL)
        instances.start(name)


@pytest.fixture
def instances() -> Iterator[Instances]:
    with tempfile.TemporaryDirectory(prefix="dranode-") as name:
        instances = Instances(Path(name))
        (instances.folder / "kubelet" / "plugins_registry").mkdir(parents=True)
        store = Store(instances.folder / "store")
        for number in range(CLAIMS):
            store.put(claim(number))
        yield instances
        for process in instances.running.values():
            process.kill()
            process.wait()


def test_two_instances_that_are_killed_give_no_cpu_twice_and_lose_no_claim(instances: Instances) -> None:
    told, ended, dice = Told(), threading.Event(), random.Random(SEED)
    for name in INSTANCES:
        instances.start(name)
    with ThreadPoolExecutor(WORKERS) as pool:
        work = [
            pool.submit(disturb, instances, told, list(range(first, CLAIMS, WORKERS)), SEED + first, ended)
            for first in range(WORKERS)
        ]
        for _ in range(KILLS):
            kill(instances, told, dice, ended)
        ended.set()
        for each in work:
            each.result()
    logs = {name: (instances.folder / f"{name}.log").read_text() for name in INSTANCES}
    assert told.answered >= ANSWERS * KILLS, logs
    check(instances.folder, told)
    # Call each instance once, so that both have started before they are stopped.
    for number, name in enumerate(INSTANCES * (CLAIMS // 2)):
        while instances.call(name, "NodeUnprepareResources", number) is None:
            assert all(process.poll() is None for process in instances.running.values())
    assert [instances.stop(name, signal.SIGTERM) for name in INSTANCES] == [0, 0]
    assert read_ledger(instances.folder / "kubelet" / "plugins" / DRIVER / "ledger.db").records == ()
    assert list((instances.folder / "cdi").glob("*.json")) == []
    assert list((instances.folder / "kubelet" / "plugins_registry").iterdir()) == []


@pytest.mark.parametrize("suffix", ["-shm", "-wal"])
def test_instances_see_each_others_commits_after_a_journal_file_is_removed(instances: Instances, suffix: str) -> None:
    instances.start("old")
    assert eventually(partial(instances.call, "old", "NodePrepareResources", 0)).error == ""
    (instances.folder / "kubelet" / "plugins" / DRIVER / f"ledger.db{suffix}").unlink()
    instances.start("new")
    refusals: list[str] = []

    def answered(name: str, number: int) -> bool:
        answer = instances.call(name, "NodePrepareResources", number)
        if answer is not None and answer.error:
            refusals.append(answer.error)
        return answer is not None and not answer.error

    for number in range(1, CLAIMS):
        # An instance may read the new journal with the old index until the other has reopened both; kubelet asks again.
        eventually(partial(answered, INSTANCES[number % 2], number))
    assert all(error.endswith("no new claims are prepared until it can be used") for error in refusals), refusals
    cpus = [cpus_of(instances.folder, number) for number in range(CLAIMS)]
    assert sum(map(len, cpus)) == len(CPUSet.union(cpus)), "a CPU was given twice"


def check(folder: Path, told: Told) -> None:
    contents = read_ledger(folder / "kubelet" / "plugins" / DRIVER / "ledger.db")
    assert contents.damaged == ()
    records = {int(record.uid.removeprefix("uid-")): record.held for record in contents.records}
    assert sum(map(len, records.values())) == len(CPUSet.union(records.values())), "a CPU was given twice"
    assert told.certain.keys() <= records.keys() <= told.certain.keys() | told.unknown
    for number, (cpus, _) in told.certain.items():
        assert records[number] == cpus == cpus_of(folder, number)
