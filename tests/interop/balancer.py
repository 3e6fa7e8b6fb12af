"""A real irqbalance (Debian's package irqbalance): started as on a node, and what it says that it leaves alone."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from dranode.api.cpuset import CPUSet
from dranode.cpu.isolation.peers import IRQBalance
from dranode.cpu.isolation.settings import Setting
from tests.fakes.waiting import eventually

FOLDER = Path("/run/irqbalance")
_ROUND = "-" * 30


def program() -> str | None:
    """Where it is installed; None where it is not."""
    return shutil.which("irqbalance") or shutil.which("irqbalance", path="/usr/sbin")


class Balancer:
    """One that runs, and places interrupts every second."""

    def __init__(self, log: Path, environment: Mapping[str, str]) -> None:
        """Start it; `log` is where it says what it does."""
        found = program()
        assert found is not None
        self._log = log
        command = [found, "--debug", "--interval=1"]
        with log.open("wb") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out, env=dict(environment))
        self.socket = FOLDER / f"irqbalance{self.process.pid}.sock"
        eventually(lambda: self.socket.exists() or self.ended())

    def ended(self) -> bool:
        """Whether it has ended: it does at once where it can do nothing."""
        return self.process.poll() is not None

    def rounds(self) -> int:
        """How often it has placed interrupts."""
        return sum(line.startswith(_ROUND) for line in self._log.read_text(errors="replace").splitlines())

    def banned(self) -> CPUSet:
        """The CPUs that it says it leaves alone."""
        (mine,) = eventually(self._asked)
        return mine.cpus

    def _asked(self) -> list[Setting]:
        """Ask it; empty where it does not answer in time, as on a busy machine."""
        return [
            each
            for each in IRQBalance(str(FOLDER)).ask(CPUSet(), {}).settings
            if each.path.endswith(f"/{self.socket.name}")
        ]

    def end(self) -> None:
        """End it without a warning."""
        self.process.kill()
        self.process.wait()
        self.socket.unlink(missing_ok=True)


@contextlib.contextmanager
def irqbalance(log: Path, **environment: str) -> Iterator[Balancer | None]:
    """Run one, with these variables; None where there is none, or it does not want to."""
    if program() is None:
        yield None
        return
    # As its unit has it (RuntimeDirectory=irqbalance); without the folder its socket has no place in the file system.
    made = not FOLDER.exists()
    FOLDER.mkdir(exist_ok=True)
    balancer = Balancer(log, environment)
    try:
        yield None if balancer.ended() else balancer
    finally:
        balancer.end()
        if made:
            FOLDER.rmdir()
