"""Kills the serving process at bad moments: a claim reported as prepared stays prepared, and no CPU is given twice."""

import contextlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dranode.api.cpuset import CPUSet
from dranode.api.resource import ResourceClaim
from dranode.driver.claims.answers import Prepared, Refused
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.record import PreparedDevice
from dranode.driver.local.store import Store
from dranode.show.ledger_reading import read_ledger
from dranode.sim.local.kubelet import KubeletError, StandInKubelet
from tests.fakes.drivers import allocated_claim
from tests.fakes.waiting import PATIENCE

PROGRAM = Path(sys.executable).with_name("dranode")
DRIVER = "dra.cpu"
CLAIMS = 12
KILLS = 6


def claim(number: int) -> ResourceClaim:
    consumed = {"dra.cpu/cpu": str(1 + number % 3)}
    share = f"00000000-0000-4000-8000-{number:012d}"
    devices = [f"cpudevnuma{number % 4:03d}"]
    return allocated_claim(f"c{number}", DRIVER, devices, uid=f"uid-{number}", consumedCapacity=consumed, shareID=share)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dranode-") as name:
        folder = Path(name)
        (folder / "kubelet" / "plugins_registry").mkdir(parents=True)
        store = Store(folder / "store")
        for number in range(CLAIMS):
            store.put(claim(number))
        yield folder


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], StandInKubelet]]:
    arguments = ["--machine", "sockets=2,numa=2,cores=4,threads=2", "--node-name", "node", "--http-address", "none"]
    places = ["--store", "store", "--kubelet-root", "kubelet", "--cdi-dir", "cdi", "--nri-socket", "none"]
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen([PROGRAM, "serve", *arguments, *places], cwd=folder, stderr=log)
    kubelet = StandInKubelet(folder / "kubelet" / "plugins_registry")
    try:
        # The socket of a killed driver exists until its successor replaces it.
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                kubelet.register([DRIVER], PATIENCE)
                break
            except KubeletError:
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline
        yield process, kubelet
    finally:
        kubelet.close()
        process.kill()
        process.wait()


def reference(number: int) -> ClaimRef:
    return ClaimRef("default", f"c{number}", f"uid-{number}")


def disturb(kubelet: StandInKubelet, dice: random.Random, told: dict[int, tuple[PreparedDevice, ...] | None]) -> None:
    """Prepare and unprepare until the driver is gone; `told` is what kubelet knows, None where it cannot know."""
    with contextlib.suppress(KubeletError):
        while True:
            number = dice.randrange(CLAIMS)
            pod = {reference(number): frozenset({DRIVER})}
            known = told.pop(number, ())
            told[number] = None
            if known:
                kubelet.unprepare(pod)
                del told[number]
                continue
            answer = kubelet.prepare(pod)[reference(number)]
            if isinstance(answer, Refused):
                raise KubeletError(answer.reason)
            told[number] = answer.devices


def check(folder: Path, told: dict[int, tuple[PreparedDevice, ...] | None]) -> None:
    contents = read_ledger(folder / "kubelet" / "plugins" / DRIVER / "ledger.db")
    assert contents.damaged == ()
    records = {record.uid: record for record in contents.records}
    held = CPUSet()
    for record in records.values():
        cpus = record.held
        assert cpus
        assert held.isdisjoint(cpus), "a CPU was given twice"
        held |= cpus
    certain = {reference(number).uid for number, answer in told.items() if answer}
    unknown = {reference(number).uid for number, answer in told.items() if answer is None}
    assert certain <= records.keys() <= certain | unknown
    specs = {path.name: path.read_bytes() for path in (folder / "cdi").glob("*.json")}
    for uid in certain:
        (device,) = json.loads(specs[f"dra.k8s.io-cpu_claim-{uid}.json"])["devices"]
        assert device["containerEdits"]["env"][0] == f"DRA_CPUSET_{uid}={records[uid].cpus}"


def test_a_prepared_claim_stays_prepared_after_a_kill_at_any_moment(folder: Path) -> None:
    dice = random.Random(20261120)
    told: dict[int, tuple[PreparedDevice, ...] | None] = {}
    for _ in range(KILLS):
        with serving(folder) as (process, kubelet):
            # A restarted kubelet repeats every call and must get the same answers as before.
            for number, answer in list(told.items()):
                again = kubelet.prepare({reference(number): frozenset({DRIVER})})[reference(number)]
                assert isinstance(again, Prepared), again
                assert again.devices == answer or answer is None
                told[number] = again.devices
            check(folder, told)
            timer = threading.Timer(dice.uniform(0.01, 0.2), process.send_signal, [signal.SIGKILL])
            timer.start()
            disturb(kubelet, dice, told)
            timer.join()
            process.wait()
        check(folder, told)
    with serving(folder) as (process, kubelet):
        for number in told:
            kubelet.unprepare({reference(number): frozenset({DRIVER})})
        process.terminate()
        assert process.wait(PATIENCE) == 0
    assert read_ledger(folder / "kubelet" / "plugins" / DRIVER / "ledger.db").records == ()
    assert list((folder / "cdi").glob("*.json")) == []
    assert list((folder / "kubelet" / "plugins_registry").iterdir()) == []
