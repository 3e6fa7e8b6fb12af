"""kubelet restarts again and again while pods start and end, against the real program over real sockets."""

import contextlib
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dranode.api.cpuset import CPUSet
from dranode.api.resource import ResourceClaim
from dranode.driver.claims.answers import Prepared
from dranode.driver.claims.record import Record
from dranode.driver.local.store import Store
from dranode.show.ledger_reading import read_ledger
from dranode.sim.local.kubelet import KubeletError, StandInKubelet
from tests.fakes.drivers import reference
from tests.fakes.lifecycle import cpu_claim
from tests.fakes.waiting import PATIENCE, eventually

PROGRAM = Path(sys.executable).with_name("dranode")
DRIVER = "dra.cpu"
CLAIMS = [cpu_claim(f"c{number}", f"uid-{number}", "cpudevnuma000", 1) for number in range(24)]
WORKERS = 8
RESTARTS = 20


class RestartingKubelet:
    """A kubelet that is restarted while its pods have calls under way; each call is repeated until it is answered.

    Attributes:
        restarts: the number of restarts so far.
    """

    def __init__(self, registry: Path) -> None:
        self._registry = registry
        self._now = self._started()
        self.restarts = 0

    def _started(self) -> StandInKubelet:
        kubelet = StandInKubelet(self._registry)
        kubelet.register([DRIVER], PATIENCE)
        return kubelet

    def restart(self) -> None:
        """Abort the calls under way; the next kubelet registers the driver again and knows no claim."""
        before, self._now = self._now, self._started()
        before.close()
        self.restarts += 1

    def close(self) -> None:
        self._now.close()

    def prepare(self, claim: ResourceClaim) -> None:
        pod = {reference(claim): frozenset({DRIVER})}
        self._until_answered(lambda: isinstance(self._now.prepare(pod)[reference(claim)], Prepared))

    def unprepare(self, claim: ResourceClaim) -> None:
        def unprepared() -> bool:
            self._now.unprepare({reference(claim): frozenset({DRIVER})})
            return True

        self._until_answered(unprepared)

    def _until_answered(self, call: Callable[[], bool]) -> None:
        def answered() -> bool:
            # grpc raises ValueError for a call on a closed connection.
            with contextlib.suppress(KubeletError, ValueError):
                return call()
            return False

        eventually(answered)


@pytest.fixture
def folder() -> Iterator[Path]:
    # pytest's own folders can be too long for a socket path.
    with tempfile.TemporaryDirectory(prefix="dranode-") as name:
        (Path(name) / "kubelet" / "plugins_registry").mkdir(parents=True)
        store = Store(Path(name) / "store")
        for claim in CLAIMS:
            store.put(claim)
        yield Path(name)


def test_claims_that_come_and_go_while_kubelet_restarts_are_neither_lost_nor_given_twice(folder: Path) -> None:
    places = ["--store", "store", "--kubelet-root", "kubelet", "--cdi-dir", "cdi", "--machine", "cores=32"]
    rest = ["--node-name", "node", "--nri-socket", "none", "--http-address", "none"]
    log = folder / "log"

    def records() -> tuple[Record, ...]:
        return read_ledger(folder / "kubelet" / "plugins" / DRIVER / "ledger.db").records

    with log.open("wb") as written:
        driver = subprocess.Popen([PROGRAM, "serve", *places, *rest], cwd=folder, stderr=written)
    try:
        kubelet = RestartingKubelet(folder / "kubelet" / "plugins_registry")
        ending = threading.Event()

        def restart() -> None:
            while not ending.wait(0.02):
                kubelet.restart()

        with ThreadPoolExecutor(WORKERS + 1) as pool:
            restarting = pool.submit(restart)
            try:
                while kubelet.restarts < RESTARTS and not restarting.done():
                    list(pool.map(kubelet.prepare, CLAIMS))
                    held = [record.held for record in records()]
                    assert len(held) == len(CPUSet.union(held)) == len(CLAIMS)
                    assert {len(cpus) for cpus in held} == {1}
                    list(pool.map(kubelet.unprepare, CLAIMS))
            finally:
                ending.set()
        restarting.result()
        kubelet.close()
        assert records() == ()
        assert not list((folder / "cdi").iterdir())
        assert driver.poll() is None, log.read_text()
    finally:
        driver.kill()
        driver.wait()
